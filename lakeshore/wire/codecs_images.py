"""Pillow on the wire: one still image (3) as a lossless file, pixel for pixel.

The body is packed [format, file bytes]. The format is Pillow's name of it: in capitals ("PNG") where the
image was opened from a file of that lossless format, and comes back as such a file's image; in small letters
("png", "tiff") for any other, which comes back as a plain `PIL.Image.Image`. Pixels, mode, size and palette
travel; the metadata in `info` only as far as the format keeps it.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageFile

from lakeshore.wire.codecs import Refused, fields, plain_packb

_LOSSLESS = ("PNG", "TIFF", "BMP", "PPM", "TGA", "GIF")
_READABLE = frozenset({*_LOSSLESS, "WEBP", "JPEG"})  # none of them runs another program
_FAITHFUL = frozenset({"1", "L", "RGB", "RGBA", "LA"})  # modes that PNG holds without a look
_RATIO = 10_000  # the most pixel bytes that a byte of any of these formats can stand for
_SLACK = 1024 * 1024


def encoder(kind: type) -> tuple[int, Callable[[Any], bytes]] | None:
    """Return the codec for Pillow's image classes, or None."""
    if kind is Image.Image or (issubclass(kind, ImageFile.ImageFile) and kind.__module__.startswith("PIL.")):
        return 3, encode_image
    return None


def encode_image(value: Image.Image) -> bytes:
    """Return the body of a still image."""
    if getattr(value, "n_frames", 1) > 1:
        raise Refused(
            "an image of several frames would lose all but one; send its file's bytes, or a list of frames"
        )
    value.load()
    if 0 in value.size:
        raise Refused(f"an image of size {value.size} has no file form; send None")
    own = value.format if value.format in _LOSSLESS and isinstance(value, ImageFile.ImageFile) else None
    for name in dict.fromkeys(filter(None, (own, "png", "tiff"))):
        body = _save(value, name)
        if body is not None:
            return body
    raise Refused(
        f"an image of mode {value.mode!r} and size {value.size} has no lossless file form; "
        "send value.convert('RGB'), or numpy.asarray(value)"
    )


def _save(value: Image.Image, name: str) -> bytes | None:
    file = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a format cannot keep is found by looking
            value.save(file, format=name)
        body = plain_packb([name, file.getvalue()])
        if value.mode in _FAITHFUL and name == "png" and "transparency" not in value.info:
            _check_size(value, len(file.getvalue()))
            return body
        back = decode_image(body)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return body if _content(back) == _content(value) else None


def _content(image: Image.Image) -> tuple[Any, ...]:
    palette = (image.palette.mode, image.getpalette()) if image.palette else None
    return image.mode, image.size, palette, image.info.get("transparency"), image.tobytes()


def decode_image(body: bytes) -> Image.Image:
    """Return the image of a body, loaded."""
    name, data = fields(body, 2, "an image")
    if type(name) is not str or name.upper() not in _READABLE or type(data) is not bytes:
        raise ValueError("an image wants a known format and its file's bytes")
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = Image.open(io.BytesIO(data), formats=[name.upper()])
        _check_size(image, len(data))
        image.load()
    if name.isupper():
        return image
    plain = image.copy()
    for lost in [key for key in plain.info if key != "transparency"]:
        del plain.info[lost]
    return plain


def _check_size(image: Image.Image, file_bytes: int) -> None:
    width, height = image.size
    if width * height * 4 > file_bytes * _RATIO + _SLACK:
        raise ValueError(f"an image of {width}x{height} pixels in {file_bytes} bytes is a decompression bomb")
