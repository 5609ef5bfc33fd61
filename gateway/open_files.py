"""How many files this process may have open: a connection takes one."""

from __future__ import annotations

import logging
import resource

RESERVED = 256
"""For what is open besides connections of clients: of the database, libraries, logs."""

logger = logging.getLogger(__name__)


def allow_connections(max_connections: int) -> None:
    """Raise the soft limit as far as they need, and warn if the hard one is below that.

    Linux starts a process with a soft limit of 1024 for the sake of ``select``, which nothing here
    uses. At the limit a server does not refuse: connections that it cannot open are left waiting.
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
