"""The process of a rank other than the first: loads its part of the model, and runs each step that
rank 0 runs, until rank 0 ends.

``engine.runner.ranks.processes`` starts it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections import deque

import msgspec

from engine.errors import EngineError
from engine.garbage import tune_collector
from engine.runner.ranks import records
from engine.runner.ranks.channel import Reader, Ring
from engine.runner.ranks.processes import Orders
from engine.runner.runner import TorchRunner
from engine.scheduler.plan import LaunchedStep

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def run_steps(runner: TorchRunner, reader: Reader) -> None:
    """Run steps for ever."""
    in_flight: deque[LaunchedStep] = deque()
    while True:
        match records.decode(reader.receive()):
            case records.Forward(plan):
                runner.forward(plan)
                if not plan.is_constrained:
                    in_flight.append(runner.sample(None))
            case records.Sample() as sample:
                in_flight.append(runner.sample(sample.mask))
            case records.Collect():
                in_flight.popleft().collect()
            case records.Draft(asked, num_tokens, wait) if runner.stage.is_last:
                runner.draft(asked, num_tokens, wait=wait)
            case records.KeepAdapter() as kept:
                assert runner.adapters is not None
                runner.adapters.keep(kept.name, kept.adapter)
            case records.DropAdapter(name):
                assert runner.adapters is not None
                runner.adapters.drop(name)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    name = f"engine, rank {orders.rank}"
    logging.basicConfig(format=f"{name}: %(levelname)s: %(message)s", level=logging.INFO)
    _end_with_rank_0()
    # Imported here, so that a rank whose engine ends at once does not load torch first.
    from engine.runner.startup.load import load_rank

    try:
        runner = load_rank(orders.config, orders.rank, orders.rendezvous)
    except EngineError as error:
        logger.error("%s", error)
        raise SystemExit(1) from error
    tune_collector()
    run_steps(runner, Reader(Ring(orders.ring), orders.rank - 1, orders.event))


def _end_with_rank_0() -> None:
    """Rank 0 holds the other end of stdin."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="rank-0-watch", daemon=True).start()
    if sys.platform == "linux":
        # The kernel's signal also reaches a rank that is stopped, or waits in a collective.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
