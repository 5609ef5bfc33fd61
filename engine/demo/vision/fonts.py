"""The fonts of this machine, and which of them training never sees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path

from PIL import ImageFont

FOLDERS = (Path("/usr/share/fonts"), Path.home() / ".local/share/fonts")
HELD_OUT = frozenset(
    {
        "Aileron",  # Pillow's own
        "Cabin",
        "Caladea",
        "Comic Neue",
        "DejaVu Serif",
        "Fantasque Sans Mono",
        "Lato",
        "Play",
        "Quicksand",
        "Vollkorn",
    }
)
"""Families that only held-out pictures are drawn with."""
_STRANGE = ("Symbol", "Dingbat", "Math", "Emoji", "Icon", "Keyboard", "D050000L")
"""In names of fonts whose letters are none."""
_NEEDED = "0123456789ABCDEFGHJKLMNPQRSTUVWXYZ"


class Font:
    """A file of a font family."""

    def __init__(self, family: str, data: bytes) -> None:
        self.family = family
        self._data = data
        self.at = lru_cache(maxsize=8)(self._at)

    def _at(self, size: int) -> ImageFont.FreeTypeFont:
        return ImageFont.truetype(BytesIO(self._data), size)


def find_fonts(split: str, folders: Sequence[Path] = FOLDERS) -> list[list[Font]]:
    """The families of a split, ``train`` or ``heldout``, with their fonts; those that can draw
    digits and letters. Held-out ones are Pillow's at least; there is none to train with where no
    folder has any."""
    found: dict[str, list[Font]] = {}
    paths = [p for folder in folders for kind in ("ttf", "otf") for p in folder.rglob(f"*.{kind}")]
    own = ImageFont.load_default(16)
    assert isinstance(own, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
    assert isinstance(own.path, BytesIO)
    for data in [own.path.getvalue(), *(path.read_bytes() for path in sorted(paths))]:
        family = _family(data)
        if family is not None and (family in HELD_OUT) == (split == "heldout"):
            found.setdefault(family, []).append(Font(family, data))
    return [found[family] for family in sorted(found)]


def _family(data: bytes) -> str | None:
    """None for fonts that cannot draw what is needed."""
    try:
        font = ImageFont.truetype(BytesIO(data), 24)
        family = font.getname()[0] or ""
        shapes = {bytes(font.getmask(sign)) for sign in _NEEDED}
    except (OSError, ValueError):
        return None
    # Signs that a font lacks look alike.
    is_complete = len(shapes) == len(_NEEDED) and not any(word in family for word in _STRANGE)
    return family if is_complete else None
