"""Workers that cannot start, die, or do not stop; small programs play them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil
import pytest

from engine.client.client import EngineClient
from engine.config import EngineConfig
from gateway.config import Config, parse
from gateway.errors import SetupError
from gateway.processes import supervisor
from gateway.processes.supervisor import Supervisor, Worker
from gateway.processes.worker import Launch, Retire
from tests.gateway.serving import until

pytestmark = pytest.mark.asyncio

SERVES = "import sys; sys.stdin.readline(); print('{}', flush=True); sys.stdin.read()"
FAILS = """import sys; sys.stdin.readline(); print('{"error": "no port left"}', flush=True)"""
SILENT = "import sys; sys.stdin.readline(); sys.exit(3)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVES}"
RETIRES = """import sys
sys.stdin.readline()
print('{}', flush=True)
print('x' * 200_000 + '\\n{"engine": "1", "epoch": 7}', flush=True)
sys.stdin.read()
"""
TOLD = """import sys
sys.stdin.readline()
print('{}', flush=True)
print(sys.stdin.readline(), flush=True)
sys.stdin.read()
"""
BEATS = """import sys, time
sys.stdin.readline()
print('{}', flush=True)
while True:
    time.sleep(0.01)
    print(flush=True)
"""
HANGS = "import sys, time; sys.stdin.readline(); time.sleep(600)"
LATE = """import sys, time
sys.stdin.readline()
for number in range(400):
    time.sleep(0.01)
    print('{}' if number == 200 else 'words' if number == 100 else '', flush=True)
time.sleep(600)
"""
DIES = "import sys; sys.stdin.readline(); print('{}', flush=True); sys.exit(7)"


@dataclass
class Programs:
    """What the workers run, in the order of their birth; the last one for all that follow."""

    texts: list[str]
    launches: list[Launch] = field(default_factory=list)
    num_asked: int = 0
    born: list[tuple[int, float]] = field(default_factory=list)
    retired: list[Retire] = field(default_factory=list)

    async def spawn(self, launch: Launch, on_retire: Callable[[Retire], None]) -> Worker:
        text = self.texts[min(self.num_asked, len(self.texts) - 1)]
        self.num_asked += 1
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", text),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(launch) + b"\n")
        self.born.append((process.pid, time.monotonic()))
        self.launches.append(launch)
        return Worker(process, on_retire)

    def alive(self) -> list[int]:
        return [pid for pid, _ in self.born if psutil.pid_exists(pid)]


def config(workers: int, **server: float) -> Config:
    return parse({"engine": {"model": "m"}, "server": {"workers": workers, **server}})


@contextlib.asynccontextmanager
async def running(
    programs: Programs,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    workers: int = 1,
    **server: float,
) -> AsyncIterator[tuple[Supervisor, asyncio.Task[None], asyncio.Event]]:
    """A supervisor at work; at the end it is told to stop, and nobody is left."""
    monkeypatch.setattr(supervisor.Worker, "spawn", programs.spawn)
    monkeypatch.setattr(supervisor, "MIN_BACKOFF_S", 0.02)
    launch = Launch(
        config=config(workers, **server),
        engine_addresses=("ipc://nowhere",),
        metrics_folder=str(folder),
    )
    boss = Supervisor(launch, programs.retired.append)
    boss._stop_timeout_s = 0.3
    ready = asyncio.Event()
    task = asyncio.create_task(boss.run(ready.set))
    try:
        yield boss, task, ready
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert programs.alive() == []
        assert boss.pids == []


async def test_ready_is_said_once_all_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = Programs([SERVES])
    async with running(programs, tmp_path, monkeypatch, workers=3) as (boss, _, ready):
        await ready.wait()
        assert sorted(boss.pids) == sorted(programs.alive())
        assert len(boss.pids) == 3
        assert {launch.engine_addresses for launch in programs.launches} == {("ipc://nowhere",)}


@pytest.mark.parametrize(
    ("program", "told"), [(FAILS, "no port left"), (SILENT, "ended with code 3")]
)
async def test_one_that_cannot_start_takes_the_others_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, told: str
) -> None:
    programs = Programs([SERVES, program])
    async with running(programs, tmp_path, monkeypatch, workers=2) as (_, task, ready):
        with pytest.raises(ExceptionGroup) as caught:
            await task
        assert caught.group_contains(SetupError, match=told)
        assert not ready.is_set()


async def test_a_dead_worker_is_replaced_and_its_neighbour_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = Programs([SERVES])
    async with running(programs, tmp_path, monkeypatch, workers=2) as (boss, _, ready):
        await ready.wait()
        killed, kept = boss.pids
        psutil.Process(killed).kill()
        await until(lambda: len(programs.born) == 3 and len(boss.pids) == 2)
        assert kept in boss.pids
        assert killed not in boss.pids


async def test_replacements_that_die_come_ever_more_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "MAX_BACKOFF_S", 0.16)
    programs = Programs([DIES, FAILS, DIES, SILENT, SERVES])
    async with running(programs, tmp_path, monkeypatch) as (boss, task, ready):
        await ready.wait()
        await until(lambda: len(programs.born) == 5 and boss.pids == [programs.born[-1][0]])
        assert not task.done()
        births = [moment for _, moment in programs.born]
        for earlier, later, backoff_s in zip(
            births, births[1:], (0.02, 0.04, 0.08, 0.16), strict=False
        ):
            assert later - earlier >= backoff_s
    assert "ended with code 7 and is replaced" in caplog.text
    assert "could not be replaced: no port left" in caplog.text


async def test_one_that_does_not_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    programs = Programs([STUBBORN])
    async with running(programs, tmp_path, monkeypatch) as (_, task, ready):
        await ready.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert "did not stop in 0.3 s and is killed" in caplog.text


async def test_a_second_ctrl_c_hurries_those_that_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = Programs([STUBBORN])
    async with running(programs, tmp_path, monkeypatch, workers=2) as (boss, task, ready):
        boss._stop_timeout_s = 1000.0  # longer than the test may take
        await ready.wait()
        task.cancel()
        await asyncio.sleep(0.02)
        boss.hurry()  # SIGINT, which they do not ignore
        await asyncio.gather(task, return_exceptions=True)


async def test_a_worker_whose_figures_cannot_be_read_is_replaced_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    programs = Programs([SERVES])
    async with running(programs, tmp_path, monkeypatch) as (boss, _, ready):
        await ready.wait()
        (pid,) = boss.pids
        (tmp_path / f"{pid}-a.worker").write_bytes(b"half a num")
        psutil.Process(pid).kill()
        await until(lambda: len(programs.born) == 2 and boss.pids)
    assert "is not in the metrics" in caplog.text


async def test_one_that_hangs_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    programs = Programs([BEATS])
    async with running(programs, tmp_path, monkeypatch, workers=2, worker_hang_timeout_s=2.0) as (
        boss,
        _,
        ready,
    ):
        await ready.wait()
        hanging, kept = boss.pids
        psutil.Process(hanging).suspend()
        await until(lambda: len(programs.born) == 3 and len(boss.pids) == 2)
        assert kept in boss.pids
        assert not psutil.pid_exists(hanging)
    assert (
        f"worker {hanging} is killed: its event loop has stood still for most of 2 s" in caplog.text
    )
    assert f"worker {kept} " not in caplog.text


async def test_one_that_stalls_again_and_again_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a flooded loop does, which sends a beat between two stalls."""
    programs = Programs([BEATS])
    async with running(programs, tmp_path, monkeypatch, worker_hang_timeout_s=1.0) as (
        boss,
        _,
        ready,
    ):
        await ready.wait()
        (stalling,) = boss.pids
        for _ in range(40):
            if len(programs.born) > 1:
                break
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(stalling).suspend()
                await asyncio.sleep(0.6)  # of the ten beats a second, six are missed
                psutil.Process(stalling).resume()
                await asyncio.sleep(0.15)
        await until(lambda: len(programs.born) == 2)
        assert not psutil.pid_exists(stalling)


