"""Thousands of damaged images of all formats: an array of the right kind, or refused by name."""

import io
import warnings

import numpy as np
import pytest
from PIL import Image

from fedgram.core.errors import BadImage
from fedgram.data.own.images import decode
from support import campaign
from support.mutations import damaged

KINDS = {
    "png": ("PNG", {}),
    "jpeg": ("JPEG", {}),
    "progressive jpeg": ("JPEG", {"progressive": True}),
    "tiff": ("TIFF", {}),
    "packed tiff": ("TIFF", {"compression": "tiff_lzw"}),
    "deflated tiff": ("TIFF", {"compression": "tiff_adobe_deflate"}),
    "bmp": ("BMP", {}),
    "gif": ("GIF", {}),
    "webp": ("WEBP", {}),
    "lossless webp": ("WEBP", {"lossless": True}),
    "ppm": ("PPM", {}),
}
MODES = ("L", "RGB", "P", "1", "RGBA")
# A file that is cut in order cannot be told from a whole file (docs/guides/data.md).
UNTOLD = {"jpeg", "progressive jpeg", "gif"}


@pytest.fixture(params=KINDS)
def images(request):
    """Return the files of one kind, in all modes that it has, with their exif."""
    kind, options = KINDS[request.param]
    rng, exif, made = np.random.default_rng(0), Image.Exif(), []
    exif[0x0112] = 6
    for mode in MODES:
        image = Image.fromarray(rng.integers(0, 256, (9, 13, 3), dtype=np.uint8).repeat(3, 0)).convert(mode)
        file = io.BytesIO()
        try:
            image.save(file, kind, **options, **({"exif": exif} if kind in ("PNG", "JPEG", "WEBP") else {}))
        except (OSError, ValueError):  # this format has no such mode
            continue
        made.append(file.getvalue())
    return request.param, made


def decoded(data):
    """Return an image as it is, checked as it is and as a backbone gets it; None where it is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = decode(data)
        except BadImage as error:
            assert len(str(error)) < 1000
            return None
        assert found.dtype == np.uint8
        assert found.ndim == 2 or found.shape[2:] == (3,)
        assert decode(data, (8, 12), "RGB").shape == (8, 12, 3)
    return found


@pytest.mark.campaign
def test_damaged_images_are_decoded_or_refused(images):
    _, made = images
    rng, refused = np.random.default_rng(24), 0
    for data in made:
        assert decoded(data) is not None
        for _ in range(campaign.size(150)):
            refused += decoded(damaged(data, rng)) is None
    assert refused


@pytest.mark.campaign
def test_a_part_of_an_image_is_not_taken_for_the_whole(images):
    kind, made = images
    rng = np.random.default_rng(25)
    for data in made:
        whole = decoded(data)
        for stop in [*range(len(data) - 12, len(data)), *rng.integers(0, len(data), campaign.size(10))]:
            part = decoded(data[:stop])
            if part is not None and kind not in UNTOLD:
                np.testing.assert_array_equal(part, whole, err_msg=f"{kind}, {stop} of {len(data)} bytes")
