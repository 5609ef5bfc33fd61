"""The server's secrets: the pepper for hashes of keys, and the root of cache salts."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec

from gateway.errors import SecretsError

_BYTES = 32


class Secrets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The secrets. They reveal no API keys, but without ``key_pepper`` none can be verified."""

    key_pepper: bytes
    cache_salt_root: bytes

    def __post_init__(self) -> None:
        for name in ("key_pepper", "cache_salt_root"):
            if len(getattr(self, name)) < _BYTES:
                raise ValueError(f"{name} must hold at least {_BYTES} bytes")

    def __repr__(self) -> str:
        return "Secrets(...)"  # They must not get into a log.


def generate() -> Secrets:
    return Secrets(
        key_pepper=secrets.token_bytes(_BYTES), cache_salt_root=secrets.token_bytes(_BYTES)
    )


def load(path: Path) -> Secrets:
    """Read a file written by ``create``. Raises ``SecretsError``."""
    try:
        if path.stat().st_mode & 0o077:
            raise SecretsError(f"{path}: others can read it; run `chmod 600 {path}`")
        return msgspec.json.decode(path.read_bytes(), type=Secrets)
    except FileNotFoundError:
        raise SecretsError(f"{path}: no such file; `sluice migrate` makes one") from None
    except OSError as exc:
        raise SecretsError(f"{path}: cannot be read: {exc.strerror}") from None
    except msgspec.DecodeError as exc:
        raise SecretsError(f"{path}: not a secrets file: {exc}") from None


def ensure(path: Path) -> bool:
    """Make the file unless it is there; returns whether this call did. Several may try at once."""
    if path.exists():
        return False
    try:
        create(path)
    except SecretsError:
        return False
    return True


def create(path: Path) -> Secrets:
    """Make new secrets, and write them to ``path`` (mode 0600). Raises ``SecretsError`` if that
    exists.

    The file appears whole or not at all: it is written under another name, and linked to its own.
    """
    made = generate()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(made))
        os.link(draft, path)
    except FileExistsError:
        raise SecretsError(f"{path}: exists already") from None
    finally:
        draft.unlink()
    return made
