"""Finds where WebSocket frames end in received bytes, without parsing them (RFC 6455, 5.2)."""

from __future__ import annotations

MAX_FRAMES = 32
"""Frames that are parsed at once: half a millisecond."""


class FrameCuts:
    """Follows the frames of one connection."""

    __slots__ = ("_header", "_left", "num_frames")

    def __init__(self) -> None:
        self._header = b""
        """The first bytes of a frame whose header is not complete."""
        self._left = 0
        """Bytes that are still to come of the current frame's payload."""
        self.num_frames = 0
        """Frames that have begun."""

    def cut(self, data: bytes, start: int) -> int:
        """Where the piece of ``data`` ends that begins at ``start``: after ``MAX_FRAMES`` frames,
        or with the data. Each byte must be passed once, in order."""
        size = len(data)
        most = self.num_frames + MAX_FRAMES
        while start < size:
            if self._left:
                end = min(start + self._left, size)
                self._left -= end - start
                start = end
            elif self.num_frames == most:
                break
            else:
                start = self._read_header(data, start)
        return start

    def _read_header(self, data: bytes, start: int) -> int:
        """Read on in a header; returns where it ends in ``data``."""
        known = len(self._header)
        header = self._header + data[start : start + 14 - known]
        if len(header) < 2 or len(header) < (size := _header_size(header)):
            self._header = header
            return len(data)
        length = header[1] & 0x7F
        if length > 125:
            length = int.from_bytes(header[2 : 4 if length == 126 else 10], "big")
        self._left = length
        self._header = b""
        self.num_frames += 1
        return start + size - known


def _header_size(header: bytes) -> int:
    """The size of a header whose first two bytes are known."""
    return 2 + 4 * (header[1] >> 7) + {126: 2, 127: 8}.get(header[1] & 0x7F, 0)
