"""Sums the metrics of all workers of a server, so that any of them can report the whole server's.

Once a second each worker writes its metrics to a file of its own, in a folder that the supervisor
made. The worker that is scraped adds up all files and its own current metrics. The supervisor adds
the counts of a dead worker to one file (``add_ended``), because Prometheus would take a sum that
decreases for a restart. What a killed worker counted in its last second is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from uuid import uuid4

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

INTERVAL_S = 1.0
_ENDED, _SUFFIX = "ended.json", ".worker"
_LARGEST = {
    "sluice_build_info",
    "sluice_changes_age_seconds",
    "sluice_ledger_lag_seconds",
    "process_start_time_seconds",
}
"""Gauges of which the largest is reported; all others are summed."""


class _Sample(msgspec.Struct, array_like=True, frozen=True):
    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, array_like=True, frozen=True):
    """One metric with all its samples."""

    name: str
    text: str
    kind: str
    samples: list[_Sample]


class _Ended(msgspec.Struct):
    """The sums of all workers that died."""

    families: list[Family] = []
    included: list[str] = []
    """Names of the files included here: a reader that has read one of them already must not count
    it twice."""


_decoder = msgspec.json.Decoder(list[Family])
_ended_decoder = msgspec.json.Decoder(_Ended)


class WorkerMetrics(Collector):
    """One worker's view: its own registry, and the files that the others wrote."""

    def __init__(self, folder: Path, registry: CollectorRegistry) -> None:
        self._folder = folder
        self._registry = registry
        self._own = folder / f"{os.getpid()}-{uuid4().hex}{_SUFFIX}"

    async def run(self) -> None:
        """Write this worker's figures periodically, forever. Raises ``OSError``."""
        while True:
            self.write()
            await asyncio.sleep(INTERVAL_S)

    def write(self) -> None:
        """Write this worker's figures once. Raises ``OSError``."""
        _write(self._own, msgspec.json.encode(_families(self._registry)))

    def collect(self) -> Iterable[Metric]:
        """The metrics of all workers. Raises ``OSError``."""
        others: dict[str, list[Family]] = {}
        for path in self._folder.glob(f"*{_SUFFIX}"):
            if path != self._own:
                with contextlib.suppress(FileNotFoundError):  # included meanwhile
                    others[path.name] = _decoder.decode(path.read_bytes())
        ended = _read_ended(self._folder)
        living = [page for name, page in others.items() if name not in ended.included]
        return map(_metric, merged([_families(self._registry), *living, ended.families]))


def add_ended(folder: Path, pid: int) -> None:
    """Keep the counts of a worker that has ended; its gauges end with it. Raises ``OSError``."""
    for path in folder.glob(f"{pid}-*{_SUFFIX}"):
        counted = [one for one in _decoder.decode(path.read_bytes()) if one.kind != "gauge"]
        ended = _read_ended(folder)
        families = merged([ended.families, counted])
        now = _Ended(families=families, included=[*ended.included, path.name])
        _write(folder / _ENDED, msgspec.json.encode(now))
        path.unlink()


def merged(pages: Iterable[Sequence[Family]]) -> list[Family]:
    """Merge pages into one family for each name: sums, except for creation times and
    ``_LARGEST``."""
    families: dict[str, Family] = {}
    values: dict[str, dict[tuple[object, ...], _Sample]] = {}
    for family in (family for page in pages for family in page):
        families.setdefault(family.name, family)
        samples = values.setdefault(family.name, {})
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            known = samples.get(key)
            value = sample.value if known is None else _joined(known, sample.value)
            samples[key] = _Sample(sample.name, sample.labels, value)
    return [
        Family(name, family.text, family.kind, list(values[name].values()))
        for name, family in families.items()
    ]


def _joined(known: _Sample, value: float) -> float:
    if known.name.endswith("_created"):
        return min(known.value, value)
    return max(known.value, value) if known.name in _LARGEST else known.value + value


def _families(registry: CollectorRegistry) -> list[Family]:
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            [_Sample(one.name, dict(one.labels), one.value) for one in metric.samples],
        )
        for metric in registry.collect()
    ]


def _metric(family: Family) -> Metric:
    metric = Metric(family.name, family.text, family.kind)
    for sample in family.samples:
        metric.add_sample(sample.name, sample.labels, sample.value)
    return metric


def _read_ended(folder: Path) -> _Ended:
    try:
        return _ended_decoder.decode((folder / _ENDED).read_bytes())
    except FileNotFoundError:
        return _Ended()


def _write(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all."""
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.replace(path)
