from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import grammar.pool
from grammar.errors import (
    CompileFailed,
    CompileMemory,
    CompilerCrashed,
    CompilerUnavailable,
    CompileTimeout,
    GrammarTooLarge,
    InvalidGrammar,
    UnsupportedKeyword,
)
from grammar.jobs import Backends, CompileJob, Elsewhere
from grammar.pool import WorkerPool
from grammar.spec import GrammarSpec, Limits
from grammar.vocabulary import Vocabulary

INTEGER = GrammarSpec.from_schema({"type": "integer"})
# outlines builds the whole automaton: seconds, and gigabytes, for this.
BOMB = GrammarSpec.from_schema({"type": "string", "pattern": "^[ab]*a[ab]{22}$"})


def job(spec: GrammarSpec) -> CompileJob:
    return CompileJob(spec, leave_light=False)


@pytest.fixture(scope="module")
def pool(vocabulary: Vocabulary) -> Iterator[WorkerPool]:
    with WorkerPool(vocabulary, backends=["llguidance"], timeout_s=20) as pool:
        yield pool


@pytest.fixture(scope="module")
def small_pool(vocabulary: Vocabulary) -> Iterator[WorkerPool]:
    """A second for each job."""
    with WorkerPool(vocabulary, backends=["outlines"], timeout_s=1.0, memory_bytes=1 << 30) as pool:
        yield pool


def test_a_job_is_done_by_a_worker(pool: WorkerPool) -> None:
    compiled = pool.compile(job(INTEGER))
    assert not isinstance(compiled, Elsewhere)
    assert compiled.backend == "llguidance"
    assert compiled.unenforced == ()
    assert len(pool.pids) == 1


def test_refusals_arrive_as_they_were_raised(pool: WorkerPool) -> None:
    with pytest.raises(UnsupportedKeyword) as unsupported:
        pool.compile(job(GrammarSpec.from_schema({"items": {"uniqueItems": True}})))
    assert unsupported.value.keyword == "uniqueItems"
    assert unsupported.value.path == "$.items.uniqueItems"
    with pytest.raises(InvalidGrammar) as invalid:
        pool.compile(job(GrammarSpec.from_schema({"properties": {"a": {"type": "text"}}})))
    assert invalid.value.path == "$.properties.a.type"


def test_too_long_a_job_is_killed_in_time_and_the_next_is_served(small_pool: WorkerPool) -> None:
    with pytest.raises(CompileTimeout, match=r"\b1 s.* \$\.pattern"):
        small_pool.compile(job(BOMB))
    assert small_pool.compile(job(INTEGER)).backend == "outlines"


def test_workers_have_a_low_priority_among_sessions(pool: WorkerPool) -> None:
    """Each session has an equal share where the kernel groups by sessions."""
    pool.compile(job(INTEGER))
    (worker,) = pool.pids
    assert psutil.Process(worker).nice() >= 10
    group = Path(f"/proc/{worker}/autogroup")
    if not group.exists():
        pytest.skip("the kernel does not group by sessions")
    assert int(group.read_text().split()[-1]) >= 10


def test_a_second_worker_needs_no_second_library(vocabulary: Vocabulary) -> None:
    """And neither does one in the place of one that a job has ended."""
    with WorkerPool(
        vocabulary, backends=["outlines"], num_workers=2, timeout_s=1.0, memory_bytes=1 << 30
    ) as pool:
        pool.compile(job(INTEGER))
        (first,) = pool.pids
        server = psutil.Process(first).parent()
        assert server is not None
        with pytest.raises(CompileTimeout):
            pool.compile(job(BOMB))
        pool.compile(job(INTEGER))
        (second,) = pool.pids
        assert second != first
        pool.compile(job(INTEGER))
        assert pool.pids == [second], "one that runs comes before one that is to be forked"
        with ThreadPoolExecutor() as threads:
            bombs = [threads.submit(pool.compile, job(BOMB)) for _ in range(2)]
            assert all(isinstance(bomb.exception(60), CompileTimeout) for bomb in bombs)
        pool.compile(job(INTEGER))
        assert {psutil.Process(pid).parent() for pid in pool.pids} == {server}
        assert server.num_threads() == 1, "a fork has only one"
    assert pool.pids == []
    assert not server.is_running()


