"""The processes of all ranks but the first, as rank 0 sees them: started, told each step, watched.

None of them outlives rank 0, however it ends. If one of them dies or is stopped, the engine is lost
as a whole, because the others would wait for it in their next collective for ever.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.launch import IDLE_THREADS, import_path
from engine.parallel.stage import Stage
from engine.runner.ranks import records
from engine.runner.ranks.channel import Ring, Writer

logger = logging.getLogger(__name__)

MODULE = "engine.runner.startup.rank"
_LAST_WORDS_S = 2.0
"""How long rank 0 may take to find for itself why a rank could not load, before it is lost for
that."""

OnLost = Callable[[str], None]


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank reads from the first line of its stdin, as JSON."""

    config: EngineConfig
    rank: int
    ring: int
    """Descriptors: of the steps' memory, of this rank's eventfd, and of the file in which the ranks
    find each other."""
    event: int
    rendezvous: int


class RankProcesses:
    """All ranks but rank 0."""

    def __init__(self, config: EngineConfig, on_lost: OnLost | None = None) -> None:
        """on_lost: called with one line, by a thread, when a rank is lost. None: only what uses the
        engine next hears of it."""
        self._on_lost = on_lost
        self.lost: str | None = None
        """Why the engine is lost."""
        self.stage: Stage | None = None
        """What to abort then, once there is one."""
        self.is_loaded = False
        self._closing = False
        self.rendezvous = os.memfd_create("sluice-ranks", 0)
        ring = Ring.create()
        events = [os.eventfd(0, 0) for _ in range(1, config.num_ranks)]
        self._descriptors = [self.rendezvous, ring, *events]
        self._writer = Writer(Ring(ring), events)
        self._lock = threading.Lock()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        started = [threading.Event() for _ in events]
        for index, event in enumerate(events):
            orders = Orders(
                config=config,
                rank=1 + index,
                ring=ring,
                event=event,
                rendezvous=self.rendezvous,
            )
            # The kernel ends a process with the thread that started it: this one lives as long.
            threading.Thread(
                target=self._run,
                args=(orders, started[index]),
                name=f"rank-{1 + index}",
                daemon=True,
            ).start()
        for each in started:
            each.wait()

    def send(self, record: records.Record, *, wake: bool = True) -> None:
        self._writer.send(records.encode(record), wake=wake)

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        """What fails here because a rank is gone fails with an ``EngineError`` that says so."""
        if self.lost is not None:
            raise EngineError(self.lost)
        try:
            yield
        except EngineError:
            raise
        except Exception as error:
            # The connection may break a moment before the process is seen to have ended.
            until = time.monotonic() + 1.0
            while self.lost is None and time.monotonic() < until:
                time.sleep(0.01)
            if self.lost is None:
                raise
            raise EngineError(self.lost) from error

    def close(self) -> None:
        """End them; no process is left afterwards."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for descriptor in self._descriptors:
            os.close(descriptor)

    # ---- in a thread for each rank --------------------------------------------------------------

    def _run(self, orders: Orders, started: threading.Event) -> None:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE],
            stdin=subprocess.PIPE,
            env={
                **IDLE_THREADS,
                **os.environ,
                "PYTHONPATH": import_path(),
                **_devices(orders.rank),
            },
            pass_fds=(orders.ring, orders.event, orders.rendezvous),
            process_group=0,  # Ctrl-C in a terminal is for rank 0
        )
        self._processes[orders.rank] = process
        started.set()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(msgspec.json.encode(orders) + b"\n")
            process.stdin.flush()  # left open: its end tells the rank that rank 0 died
        self._lose(orders.rank, _wait(process.pid))

    def _lose(self, rank: int, how: str) -> None:
        if not self.is_loaded:
            time.sleep(_LAST_WORDS_S)
        with self._lock:
            if self._closing or self.lost is not None:
                return
            self.lost = f"rank {rank} {how}: the engine ends"
        logger.error("%s", self.lost)
        for process in self._processes.values():
            process.kill()
        if self._on_lost is not None:
            self._on_lost(self.lost)
        elif self.stage is not None:
            self.stage.abort()


def _wait(pid: int) -> str:
    """How a child ended, or that it was stopped, which no collective would survive either."""
    while True:
        try:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        except ChildProcessError:
            return "is gone"
        if found is None:
            continue
        name = next((s.name for s in signal.Signals if s == found.si_status), found.si_status)
        match found.si_code:
            case os.CLD_EXITED:
                return f"exited with code {found.si_status}"
            case os.CLD_STOPPED | os.CLD_TRAPPED:
                return f"was stopped by {name}"
        return f"was killed by {name}"


def _devices(rank: int) -> dict[str, str]:
    """Environment in which the first GPU is the rank's own, with the others behind it: peers read
    each other's memory."""
    import torch

    count = torch.cuda.device_count()
    if rank >= count:
        return {}
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = given.split(",") if given else [str(index) for index in range(count)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices[rank:] + devices[:rank])}
