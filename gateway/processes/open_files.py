"""Raises the limit on open files of this process, because each connection needs one, and accepts
only as many connections as it leaves room for."""

from __future__ import annotations

import logging
import resource
from typing import NamedTuple

from gateway.errors import SetupError

RESERVED = 80
"""Open files besides connections of clients: an idle gateway has about 35; then there are the rest
of the connections to the database, those of other workers, pipes to a new engine, and files."""
MAX_BACKLOG = 2048
ENDLESS = 2**20
"""Open files to allow where there is no limit: the most that Linux allows by default."""

logger = logging.getLogger(__name__)


class Accepted(NamedTuple):
    """How many connections this process accepts."""

    connections: int
    """Connections served at once."""
    backlog: int
    """Further connections that the kernel may hold. All of them may be accepted in one turn of the
    event loop, before the first that has to leave is closed, so they have files of their own."""


def allow_connections(max_connections: int) -> Accepted:
    """Raise the soft limit to the hard one, and warn if that is too low for the connections.

    Linux starts processes with a soft limit of 1024 because of ``select``, which nothing here uses.
    Where files run out, connections are closed without an answer, and whatever else needs a file
    fails. Raises ``SetupError`` if the limit leaves no file for a connection.
    """
    limit = _raised()
    room = limit - RESERVED
    if room < 2:
        raise SetupError(
            f"this process may open {limit} files, too few to serve: raise the hard limit "
            f"(`ulimit -Hn`, systemd's LimitNOFILE) to {RESERVED + max_connections + MAX_BACKLOG}"
        )
    backlog = max(1, min(MAX_BACKLOG, room // 4))
    accepted = Accepted(min(max_connections, room - backlog), backlog)
    if accepted.connections < max_connections:
        logger.warning(
            "this process may open %d files, enough for %d connections, not for "
            "server.max_connections = %d: raise the hard limit "
            "(`ulimit -Hn`, systemd's LimitNOFILE) to %d, or allow fewer connections",
            *(limit, accepted.connections, max_connections),
            RESERVED + max_connections + MAX_BACKLOG,
        )
    return accepted


def _raised() -> int:
    """The limit, after the soft one was raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = ENDLESS if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit
