"""Several boards over one folder, as workers have them; one process plays all of them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.metrics.worker_metrics import Family, WorkerMetrics, _Sample, add_ended, merged


class Worker:
    """What one process counts."""

    def __init__(self, folder: Path, pid: int) -> None:
        registry = CollectorRegistry()
        self.requests = Counter("sluice_requests", "R.", ["route"], registry=registry)
        self.latency = Histogram("sluice_latency", "L.", buckets=(1, 2), registry=registry)
        self.sockets = Gauge("sluice_websockets", "S.", registry=registry)
        self.age = Gauge("sluice_changes_age_seconds", "A.", registry=registry)
        self.view = WorkerMetrics(folder, registry)
        own = self.view._own
        self.view._own = own.with_name(own.name.replace(f"{os.getpid()}-", f"{pid}-"))

    def scrape(self) -> dict[str, float]:
        lines = generate_latest(self.view).decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


@pytest.fixture
def workers(tmp_path: Path) -> list[Worker]:
    workers = [Worker(tmp_path, pid) for pid in (11, 12, 13)]
    for number, worker in enumerate(workers, 1):
        worker.requests.labels("/a").inc(number)
        worker.requests.labels(f"/{number}").inc()
        worker.latency.observe(number - 0.5)
        worker.sockets.set(number)
        worker.age.set(10 * number)
        worker.view.write()
    return workers


def test_every_worker_tells_of_all(workers: list[Worker]) -> None:
    for worker in workers:
        found = worker.scrape()
        assert found['sluice_requests_total{route="/a"}'] == 6
        assert [found[f'sluice_requests_total{{route="/{n}"}}'] for n in (1, 2, 3)] == [1, 1, 1]
        assert found['sluice_latency_bucket{le="1.0"}'] == 1
        assert found['sluice_latency_bucket{le="2.0"}'] == 2
        assert found['sluice_latency_bucket{le="+Inf"}'] == found["sluice_latency_count"] == 3
        assert found["sluice_latency_sum"] == 4.5
        assert found["sluice_websockets"] == 6
        assert found["sluice_changes_age_seconds"] == 30  # the worst of them
        assert found["sluice_latency_created"] > 1e9


def test_its_own_figures_are_of_the_moment(workers: list[Worker]) -> None:
    workers[0].requests.labels("/a").inc(100)
    assert workers[0].scrape()['sluice_requests_total{route="/a"}'] == 106
    assert workers[1].scrape()['sluice_requests_total{route="/a"}'] == 6
    workers[0].view.write()
    assert workers[1].scrape()['sluice_requests_total{route="/a"}'] == 106


def test_the_dead_leave_their_counts_and_take_their_gauges(
    workers: list[Worker], tmp_path: Path
) -> None:
    add_ended(tmp_path, 12)
    add_ended(tmp_path, 12)  # nothing is left of it
    add_ended(tmp_path, 99)
    found = workers[0].scrape()
    assert found['sluice_requests_total{route="/a"}'] == 6
    assert found["sluice_latency_count"] == 3
    assert found["sluice_websockets"] == 4
    add_ended(tmp_path, 13)
    assert workers[0].scrape()['sluice_requests_total{route="/a"}'] == 6
    assert workers[0].scrape()["sluice_websockets"] == 1


def test_a_later_worker_with_the_same_pid_counts(workers: list[Worker], tmp_path: Path) -> None:
    add_ended(tmp_path, 12)
    late = Worker(tmp_path, 12)
    late.requests.labels("/a").inc(1000)
    late.view.write()
    assert workers[0].scrape()['sluice_requests_total{route="/a"}'] == 1006


def test_a_file_that_is_being_buried_counts_once(workers: list[Worker], tmp_path: Path) -> None:
    (path,) = tmp_path.glob("12-*")
    data = path.read_bytes()
    add_ended(tmp_path, 12)
    path.write_bytes(data)  # as a scrape sees it that lists the folder a moment earlier
    assert workers[0].scrape()['sluice_requests_total{route="/a"}'] == 6


@pytest.mark.asyncio
async def test_it_goes_on_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.metrics.worker_metrics.INTERVAL_S", 0.001)
    one, other = Worker(tmp_path, 1), Worker(tmp_path, 2)
    running = asyncio.create_task(one.view.run())
    for count in (1, 2):
        one.requests.labels("/a").inc()
        async with asyncio.timeout(30):
            while other.scrape().get('sluice_requests_total{route="/a"}') != count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


_PAGES = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 1000), max_size=3), max_size=5
)


@given(_PAGES)
def test_sums_do_not_depend_on_the_order_or_the_grouping(pages: list[dict[str, int]]) -> None:
    families = [
        [Family("m", "M.", "counter", [_Sample("m_total", {"x": x}, n) for x, n in page.items()])]
        for page in pages
    ]
    whole = _values(merged(families))
    assert whole == _values(merged(reversed(families)))
    assert whole == _values(merged([merged(families[:2]), merged(families[2:])]))
    assert whole == {x: sum(page.get(x, 0) for page in pages) for x in set().union(*pages)}


def _values(families: list[Family]) -> dict[str, float]:
    return {sample.labels["x"]: sample.value for one in families for sample in one.samples}