async def test_time_in_which_the_supervisor_stands_still_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = Programs([BEATS])
    async with running(programs, tmp_path, monkeypatch, worker_hang_timeout_s=1.0) as (
        boss,
        _,
        ready,
    ):
        await ready.wait()
        pid = boss.pids[0]
        for _ in range(3):
            psutil.Process(pid).suspend()
            time.sleep(1.5)  # noqa: ASYNC251
            psutil.Process(pid).resume()
            await asyncio.sleep(0.3)
        assert boss.pids == [pid]


async def test_one_that_hangs_before_it_serves_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "START_SILENCE_S", 1.0)
    programs = Programs([DIES, HANGS, BEATS])
    async with running(programs, tmp_path, monkeypatch, worker_hang_timeout_s=0.5) as (boss, _, _):
        await until(lambda: len(programs.born) == 3)
        (hung, since), (_, then) = programs.born[1:]
        assert then - since > 0.9
        assert (
            f"worker {hung} is killed: its event loop has stood still for most of 1 s"
            in caplog.text
        )
        assert "could not be replaced: a gateway worker hung and was killed" in caplog.text
        await asyncio.sleep(1.2)
        assert boss.pids == [programs.born[2][0]]


async def test_the_first_start_does_not_wait_for_one_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "START_SILENCE_S", 0.5)
    programs = Programs([BEATS, HANGS])
    async with running(programs, tmp_path, monkeypatch, workers=2, worker_hang_timeout_s=0.5) as (
        _,
        task,
        ready,
    ):
        with pytest.raises(ExceptionGroup) as caught:
            await task
        assert caught.group_contains(SetupError, match="hung and was killed")
        assert not ready.is_set()


async def test_a_start_may_take_long_while_the_loop_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as while the engine reads a large model. Once it serves the shorter time holds."""
    monkeypatch.setattr(supervisor, "START_SILENCE_S", 1.5)
    programs = Programs([LATE, BEATS])
    async with running(programs, tmp_path, monkeypatch, worker_hang_timeout_s=0.5) as (_, _, ready):
        async with asyncio.timeout(30):
            await ready.wait()
        (late, since), ready_at = programs.born[0], time.monotonic()
        assert ready_at - since > 1.9
        assert len(programs.born) == 1
        await until(lambda: len(programs.born) == 2)
        assert (
            f"worker {late} is killed: its event loop has stood still for most of 0.5 s"
            in caplog.text
        )


async def test_a_worker_may_ask_for_another_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = Programs([RETIRES])
    async with running(programs, tmp_path, monkeypatch) as (_, _, ready):
        await ready.wait()
        async with asyncio.timeout(10):
            while not programs.retired:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert programs.retired == [Retire(engine="1", epoch=7)]


async def test_all_workers_are_told_how_an_engine_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These say it back, as what a worker says of an engine."""
    programs = Programs([TOLD])
    async with running(programs, tmp_path, monkeypatch, workers=2) as (boss, _, ready):
        await ready.wait()
        engine = EngineClient(EngineConfig(model="m"), name="1")
        engine.epoch, engine.was_killed = 7, True
        boss.tell(engine)
        async with asyncio.timeout(10):
            while len(programs.retired) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert programs.retired == [Retire(engine="1", epoch=7)] * 2
