"""What a process does to itself before it works on what clients send: here, and where a gateway
decodes images."""

from __future__ import annotations

import os
import resource
import time

# What a client wants done must not slow the steps of an engine, nor the streams of a gateway.
_NICENESS = 10
_ATTEMPTS = 20


def set_limit(kind: int, value: int) -> None:
    """Set a limit, at most to our own hard limit."""
    _, most = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY and (value == resource.RLIM_INFINITY or value > most):
        value = most
    resource.setrlimit(kind, (value, most))


def give_way() -> None:
    """Take a low priority. Where the kernel shares time among sessions (autogroup), that of our
    session counts, and not that of its processes."""
    os.nice(_NICENESS)
    for _ in range(_ATTEMPTS):
        try:
            with open("/proc/self/autogroup", "w") as file:
                file.write(str(_NICENESS))
        except BlockingIOError:  # Without privileges, all of a machine may do so every 0.1 s.
            time.sleep(0.1)
        except OSError:  # The kernel has no such groups.
            return
        else:
            return


def address_space() -> int:
    """Bytes mapped by this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
