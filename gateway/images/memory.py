"""The pixels of requests on their way to an engine of this host: files in a folder in memory."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import weakref
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from engine.messages import Image
from gateway.errors import InvalidRequestError, Overloaded, RateLimited

logger = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "sluice-images-"


class SharedFolder:
    """This process's folder, which only its user may enter and whose name nobody can guess. It is
    locked while the process lives, so that the next one can remove what a dead one has left."""

    def __init__(self, parent: Path = SHARED_MEMORY) -> None:
        self._parent = parent
        self._path: Path | None = None
        self._lock = -1

    def new_file(self) -> str:
        """A path at which there is no file; empty if there is no memory to share."""
        if self._path is None and not self._make():
            return ""
        assert self._path is not None
        return str(self._path / secrets.token_hex(16))

    def remove_leftovers(self) -> None:
        """Remove the folders of processes that have died."""
        for path in self._parent.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):  # another user's, or removed by another process
                lock = _locked(path)
                if lock is not None:
                    logger.info("remove images that a dead process has left")
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(lock)

    def close(self) -> None:
        """Idempotent."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            os.close(self._lock)
            self._path = None

    def _make(self) -> bool:
        path = self._parent / f"{PREFIX}{secrets.token_hex(16)}"
        try:
            path.mkdir(mode=0o700)
            lock = _locked(path)
        except OSError:
            return False
        if lock is None:  # Another process has taken it for a leftover.
            return False
        self._path, self._lock = path, lock
        return True


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock of a folder; None if somebody else does, or it is gone.
    Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.geteuid() and path.exists():
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None


class Room:
    """How many bytes of pixels there may be, of all tenants; one of them has half at most."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used: dict[UUID, int] = {}

    @property
    def num_bytes(self) -> int:
        return sum(self._used.values())

    def take(self, tenant: UUID, num_bytes: int) -> None:
        """Raises ``InvalidRequestError`` if there never are so many, else ``RateLimited`` or
        ``Overloaded``."""
        used, most = self._used.get(tenant, 0), self._max_bytes // 2
        if num_bytes > most:
            raise InvalidRequestError(
                f"The images of the request take {num_bytes} bytes as the model sees them; at most "
                f"{most} are possible (half of the server's images.max_memory_bytes).",
                param="messages",
                code="image_too_large",
            )
        if used + num_bytes > most:
            raise RateLimited(
                f"The images of your tenant's requests take {used} bytes, and these would take "
                f"{num_bytes}; at most {most} are possible at once.",
                retry_after_s=1,
            )
        if self.num_bytes + num_bytes > self._max_bytes:
            raise Overloaded("Too many images are being worked on; try again.", retry_after_s=1)
        self._used[tenant] = used + num_bytes

    def give_back(self, tenant: UUID, num_bytes: int) -> None:
        self._used[tenant] -= num_bytes
        if not self._used[tenant]:
            del self._used[tenant]


class Held:
    """The pictures of a request, which take memory until ``close``, or until nobody has this."""

    def __init__(self, room: Room, tenant: UUID, num_bytes: int) -> None:
        """Raises as ``Room.take`` does."""
        room.take(tenant, num_bytes)
        self.images: Sequence[Image] = ()
        self.places: Sequence[str] = ()
        """What its client calls each of them."""
        self._files: list[str] = []
        self.close = weakref.finalize(self, _let_go, room, tenant, num_bytes, self._files)
        """Idempotent."""

    def keep(self, file: str) -> None:
        """Remove this file at the end, whether it is there or not."""
        self._files.append(file)


def _let_go(room: Room, tenant: UUID, num_bytes: int, files: list[str]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.unlink(file)
    room.give_back(tenant, num_bytes)
