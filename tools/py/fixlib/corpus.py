"""Training text of the fixtures: books of the World English Bible (public domain).

The text comes from the Debian package sword-text-web, a SWORD zText module: `.bzs` holds 12-byte
records (offset, compressed size, size; u32 little-endian) of the zlib blocks in `.bzz`, one block a
book; `.bzv` holds 10-byte records (block u32, offset u32, size u16), one a verse. Mark-up and
footnotes are dropped, the words are left as they are.
"""

import hashlib
import pathlib
import re
import struct
import subprocess
import tempfile
import zlib

PACKAGE = "sword-text-web"
MODULE = "usr/share/sword/modules/texts/ztext/engWEB2015eb"
BOOKS = ("Jonah", "Ruth", "Eccl")


def strip_markup(osis):
    """Plain words of one verse of OSIS XML."""
    osis = re.sub(r"<note\b.*?</note>", "", osis, flags=re.S)
    osis = re.sub(r"<title\b.*?</title>", "", osis, flags=re.S)
    osis = re.sub(r"<[^>]*>", " ", osis)
    for entity, char in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        osis = osis.replace(entity, char)
    osis = re.sub(r"\s+", " ", osis).strip()
    osis = re.sub(r" ([,.;:!?’”])", r"\1", osis)
    return re.sub(r"([“‘]) ", r"\1", osis)


def read_module(root):
    """Yields (book, verse text) for every verse of BOOKS under an unpacked package."""
    stem = pathlib.Path(root) / MODULE / "ot"
    index = stem.with_suffix(".bzs").read_bytes()
    data = stem.with_suffix(".bzz").read_bytes()
    verses = stem.with_suffix(".bzv").read_bytes()
    blocks = {}
    for i, (offset, packed, _) in enumerate(struct.iter_unpack("<III", index)):
        raw = zlib.decompress(data[offset : offset + packed]) if packed else b""
        book = re.search(rb'osisID="(\w+)"[^>]*type="book"', raw[:200])
        if book and book.group(1).decode() in BOOKS:
            blocks[i] = (book.group(1).decode(), raw)
    for block, offset, size in struct.iter_unpack("<IIH", verses):
        if size and block in blocks:
            book, raw = blocks[block]
            text = strip_markup(raw[offset : offset + size].decode("utf-8"))
            if text:
                yield book, text


def extract(out_path):
    """Downloads the package and writes the books to out_path: one verse a line, a blank line
    between books."""
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run(["apt-get", "download", PACKAGE], cwd=tmp, check=True)
        deb = next(pathlib.Path(tmp).glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", deb, "x"], cwd=tmp, check=True)
        books = {}
        for book, text in read_module(pathlib.Path(tmp) / "x"):
            books.setdefault(book, []).append(text)
    body = "\n\n".join("\n".join(books[b]) for b in BOOKS) + "\n"
    pathlib.Path(out_path).write_text(body, encoding="utf-8")


def load(path):
    """Returns (verses, sha256) of a corpus file."""
    raw = pathlib.Path(path).read_bytes()
    verses = [line for line in raw.decode("utf-8").split("\n") if line]
    return verses, hashlib.sha256(raw).hexdigest()
