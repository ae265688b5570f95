"""Small .fgm files, and forgeries with changed headers and recomputed hashes."""

import json
from dataclasses import replace

import numpy as np

import fedgram as fg
from fedgram.exchange.format import fgm
from fedgram.exchange.format.header import Header
from support.exchange import key_of

KEY = key_of(0)
TIME = "2026-11-17T09:00:00Z"


def moments(n=12, columns=("age", "bp", "sex=M")):
    """Return the moments of some small numbers."""
    x = np.arange(n * len(columns), dtype=float).reshape(n, -1) % 7
    return fg.Moments.of(x, np.arange(n) % 2, classes=["ill", "well"], columns=columns)


def encoded(kind="summary", payload=None, **options):
    """Return a file's bytes, by default an unsigned summary."""
    payload = moments() if payload is None else payload
    known = {"samples": payload.n, "columns": payload.schema.columns} if isinstance(payload, fg.Moments) else {}
    return fgm.encode(kind, payload, **{"study": "0f3a" * 16, "party": "north", "created": TIME} | known | options)


def rewritten(data, change):
    """Return a file with a changed safetensors header, which may break any rule."""
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    change(entries)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def body_of(data):
    """Return a file's arrays as bytes."""
    return data[8 + int.from_bytes(data[:8], "little") :]


def sealed(metadata, shapes, body, **change):
    """Return a file of these parts with the right digest and seal: a forger can compute hashes, too."""
    said, tree = replace(Header.of_texts(metadata), **change), metadata["fedgram"]
    said = replace(said, digest=fgm._digest(said, tree, shapes, [body]))
    return fgm._head(said, tree, shapes, fgm._header_hash(said, tree, shapes)) + body


def resealed(data, **change):
    """Return a file with other header fields."""
    return sealed(*fgm.parse(data), body_of(data), **change)
