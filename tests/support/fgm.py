"""Small .fgm files, and what somebody makes of them who changes a header and counts the hashes anew."""

import json
from dataclasses import replace

import numpy as np

import fedgram as fg
from fedgram.exchange import files
from fedgram.exchange.header import Header
from support.exchange import key_of

KEY = key_of(0)
TIME = "2026-11-17T09:00:00Z"


def moments(n=12, columns=("age", "bp", "sex=M")):
    """Return the moments of some small numbers."""
    x = np.arange(n * len(columns), dtype=float).reshape(n, -1) % 7
    return fg.Moments.of(x, np.arange(n) % 2, classes=["ill", "well"], columns=columns)


def encoded(kind="summary", payload=None, **options):
    """Return a file's bytes, by default a summary that nobody signed."""
    payload = moments() if payload is None else payload
    known = {"samples": payload.n, "columns": payload.kind.columns} if isinstance(payload, fg.Moments) else {}
    return files.encode(kind, payload, **{"study": "0f3a" * 16, "party": "north", "created": TIME} | known | options)


def rewritten(data, change):
    """Return a file whose safetensors header was changed, as somebody would who knows no rules."""
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
    """Return a file of these parts with the right digest and seal: whoever forges can count hashes, too."""
    said, tree = replace(Header.of_texts(metadata), **change), metadata["fedgram"]
    said = replace(said, digest=files._digest(said, tree, shapes, [body]))
    return files._head(said, tree, shapes, files._seal(said, tree, shapes)) + body


def resealed(data, **change):
    """Return a file with other header fields."""
    return sealed(*files.parse(data), body_of(data), **change)
