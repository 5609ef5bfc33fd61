"""Ends the PostgreSQL of a test run whose processes have all ended, even by ``kill -9``.

    python postgres_keeper.py FOLDER

A program of its own that waits without using the CPU: the first process of the run holds a shared
lock on ``FOLDER/runs``, which the kernel releases with that process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from pathlib import Path


def main(folder: Path) -> None:
    with (folder / "runs").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
    try:
        pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        is_server = Path(f"/proc/{pid}/cwd").resolve() == (folder / "data").resolve()
    except (OSError, IndexError, ValueError):
        is_server = False  # it was stopped in the ordinary way
    if is_server:
        os.kill(pid, signal.SIGINT)  # without waiting for its sessions
        while Path(f"/proc/{pid}/cwd").exists():
            time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