def test_too_large_a_job_fails_and_the_next_is_served(vocabulary: Vocabulary) -> None:
    with WorkerPool(vocabulary, backends=["outlines"], timeout_s=60, memory_bytes=64 << 20) as pool:
        with pytest.raises(CompileMemory, match=r"64 MiB.* \$\.pattern"):
            pool.compile(job(BOMB))
        assert pool.compile(job(INTEGER)).backend == "outlines"


def chain(depth: int) -> GrammarSpec:
    """Rules so deep that a backend recurses through all of them."""
    rules = "\n".join(f"r{i}: r{i + 1}" for i in range(depth))
    return GrammarSpec("ebnf", f'start: r0\n{rules}\nr{depth}: "a"')


def test_too_deep_a_grammar_ends_a_worker_well_before_an_engine(
    pool: WorkerPool, vocabulary: Vocabulary
) -> None:
    assert pool.compile(job(chain(400))).backend == "llguidance"
    deep = chain(1_300)
    with pytest.raises(GrammarTooLarge, match="over 1000"):
        pool.compile(job(deep))
    engine = Backends(vocabulary).load("llguidance")
    before = threading.stack_size(8 << 20)
    try:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(engine.compile, deep).result()
    finally:
        threading.stack_size(before)


def test_a_worker_that_dies_between_jobs_is_replaced(pool: WorkerPool) -> None:
    pool.compile(job(INTEGER))
    (before,) = pool.pids
    os.kill(before, signal.SIGKILL)
    pool.compile(job(INTEGER))
    (after,) = pool.pids
    assert after != before
    assert not psutil.pid_exists(before)


def test_a_process_that_forks_workers_is_replaced_with_its_workers(pool: WorkerPool) -> None:
    pool.compile(job(INTEGER))
    (before,) = pool.pids
    server = psutil.Process(before).parent()
    assert server is not None
    server.kill()
    psutil.wait_procs([psutil.Process(before)], timeout=10)
    pool.compile(job(INTEGER))
    (after,) = pool.pids
    assert psutil.Process(after).parent() not in (None, server)


def test_a_worn_out_worker_is_replaced(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar.pool, "_MAX_JOBS", 2)
    with WorkerPool(vocabulary, backends=["llguidance"]) as pool:
        pool.compile(job(INTEGER))
        (first,) = pool.pids
        pool.compile(job(INTEGER))
        assert not psutil.pid_exists(first)
        pool.compile(job(INTEGER))
        (last,) = pool.pids
        assert last != first
    assert not psutil.pid_exists(last)
    assert not pool._alive, "the block closes the pool"


