"""Listeners other than a plain port: Unix sockets, sockets that systemd opened, and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import stat
from pathlib import Path

from gateway.config import ServerConfig
from gateway.errors import AddressInUse, ConfigError

TLS_POLL_S = 5.0
"""Time between two looks at the files of the certificate."""
_FIRST_FD = 3  # sd_listen_fds(3)

logger = logging.getLogger(__name__)


def is_activated() -> bool:
    """Whether systemd has opened a socket for this process (socket activation)."""
    return os.environ.get("LISTEN_PID") == str(os.getpid())


def activated() -> socket.socket:
    """The socket that systemd opened; it stays open, with all connections that wait, while this
    service restarts. Raises ``ConfigError``."""
    count = os.environ.get("LISTEN_FDS")
    if count != "1":
        raise ConfigError(f"systemd passes {count} sockets; the .socket unit must have one Listen")
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):  # not for our own children
        os.environ.pop(name, None)
    os.set_inheritable(_FIRST_FD, False)
    listener = socket.socket(fileno=_FIRST_FD)
    if listener.type != socket.SOCK_STREAM:
        raise ConfigError("systemd passes a socket that is no stream; use ListenStream")
    return listener


def notify(state: str) -> None:
    """Tell systemd a state, such as ``READY=1``, if it asks for that (``Type=notify``)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address is None:
        return
    # An address that begins with @ is an abstract one.
    name = "\0" + address[1:] if address.startswith("@") else address
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
    ):
        sender.sendto(state.encode(), name)


def unix_socket(path: str) -> socket.socket:
    """A socket bound to ``path``, which replaces one that nobody listens on any more. Raises
    ``AddressInUse``."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                raise OSError(0, "is a file that is no socket")
            if _answers(path):
                raise OSError(0, "is taken")
            os.unlink(path)
        listener.bind(path)
    except OSError as exc:
        listener.close()
        raise AddressInUse(f"{path} {exc.strerror}; choose another server.unix_socket") from None
    return listener


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0


def check_tls(config: ServerConfig) -> None:
    """Raises ``ConfigError`` unless the certificate and its key can be used, or there is none."""
    if config.tls_certificate is None:
        return
    assert config.tls_key is not None
    for name in ("tls_certificate", "tls_key"):
        path = Path(getattr(config, name))
        try:
            path.read_bytes()
        except OSError as exc:
            raise ConfigError(f"server.{name}: {path} cannot be read: {exc.strerror}") from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            config.tls_certificate, config.tls_key
        )
    except ssl.SSLError as exc:
        raise ConfigError(
            f"server.tls_certificate: {config.tls_certificate} and {config.tls_key} are not a "
            f"certificate and its key in PEM: {exc.reason or exc}"
        ) from None


async def follow_certificate(config: ServerConfig, context: ssl.SSLContext) -> None:
    """Read certificate and key again whenever their files have changed, for connections from then
    on. A pair that cannot be used is logged, and the one before stays in use."""
    assert config.tls_certificate is not None
    known = _stamp(config)
    while True:
        await asyncio.sleep(TLS_POLL_S)
        if (now := _stamp(config)) == known:
            continue
        known = now
        try:
            check_tls(config)
        except ConfigError as error:
            logger.error("the certificate is not replaced: %s", error)
        else:
            context.load_cert_chain(config.tls_certificate, config.tls_key)
            logger.info("the certificate was read again: %s", config.tls_certificate)


def _stamp(config: ServerConfig) -> tuple[tuple[int, int] | None, ...]:
    """What changes when a file is written or replaced, links included."""
    stamps: list[tuple[int, int] | None] = []
    for path in (config.tls_certificate, config.tls_key):
        assert path is not None
        try:
            found = os.stat(path)
        except OSError:
            stamps.append(None)
        else:
            stamps.append((found.st_mtime_ns, found.st_ino))
    return tuple(stamps)
