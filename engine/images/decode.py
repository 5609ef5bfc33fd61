"""From a file's bytes to a picture in RGB. Nothing is decoded before its size is known from its
header, and what a file is is told by its content.

- Of animated pictures, the first frame counts.
- The EXIF orientation is applied.
- What is transparent shows white.
- 16 bits a channel become the upper 8; CMYK, palettes and gray become RGB as Pillow converts them.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from engine.errors import ImageTooLarge, InvalidImage, UnsupportedImage

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")

_OTHERS = (
    (b"%PDF", "a PDF document"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
    (b"8BPS", "a Photoshop document"),
    (b"\0\0\1\0", "an icon"),
    (b"\0\0\0\x0cjP", "a JPEG 2000 image"),
    (b"\0\0\0\x0cJXL", "a JPEG XL image"),
    (b"\xff\x0a", "a JPEG XL image"),
    (b"\x1a\x45\xdf\xa3", "a video"),
    (b"OggS", "an audio or video file"),
    (b"ID3", "an audio file"),
)
_BRANDS = {b"avif": "an AVIF image", b"avis": "an AVIF image", b"heic": "a HEIC image"}
"""Of files with ``ftyp`` as their first box, which are videos else."""
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""By EXIF orientation: what makes the picture upright."""
_ON_ITS_SIDE = frozenset({5, 6, 7, 8})


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of a picture as it comes."""

    max_bytes: int = 20 * 2**20
    max_pixels: int = 50_000_000
    """Width times height. Decoding takes up to 12 bytes of memory for each."""

    def check_pixels(self, width: int, height: int) -> None:
        if width * height > self.max_pixels:
            raise ImageTooLarge(
                f"the image has {width} x {height} pixels, more than {self.max_pixels} in all:"
                " make it smaller"
            )


def measure(data: bytes, limits: Limits) -> tuple[int, int]:
    """Width and height of an upright picture, from its header. Raises as ``decode`` does."""
    with _damage_named():
        picture = _opened(data, limits)
        return _upright_size(picture.size, _orientation(picture, data))


def decode(data: bytes, limits: Limits) -> Image.Image:
    """The upright picture in RGB.

    Raises:
        UnsupportedImage: the data is no image, or of a format that is not read.
        ImageTooLarge: it has more bytes or pixels than allowed.
        InvalidImage: it is damaged or cut short.
    """
    with _damage_named():
        picture = _opened(data, limits)
        orientation = _orientation(picture, data)
        picture.load()
        limits.check_pixels(*picture.size)  # a frame may be larger than what holds it
        return _turned(to_rgb(picture), orientation)


def upright(picture: Image.Image, limits: Limits) -> Image.Image:
    """As ``decode``, for a picture of Pillow's."""
    with _damage_named():
        limits.check_pixels(*picture.size)
        orientation = picture.getexif().get(ExifTags.Base.Orientation, 1)
        return _turned(to_rgb(picture), orientation)


def to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode in ("I", "F"):
        raise UnsupportedImage(
            "the image has 32 bits a pixel, which may mean any range: convert it to 8 or 16"
        )
    if picture.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if "A" in picture.getbands() or picture.info.get("transparency") is not None:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        picture = Image.alpha_composite(white, picture)
    return picture.convert("RGB")


@contextmanager
def _damage_named() -> Iterator[None]:
    """Whatever Pillow raises for bad data becomes ``InvalidImage``."""
    try:
        yield
    except InvalidImage:
        raise
    except Exception as error:
        raise InvalidImage(f"the image is damaged or cut short: {error}") from error


def _opened(data: bytes, limits: Limits) -> Image.Image:
    """The picture with nothing but its header read."""
    if len(data) > limits.max_bytes:
        raise ImageTooLarge(
            f"the image has {len(data)} bytes, more than {limits.max_bytes}: compress it, or make"
            " it smaller"
        )
    _check_webp(data, limits)
    with warnings.catch_warnings():
        # Pillow's own limits are not ours.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            picture = Image.open(io.BytesIO(data), formats=FORMATS)
        except UnidentifiedImageError:
            raise UnsupportedImage(
                f"{_what_it_is(data)}, not one of the images that are read: {', '.join(FORMATS)}"
            ) from None
        except Image.DecompressionBombError as error:
            raise ImageTooLarge(f"the image has too many pixels ({error})") from error
    limits.check_pixels(*picture.size)
    return picture


def _check_webp(data: bytes, limits: Limits) -> None:
    """Pillow allocates the canvas of an extended WebP file when it opens it."""
    if data[:4] == b"RIFF" and data[8:16] == b"WEBPVP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        limits.check_pixels(width, height)


def _orientation(picture: Image.Image, data: bytes) -> int:
    """1 to 8; what is unreadable counts as 1, upright."""
    # Pillow decodes a PNG to its end in search of what may stand behind the pixels.
    if picture.format == "PNG" and b"eXIf" not in data and b"Orientation" not in data:
        return 1
    try:
        orientation = picture.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:
        return 1
    return orientation if isinstance(orientation, int) else 1


def _upright_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    return size[::-1] if orientation in _ON_ITS_SIDE else size


def _turned(picture: Image.Image, orientation: int) -> Image.Image:
    turn = _TURNS.get(orientation)
    return picture if turn is None else picture.transpose(turn)


def _what_it_is(data: bytes) -> str:
    if not data:
        return "there is no data"
    head = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:1] == b"<" and b"<svg" in head.lower():
        return "this is an SVG drawing"
    for start, name in _OTHERS:
        if head.startswith(start) or data.startswith(start):
            return f"this is {name}"
    if data[4:8] == b"ftyp":
        return f"this is {_BRANDS.get(data[8:12], 'a video or a format of phones')}"
    return "this is no image"
