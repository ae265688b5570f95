"""Type families as clients: letters and digits drawn from each family's faces, some faces held back for testing.

Every family shows the same 62 characters, in a style of its own. So labels are spread evenly and features are not:
the opposite of what partitions by label give.
"""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedgram.core.errors import InvalidData
from fedgram.core.randomness import generator
from fedgram.data.own.images import pillow
from fedgram.data.published.layouts.base import Layout
from fedgram.data.published.store import Content, Stream

CHARACTERS = ascii_uppercase + ascii_lowercase + digits
SIDE, MARGIN = 28, 1
HELD_BACK = 0.25  # of a family's faces, but one at least


class Face(NamedTuple):
    """One weight and style of a family, and the file that draws it."""

    family: str
    style: str
    weight: int
    path: Path


def typefaces_layout() -> Layout:
    """Return the layout of one unpacked package per family, each in a folder of its own."""
    return Layout("*/package/files/*-latin-*.woff2", ("typefaces",), _read)


def _read(folder: Path) -> Content:
    pillow()  # says what to install, before anything is drawn
    faces = sorted(_faces(folder))
    held_back = _held_back(faces)
    train, test = ([face for face in faces if (face in held_back) is wanted] for wanted in (False, True))
    columns = _columns(train, "") | _columns(test, "_test")
    licences = {f"licences/{path.parent.parent.name}.txt": path.read_bytes() for path in _licences(folder)}
    return Content(tuple(CHARACTERS), columns, licences)


def _faces(folder: Path) -> Iterator[Face]:
    for path in folder.glob("*/package/files/*.woff2"):
        if told := re.fullmatch(r"(.+)-latin-(\d+)-(normal|italic)\.woff2", path.name):
            yield Face(told[1], told[3], int(told[2]), path)


def _licences(folder: Path) -> list[Path]:
    licences = sorted(folder.glob("*/package/LICENSE"))
    if not licences:
        raise InvalidData(f"{folder} holds typefaces without their licences: unpack whole packages there")
    return licences


def _held_back(faces: list[Face]) -> set[Face]:
    """Return the faces to test on: of each family always the same, whatever other families there are."""
    chosen = set()
    for family in sorted({face.family for face in faces}):
        own = [face for face in faces if face.family == family]
        if len(own) < 2:
            raise InvalidData(f"type family {family!r} has {len(own)} face: two are needed, one of them to test on")
        order = generator(0, "held-back faces", family).permutation(len(own))
        chosen |= {own[i] for i in order[: max(1, round(HELD_BACK * len(own)))]}
    return chosen


def _columns(faces: list[Face], suffix: str) -> dict[str, Stream | npt.NDArray[np.generic]]:
    shape = len(faces) * len(CHARACTERS), SIDE, SIDE
    return {
        f"x{suffix}": Stream(shape, (drawn(face.path.read_bytes(), face.path.name) for face in faces)),
        f"y{suffix}": np.tile(np.arange(len(CHARACTERS)), len(faces)),
        f"groups{suffix}": np.repeat([face.family for face in faces], len(CHARACTERS)),
    }


def drawn(font: bytes, name: str) -> npt.NDArray[np.uint8]:
    """Return all characters of a face (62, 28, 28), white on black, on one baseline and at one size."""
    from PIL import Image, ImageDraw, ImageFont

    try:
        large = ImageFont.truetype(io.BytesIO(font), 100)
        boxes = np.array([large.getbbox(character, anchor="ls") for character in CHARACTERS])
        top, bottom, width = boxes[:, 1].min(), boxes[:, 3].max(), (boxes[:, 2] - boxes[:, 0]).max()
        scale = (SIDE - 2 * MARGIN) / max(bottom - top, width, 1)
        face = ImageFont.truetype(io.BytesIO(font), 100 * scale)
        baseline = (SIDE - scale * (top + bottom)) / 2
        images = np.empty((len(CHARACTERS), SIDE, SIDE), dtype=np.uint8)
        for image, character in zip(images, CHARACTERS, strict=True):
            left, _, right, _ = face.getbbox(character, anchor="ls")
            canvas = Image.new("L", (SIDE, SIDE))
            ink = ImageDraw.Draw(canvas)
            ink.text(((SIDE - left - right) / 2, baseline), character, font=face, fill=255, anchor="ls")
            image[...] = np.asarray(canvas)
    except (OSError, ValueError) as error:
        raise InvalidData(f"{name} is not a typeface that can be drawn ({error})") from error
    return images
