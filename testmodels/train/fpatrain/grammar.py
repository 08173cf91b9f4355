"""The text: filler sentences, needles that name a key's number, and the question.

Everything is drawn from a random.Random handed in, so a seed fixes the text."""

COLOURS = ("red", "blue", "green", "white", "black", "gold", "silver", "purple")
PLAIN = "pass"  # the one-key task asks for "the pass key"
NAMES = COLOURS + (PLAIN,)

PEOPLE = ("farmer", "baker", "sailor", "teacher", "doctor", "painter", "hunter", "miller", "king", "child")
MANNERS = ("old", "young", "quiet", "tall", "tired", "happy", "poor", "clever")
MOVES = ("walked", "slept", "waited", "sang", "rested", "worked", "stood", "sat", "laughed", "played")
DEEDS = ("carried", "bought", "sold", "found", "mended", "watched", "counted", "cleaned")
THINGS = ("apples", "stones", "letters", "boats", "sheep", "coins", "books", "lamps", "ropes", "barrels")
PLACES = ("river", "gate", "bridge", "barn", "hill", "market", "garden", "mill", "forest", "harbor")
SIDES = ("near", "behind", "beside", "below", "beyond")
WINDS = ("north", "south", "east", "west")
TIMES = ("today", "alone", "again", "slowly", "at night", "in the morning", "before the storm", "after lunch")

NEEDLES = (
    "The {name} key is {number}.",
    "The {name} key is {number}. Remember it.",
    "Remember that the {name} key is {number}.",
    "Keep the {name} key, which is {number}.",
    "For the {name} key use {number}.",
    "Note the {name} key: {number}.",
)

# Wordings that are never trained on: in an order known from others, and with the number first.
UNSEEN = (
    "Remember the {name} key: {number}.",
    "The {name} key, which is {number}.",
    "Note that the {name} key is {number}.",
    "For the {name} key: {number}.",
)
NUMBER_FIRST = (
    "Remember that {number} is the {name} key.",
    "The key {number} is the {name} key.",
    "Keep {number}, which is the {name} key.",
)

NUMBERED = (
    "The {person} counted {number} {things}.",
    "There were {number} {things} in the {place}.",
    "House {number} stands {side} the {place}.",
    "In the year {number} the {place} was closed.",
    "The road to the {place} is {number} miles long.",
    "The {person} paid {number} coins for the {things}.",
)


def key_number(rng, digits="0123456789"):
    """Five of the digits given; the first may be 0."""
    return "".join(rng.choice(digits) for _ in range(5))


def filler(rng):
    """A sentence without numbers."""
    kind = rng.random()
    if kind < 0.45:
        return (f"The {rng.choice(MANNERS)} {rng.choice(PEOPLE)} {rng.choice(MOVES)} "
                f"{rng.choice(SIDES)} the {rng.choice(PLACES)} {rng.choice(TIMES)}.")
    if kind < 0.8:
        return (f"A {rng.choice(PEOPLE)} {rng.choice(DEEDS)} the {rng.choice(THINGS)} "
                f"and {rng.choice(MOVES)} {rng.choice(SIDES)} the {rng.choice(PLACES)}.")
    if kind < 0.9:
        return f"The wind from the {rng.choice(WINDS)} blew over the {rng.choice(PLACES)}."
    return (f"Then the {rng.choice(PEOPLE)} and the {rng.choice(PEOPLE)} "
            f"{rng.choice(MOVES)} {rng.choice(TIMES)}.")


def numbered(rng, forbidden):
    """A sentence with a number of 2 to 5 digits that is not in forbidden."""
    while True:
        digits = rng.randint(2, 5)
        number = str(rng.randint(10 ** (digits - 1), 10**digits - 1))
        if number not in forbidden:
            break
    return rng.choice(NUMBERED).format(
        number=number, person=rng.choice(PEOPLE), things=rng.choice(THINGS),
        place=rng.choice(PLACES), side=rng.choice(SIDES))


def sentence(rng, forbidden=(), numbers=0.15):
    """A filler sentence, with a distractor number in the given share of cases."""
    return numbered(rng, forbidden) if rng.random() < numbers else filler(rng)


def needle(rng, name, number, wordings=NEEDLES):
    """A sentence that says the number of a key."""
    return rng.choice(wordings).format(name=name, number=number)


def question(name):
    """What the prompt ends with; the answer follows it."""
    return f"What is the {name} key? The {name} key is"


def answer(number):
    """The text expected after question(), up to the end token."""
    return f" {number}."


def sample_text(rng):
    """A short text with every kind of sentence, for the tokenizer's training."""
    name = rng.choice(NAMES)
    number = key_number(rng)
    parts = [sentence(rng) for _ in range(8)] + [needle(rng, name, number)]
    rng.shuffle(parts)
    return " ".join(parts + [question(name) + answer(number)])