def test_where_no_process_starts_that_is_said_and_tried_again(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no process ids")

    with WorkerPool(vocabulary, backends=["llguidance"]) as pool:
        with monkeypatch.context() as changes:
            changes.setattr(subprocess, "Popen", no_process)
            for _ in range(2):
                with pytest.raises(CompilerUnavailable, match="no process ids"):
                    pool.compile(job(INTEGER))
        assert pool.compile(job(INTEGER)).backend == "llguidance"


def test_a_forgotten_pool_leaves_no_process(vocabulary: Vocabulary) -> None:
    pool = WorkerPool(vocabulary, backends=["llguidance"])
    pool.start()
    (worker,) = pool.pids
    del pool
    gc.collect()
    assert not psutil.pid_exists(worker)


def until_it_works(worker: int) -> None:
    """Wait until a worker that was idle has computed for a while."""
    process = psutil.Process(worker)
    begun = process.cpu_times().user
    while process.cpu_times().user < begun + 0.05:
        time.sleep(0.005)


class Killer(threading.Thread):
    """Kills so many workers while they are at work."""

    def __init__(self, pool: WorkerPool, num_victims: int) -> None:
        super().__init__()
        self._pool = pool
        self.num_left = num_victims
        self.start()

    def run(self) -> None:
        deadline = time.monotonic() + 60
        while self.num_left and time.monotonic() < deadline:
            at_work = [worker for worker in list(self._pool._alive) if worker.num_jobs]
            for worker in at_work[: self.num_left]:
                os.kill(worker.pid, signal.SIGKILL)
                self.num_left -= 1
                while worker in self._pool._alive:
                    time.sleep(0.01)
            time.sleep(0.01)


def test_a_worker_that_something_kills_is_replaced_and_its_job_done(
    vocabulary: Vocabulary,
) -> None:
    # A second of work, which ends well.
    spec = GrammarSpec.from_schema({"type": "string", "pattern": "^[ab]*a[ab]{16}$"})
    with WorkerPool(vocabulary, backends=["outlines"], timeout_s=60, memory_bytes=1 << 30) as pool:
        killer = Killer(pool, num_victims=1)
        assert pool.compile(job(spec)).backend == "outlines"
        killer.join()
        assert killer.num_left == 0


def test_a_worker_that_dies_of_its_job_twice_fails_that_job_only(vocabulary: Vocabulary) -> None:
    with WorkerPool(vocabulary, backends=["outlines"], timeout_s=60, memory_bytes=1 << 30) as pool:
        killer = Killer(pool, num_victims=2)
        with pytest.raises(CompilerCrashed):
            pool.compile(job(BOMB))
        killer.join()
        assert killer.num_left == 0
        assert pool.compile(job(INTEGER)).backend == "outlines"


@pytest.mark.parametrize(
    ("by", "error"),
    [
        (signal.SIGSEGV, GrammarTooLarge),
        (signal.SIGABRT, CompileMemory),
        (signal.SIGPROF, CompileTimeout),
    ],
)
def test_what_a_job_dies_of_is_said_at_once_and_to_its_sender_only(
    vocabulary: Vocabulary, by: signal.Signals, error: type[Exception]
) -> None:
    with (
        WorkerPool(vocabulary, backends=["outlines"], timeout_s=60, memory_bytes=1 << 30) as pool,
        ThreadPoolExecutor(1) as thread,
    ):
        pool.compile(job(INTEGER))
        (worker,) = pool.pids
        server = psutil.Process(worker).parent()
        bomb = thread.submit(pool.compile, job(BOMB))
        until_it_works(worker)
        os.kill(worker, by)
        assert isinstance(bomb.exception(30), error)
        assert pool.compile(job(INTEGER)).backend == "outlines"
        assert server == psutil.Process(pool.pids[0]).parent(), "no library was loaded again"


def test_closing_ends_work_and_leaves_no_process(vocabulary: Vocabulary) -> None:
    pool = WorkerPool(vocabulary, backends=["outlines"], timeout_s=60, memory_bytes=1 << 30)
    pool.compile(job(INTEGER))
    (worker,) = pool.pids
    failures: list[BaseException] = []

    def compile_bomb() -> None:
        try:
            pool.compile(job(BOMB))
        except CompileFailed as error:
            failures.append(error)

    thread = threading.Thread(target=compile_bomb)
    thread.start()
    until_it_works(worker)
    pool.close()
    thread.join(30)
    assert "closed" in str(failures[0])
    assert not psutil.pid_exists(worker)
    pool.close()
    with pytest.raises(CompileFailed, match="closed"):
        pool.compile(job(INTEGER))


@pytest.mark.parametrize("started", [False, True], ids=["as it starts", "at work"])
def test_an_interrupt_ends_a_job_and_its_worker_only(started: bool) -> None:
    spec = GrammarSpec.from_schema({"type": "string", "pattern": "^(a|a)*$"}, strict=False)
    with WorkerPool(timeout_s=60) as pool, ThreadPoolExecutor(1) as thread:
        if started:
            pool.start()
        interrupt = thread.submit(interrupt_at_work, pool, pool.pids)
        with pytest.raises(KeyboardInterrupt):
            pool.validate(spec, f'"{"a" * 40}b"')
        interrupt.result()
        assert not pool._alive
        assert pool.validate(spec, '"a"').passed


def interrupt_at_work(pool: WorkerPool, workers: list[int]) -> None:
    """As soon as a worker computes; without one, as a process loads what workers need."""
    while pool._server is None:
        time.sleep(0.005)
    until_it_works(workers[0] if workers else pool._server.pid)
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_whoever_waits_hears_that_the_pool_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else, whichever of the two threads is first to find the worker dead."""
    spec = GrammarSpec.from_schema({"type": "string", "pattern": "^(a|a)*$"}, strict=False)
    pool = WorkerPool(timeout_s=60)
    pool.start()
    (process,) = pool._alive
    end = process.close

    def end_slowly() -> int:
        time.sleep(0.1)  # gives other threads time to get in between
        return end()

    monkeypatch.setattr(process, "close", end_slowly)
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(pool.validate, spec, f'"{"a" * 40}b"') for _ in range(3)]
        until_it_works(process.pid)
        pool.close()
        failures = [future.exception(30) for future in waiting]
    assert [type(failure) for failure in failures] == [CompileFailed] * 3
    assert {str(failure) for failure in failures} == {"the grammar compiler was closed"}
    assert not psutil.pid_exists(process.pid)
    assert not pool._alive


def test_a_job_that_ends_as_the_pool_closes_leaves_no_process() -> None:
    pool = WorkerPool()
    process = pool._lease()
    pool.close()
    pool._release(process)
    assert not psutil.pid_exists(process.pid)
    assert not pool._alive


def test_a_worker_ends_with_its_parent() -> None:
    program = (
        "import os\n"
        "from grammar.pool import WorkerPool\n"
        "pool = WorkerPool()\n"
        "pool.start()\n"
        "print(pool.pids[0], flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    worker = int(result.stdout)
    deadline = time.monotonic() + 60
    while psutil.pid_exists(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(worker)


def test_workers_run_side_by_side(vocabulary: Vocabulary) -> None:
    with WorkerPool(
        vocabulary, backends=["outlines"], timeout_s=60, num_workers=2, memory_bytes=1 << 30
    ) as pool:

        def compile_bomb() -> None:
            with contextlib.suppress(CompileFailed):
                pool.compile(job(BOMB))

        stuck = threading.Thread(target=compile_bomb)
        pool.start()
        stuck.start()
        time.sleep(0.1)
        pool.compile(job(INTEGER))
        assert stuck.is_alive()
        pool.close()
        stuck.join()


def test_limits_travel(vocabulary: Vocabulary) -> None:
    limits = Limits(max_enum_values=2)
    with (
        WorkerPool(vocabulary, backends=["llguidance"], limits=limits) as pool,
        pytest.raises(InvalidGrammar, match="more than 2 values"),
    ):
        pool.compile(job(GrammarSpec.from_schema({"enum": [1, 2, 3]})))


def test_validation_needs_no_vocabulary_and_can_be_killed() -> None:
    schema = {"type": "string", "pattern": "^(a|a)*$"}
    spec = GrammarSpec.from_schema(schema, strict=False)
    with WorkerPool(timeout_s=0.5) as pool:
        assert pool.validate(spec, '"aaa"').passed
        report = pool.validate(spec, '"ab"')
        assert report.violations[0].path == "$"
        with pytest.raises(CompileTimeout):
            pool.validate(spec, f'"{"a" * 40}b"')
        assert pool.validate(spec, '"a"').passed


def test_a_job_without_processor_time_is_not_called_too_costly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = GrammarSpec.from_schema({"type": "boolean"}, strict=False)
    with WorkerPool() as pool:
        monkeypatch.setattr("grammar.pool._WALL_PER_CPU", 0.0)
        with pytest.raises(CompilerUnavailable, match="processor time"):
            pool.validate(spec, "true")
        monkeypatch.undo()
        assert pool.validate(spec, "true").passed


def test_without_an_eos_nothing_is_compiled() -> None:
    spec = GrammarSpec.from_schema({"type": "boolean"})
    with WorkerPool(Vocabulary([b"true", b"false"], [7], [], size=2)) as pool:
        with pytest.raises(CompileFailed, match="no token that ends a text"):
            pool.compile(job(spec))
        assert pool.validate(spec, "true").passed
