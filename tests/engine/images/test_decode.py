"""What files become in RGB, and what is refused before it is decoded."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from engine.errors import ImageTooLarge, InvalidImage, UnsupportedImage
from engine.images.decode import FORMATS, Limits, decode, measure, upright

LIMITS = Limits(max_bytes=100_000, max_pixels=10_000)
ORIENTATION = 0x0112


def noise(width: int, height: int, channels: int = 3) -> Any:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)


def encoded(picture: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()


def shown(data: bytes) -> Any:
    return np.asarray(decode(data, LIMITS))


def pixel(picture: Image.Image, format: str = "PNG", **options: Any) -> list[int]:
    return [int(value) for value in shown(encoded(picture, format, **options))[0, 0]]


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG file of RGB that says it has this size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for name, content in ((b"IHDR", header), *chunks, (b"IEND", b"")):
        crc = zlib.crc32(name + content)
        data += struct.pack(">I", len(content)) + name + content + struct.pack(">I", crc)
    return data


@pytest.mark.parametrize("format", ["PNG", "BMP"])
def test_what_is_rgb_stays_as_it_is(format: str) -> None:
    picture = noise(7, 5)
    data = encoded(Image.fromarray(picture), format)
    assert np.array_equal(shown(data), picture)
    assert measure(data, LIMITS) == (7, 5)


@pytest.mark.parametrize("format", FORMATS)
def test_formats_are_told_by_their_content(format: str) -> None:
    data = encoded(Image.new("RGB", (9, 4), (200, 100, 50)), format)
    assert measure(data, LIMITS) == (9, 4)
    assert np.abs(shown(data).astype(int) - (200, 100, 50)).max() < 8
    assert decode(data, LIMITS).size == (9, 4)


def test_modes() -> None:
    assert pixel(Image.new("1", (1, 1), 1)) == [255, 255, 255]
    assert pixel(Image.new("L", (1, 1), 77)) == [77, 77, 77]
    assert pixel(Image.new("CMYK", (1, 1), (0, 255, 255, 0)), "JPEG") == [255, 0, 0]
    palette = Image.new("P", (1, 1), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    assert pixel(palette) == [10, 20, 30]


def test_sixteen_bits_are_scaled_and_not_clipped() -> None:
    gray = Image.fromarray(np.array([[0x8000, 0xFFFF, 0x00FF]], np.uint16))
    assert [int(value) for value in shown(encoded(gray))[0, :, 0]] == [0x80, 0xFF, 0]


@pytest.mark.parametrize("mode", ["I", "F"])
def test_wider_pixels_are_refused(mode: str) -> None:
    with pytest.raises(UnsupportedImage, match="32 bits a pixel"):
        upright(Image.new(mode, (2, 2)), LIMITS)


def test_what_is_transparent_shows_white() -> None:
    assert pixel(Image.new("RGBA", (1, 1), (255, 0, 0, 0))) == [255, 255, 255]
    assert pixel(Image.new("RGBA", (1, 1), (0, 0, 0, 51))) == [204, 204, 204]
    assert pixel(Image.new("LA", (1, 1), (0, 0))) == [255, 255, 255]
    palette = Image.new("P", (1, 1), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    assert pixel(palette, transparency=1) == [255, 255, 255]
    assert pixel(palette, "GIF", transparency=1) == [255, 255, 255]


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(orientation: int, format: str) -> None:
    """Against what transformers does."""
    from PIL import ImageOps

    picture = Image.fromarray(noise(16, 8))
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    options = {"lossless": True} if format == "WEBP" else {}
    data = encoded(picture, format, exif=exif, **options)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert np.array_equal(shown(data), np.asarray(expected))
    assert measure(data, LIMITS) == expected.size == decode(data, LIMITS).size
    opened = Image.open(io.BytesIO(data))
    assert np.array_equal(np.asarray(upright(opened, LIMITS)), np.asarray(expected))


def test_an_orientation_behind_the_pixels_of_a_png_counts_and_damaged_ones_do_not() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    pixels = zlib.compress(b"\0" * (1 + 3 * 4) * 2)
    data = png(4, 2, (b"IDAT", pixels), (b"eXIf", exif.tobytes()[6:]))
    assert measure(data, LIMITS) == decode(data, LIMITS).size == (2, 4)
    data = png(4, 2, (b"eXIf", b"damaged"), (b"IDAT", pixels))
    assert measure(data, LIMITS) == decode(data, LIMITS).size == (4, 2)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation(format: str) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("white", "black", "black")]
    data = encoded(frames[0], format, save_all=True, append_images=frames[1:])
    assert shown(data).min() == 255


def test_limits() -> None:
    data = encoded(Image.new("RGB", (10, 10)))
    exact = Limits(max_bytes=len(data), max_pixels=100)
    assert decode(data, exact).size == (10, 10)
    with pytest.raises(ImageTooLarge, match=f"{len(data)} bytes, more than {len(data) - 1}"):
        decode(data, Limits(max_bytes=len(data) - 1, max_pixels=100))
    with pytest.raises(ImageTooLarge, match="10 x 10 pixels, more than 99 in all"):
        decode(data, Limits(max_bytes=len(data), max_pixels=99))
    with pytest.raises(ImageTooLarge):
        upright(Image.new("RGB", (10, 10)), Limits(max_pixels=99))


def gif_screen(side: int) -> bytes:
    frame = b"," + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\2"
    return b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + frame


def webp_canvas(side: int) -> bytes:
    chunk = b"VP8X" + struct.pack("<I", 10) + b"\2\0\0\0" + 2 * (side - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


@pytest.mark.parametrize("side", [101, 12_000, 65_535])
@pytest.mark.parametrize(
    "bomb",
    [
        lambda side: png(side, side, (b"IDAT", zlib.compress(bytes(100)))),
        gif_screen,
        lambda side: b"BM" + struct.pack("<IIIIiiHH", 0, 0, 54, 40, side, side, 1, 24) + bytes(24),
        webp_canvas,
    ],
    ids=["png", "gif", "bmp", "webp"],
)
def test_bombs_are_refused_by_what_their_header_says(bomb: Any, side: int) -> None:
    """What follows the headers would be an error of its own, if it were read."""
    for act in (measure, decode):
        with pytest.raises(ImageTooLarge, match="pixels"):
            act(bomb(side), LIMITS)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"", "there is no data"),
        (b"hello", "this is no image"),
        (b"%PDF-1.7\n%", "this is a PDF document"),
        (b" \n%PDF-1.7\n%", "this is a PDF document"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "this is an SVG drawing"),
        (b"\xef\xbb\xbf<?xml version='1.0'?><!-- --><svg/>", "this is an SVG drawing"),
        (b"<html></html>", "this is no image"),
        (b"II*\0\x08\0\0\0", "this is a TIFF image"),
        (b"\0\0\0\x1cftypavif", "this is an AVIF image"),
        (b"\0\0\0\x1cftypheic", "this is a HEIC image"),
        (b"\0\0\0\x1cftypisom", "a video"),
    ],
)
def test_what_is_no_image_is_refused_by_name(data: bytes, name: str) -> None:
    for act in (measure, decode):
        with pytest.raises(UnsupportedImage, match=f"{name}.*PNG, JPEG, WEBP, GIF, BMP"):
            act(data, LIMITS)


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_cut_short_is_refused(format: str) -> None:
    data = encoded(Image.fromarray(noise(40, 40)), format)
    with pytest.raises(InvalidImage, match="damaged or cut short"):
        decode(data[: len(data) // 2], LIMITS)


@settings(max_examples=150)
@given(
    st.sampled_from(FORMATS),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    st.integers(0, 2000),
)
def test_damaged_files_fail_by_name_or_are_of_the_measured_size(
    format: str, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(encoded(Image.fromarray(noise(12, 9)), format))
    for place, value in changes:
        data[place % len(data)] = value
    damaged = bytes(data[: max(len(data) - cut // 8, 12)])
    try:
        size = decode(damaged, LIMITS).size
    except InvalidImage:
        return
    assert measure(damaged, LIMITS) == size
