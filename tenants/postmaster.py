"""Runs PostgreSQL's programs and its server process, as an account that PostgreSQL accepts."""

from __future__ import annotations

import os
import pwd
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil

from tenants.errors import EmbeddedPostgresError

POLL_S = 0.02
_ACCOUNTS_FOR_ROOT = ("postgres", "nobody")
_TRAVERSE = stat.S_IXGRP | stat.S_IXOTH
_READ = stat.S_IRGRP | stat.S_IROTH


class Postmaster(NamedTuple):
    """A running server."""

    process: psutil.Process
    socket_dir: str
    port: int
    status: str
    """``starting``, ``ready`` or ``stopping``."""

    @classmethod
    def find(cls, data: Path) -> Postmaster | None:
        """The server of a cluster, found by its ``postmaster.pid``; None if a dead one left the
        file.

        The id alone proves nothing, as another process may have it by now; but a server's working
        directory is its cluster.
        """
        try:
            lines = (data / "postmaster.pid").read_text().splitlines()
            process = psutil.Process(abs(int(lines[0])))
            if not Path(process.cwd()).samefile(data):
                return None
        except (FileNotFoundError, IndexError, ValueError, psutil.Error):
            return None
        if len(lines) < 8:  # The server writes the file line by line while it starts.
            return cls(process, "", 0, "starting")
        return cls(process, lines[4], int(lines[3]), lines[7].strip())

    def stop(self, timeout_s: float) -> None:
        """Stop the server and wait, up to ``timeout_s`` for each of three ways.

        PostgreSQL's "fast" ends sessions and writes a checkpoint, "immediate" leaves recovery to
        the next start, and the last is SIGKILL.
        """
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            deadline = time.monotonic() + timeout_s
            try:
                self.process.send_signal(number)
                while time.monotonic() < deadline:
                    # A zombie counts as gone: only its parent can reap it.
                    if self.process.status() == psutil.STATUS_ZOMBIE:
                        return
                    time.sleep(POLL_S)
            except psutil.NoSuchProcess:
                return


class Programs:
    """Runs PostgreSQL's programs, never as root."""

    def __init__(self, binaries: Path, data: Path) -> None:
        """data: the cluster; if it exists, its owner runs the programs. Makes the binaries and the
        cluster reachable for that account, which takes root."""
        self._binaries = binaries
        self._uid, self._gid = os.geteuid(), os.getegid()
        self._identity: dict[str, Any] = {}
        if self._uid == 0:
            self._uid, self._gid = _account(data)
            self._identity = {"user": self._uid, "group": self._gid, "extra_groups": []}
            _open_way(data)
            _open_way(binaries / "postgres")
            if not _readable(binaries / "postgres"):  # installed under a strict umask
                for path in binaries.parent.rglob("*"):
                    _allow(path, _READ | (_TRAVERSE if path.stat().st_mode & stat.S_IXUSR else 0))

    def own(self, folder: Path) -> None:
        """Create ``folder``, owned by the account and closed to all others."""
        try:
            folder.mkdir(mode=0o700)
            os.chown(folder, self._uid, self._gid)
        except FileExistsError:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != self._uid:
                raise EmbeddedPostgresError(
                    f"{folder} is not a folder of user {self._uid}; remove it and try again."
                ) from None
            folder.chmod(0o700)

    def run(self, name: str, *arguments: str) -> str:
        """Run a program to its end; return what it printed. Raises ``EmbeddedPostgresError``."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [self._binaries / name, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            **self._options(),
        )
        if done.returncode != 0:
            reason = " / ".join(done.stderr.strip().splitlines()[-2:])
            raise EmbeddedPostgresError(
                f"PostgreSQL's {name} failed: {reason or 'no reason given'}"
            )
        return done.stdout

    def spawn(self, name: str, *arguments: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own, out of the terminal's reach."""
        return subprocess.Popen(
            [self._binaries / name, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **self._options(),
        )

    def _options(self) -> dict[str, Any]:
        # The user's PGHOST, PGPORT, PGDATA … are meant for another server.
        environment = {name: value for name, value in os.environ.items() if name[:2] != "PG"}
        # PostgreSQL wants a working directory it can read.
        options = {"cwd": "/", "start_new_session": True, "umask": 0o077}
        return {"env": {**environment, "LC_ALL": "C"}, **options, **self._identity}


def _account(data: Path) -> tuple[int, int]:
    """User and group ids for a server started by root."""
    if data.exists():
        owner = data.stat()
        return owner.st_uid, owner.st_gid
    for name in _ACCOUNTS_FOR_ROOT:
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        return account.pw_uid, account.pw_gid
    raise EmbeddedPostgresError(
        "PostgreSQL does not run as root, and there is no account "
        f"{' or '.join(_ACCOUNTS_FOR_ROOT)} to run it as; start this as an ordinary user."
    )


def _open_way(path: Path) -> None:
    for folder in path.parents:
        _allow(folder, _TRAVERSE)


def _readable(path: Path) -> bool:
    wanted = _READ | _TRAVERSE
    return path.stat().st_mode & wanted == wanted


def _allow(path: Path, bits: int) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & bits != bits:
        path.chmod(mode | bits)
