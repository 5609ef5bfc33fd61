"""The folder of a demo: its data between runs, and the file by which commands find a running one.

.sluice/  postgres/      the database
          secrets.json   pepper and salts of the server            mode 0600
          keys.json      the demo tenant's keys, in the clear      mode 0600
          ready.json     where a running demo is                   mode 0600
          lock           held by the demo that ready.json is of    mode 0600
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gateway.errors import SetupError

if TYPE_CHECKING:
    from gateway.secrets import Secrets


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """The demo's keys in the clear: the database holds only hashes, so a second run could not show
    them."""

    api_key: str
    admin_key: str


class Running(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A running demo: the contents of its ready file."""

    url: str
    ws_url: str
    api_key: str
    admin_key: str
    pid: int

    def write(self, path: Path) -> None:
        _write_private(path, msgspec.json.format(msgspec.json.encode(self)))

    def remove(self, path: Path) -> None:
        """Remove the file unless another demo has written its own there meanwhile."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if msgspec.json.decode(path.read_bytes(), type=Running) == self:
                path.unlink()


class DataDir:
    """The paths of the files, and their contents."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.postgres = root / "postgres"
        self.secrets_file = root / "secrets.json"
        self.ready_file = root / "ready.json"
        self._keys_file = root / "keys.json"

    def create(self) -> None:
        """Create the folder. Raises ``SetupError`` if it cannot be created or written to."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise SetupError(
                f"{self.root} cannot be made ({exc.strerror}); choose another --data-dir"
            ) from None
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise SetupError(f"{self.root} cannot be written to; choose another --data-dir")

    @contextlib.contextmanager
    def owned(self) -> Iterator[bool]:
        """Whether this process is the first on the folder: several may share its database, but
        there is only one ready file. Held until the block ends, or the process."""
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        is_first = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_first = False
        try:
            yield is_first
        finally:
            os.close(descriptor)

    def load_or_create_secrets(self) -> Secrets:
        """The server's secrets, created if there are none. Raises ``SecretsError``."""
        from gateway import secrets

        secrets.ensure(self.secrets_file)
        return secrets.load(self.secrets_file)

    def load_keys(self) -> Keys | None:
        """The stored keys; None when there is no file, or not one of ours."""
        try:
            return msgspec.json.decode(self._keys_file.read_bytes(), type=Keys)
        except (OSError, msgspec.DecodeError):
            return None

    def save_keys(self, keys: Keys) -> None:
        _write_private(self._keys_file, msgspec.json.encode(keys))

    def running(self) -> Running | None:
        """The demo that runs on this folder; None if its process is not alive."""
        try:
            running = msgspec.json.decode(self.ready_file.read_bytes(), type=Running)
            os.kill(running.pid, 0)
        except (OSError, msgspec.DecodeError):
            return None
        return running


def _write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read; it appears whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        draft.replace(path)
    except OSError as exc:
        draft.unlink(missing_ok=True)
        raise SetupError(f"{path} cannot be written: {exc.strerror}") from None
