"""Runs a command that is told to end when the thread that started it does:

    python -m gateway.fleet.placement.tied PARENT_PID COMMAND…

That also holds when its parent is killed, and when Ray's processes of a node are.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent:  # or it has ended already
        os.execvp(command[0], command)


if __name__ == "__main__":
    main()
