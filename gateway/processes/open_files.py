"""Raises the limit on open files of this process, because each connection needs one."""

from __future__ import annotations

import logging
import resource

RESERVED = 256
"""Open files besides connections of clients: connections to the database, libraries, logs."""

logger = logging.getLogger(__name__)


def allow_connections(max_connections: int) -> None:
    """Raise the soft limit to what the connections need, and warn if the hard limit is below that.

    Linux starts processes with a soft limit of 1024 because of ``select``, which nothing here uses.
    At the limit, connections are not refused, but wait without an answer.
    """
    needed = max_connections + RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        logger.warning(
            "this process may open %d files, too few for server.max_connections = %d: raise the "
            "hard limit (`ulimit -Hn`, systemd's LimitNOFILE) to %d, or allow fewer connections",
            *(allowed, max_connections, needed),
        )
