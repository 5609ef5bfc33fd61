"""The folder that all processes of a test run share, for a server that is started once."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from pathlib import Path

import pytest

FOLDER = pytest.StashKey[Path]()
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 4 * 2**30


def make_folder() -> Path:
    """An empty folder for a server: in memory if there is enough of it, where the thousand small
    files of a database cost a fifth of the time.

    Not below pytest's ``tmp_path``: each session that starts closes that tree again to all but its
    owner, and as root the server runs as somebody else.
    """
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _MEMORY_BYTES
    return Path(tempfile.mkdtemp(prefix="sluice-test-", dir=_MEMORY if roomy else None))


def configure(config: pytest.Config) -> None:
    """Make the run's folder, and remove it at the end."""
    folder = config.stash[FOLDER] = make_folder()
    # Whoever holds this lock keeps the server, which must not end between two forks.
    held = (folder / "runs").open("ab")
    fcntl.flock(held, fcntl.LOCK_SH)
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    config.add_cleanup(held.close)
