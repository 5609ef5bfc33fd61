"""What a run of the fast tier costs, compared at its end with ``budget.toml``.

CPU seconds are compared, since they hardly depend on what else the machine does: those of the tests
of each folder, with all programs that they start. A fixed bit of work, done again and again between
the tests, says how fast the machine was meanwhile. A folder that costs a third more than its budget
fails the run, and so does a sum 15 % over; where other programs were busy, and so slowed
down everything, it is only told.

The budget is that of the first run in a fresh clone, which compiles modules and emulated kernels:
what a clean machine runs is compared with its like, and every later run costs less.
"""

from __future__ import annotations

import os
import statistics
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

TABLE = Path(__file__).with_name("budget.toml")
TOLERANCE = 1.3
TOLERANCE_OF_ALL = 1.15
"""What makes one folder dearer by chance makes another cheaper."""
SLACK_S = 10.0
"""So much more is no reason to fail, however small a folder's budget is: some tests send for a time
what the machine can, and a first start reads from disk."""
QUIET = 0.15
"""The share of the machine that others may take while it still counts as quiet."""
PYTEST, POSTGRES = "pytest itself", "the shared PostgreSQL"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_SHORT_S = 1.0


@dataclass
class Costs:
    """Of one process of the run, or of all of them."""

    cpu_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By folder of tests."""
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Wall time, by file of tests."""
    works_s: list[float] = field(default_factory=list)
    """What the fixed bit of work took each time."""

    def add(self, other: Costs) -> None:
        for name, cost in other.cpu_s.items():
            is_shared = name == POSTGRES  # all look at the same server
            self.cpu_s[name] = max(self.cpu_s[name], cost) if is_shared else self.cpu_s[name] + cost
        for name, cost in other.seconds.items():
            self.seconds[name] += cost
        self.works_s += other.works_s

    @property
    def work_s(self) -> float:
        return statistics.median(self.works_s)


def folder_of(file: str) -> str:
    return "/".join(file.split("/")[:-1][:2])


def tree_cpu_s(pid: int, *, without: int | None = None) -> float:
    """CPU seconds of a process, its descendants and all whose end they have waited for."""
    children: dict[int, list[int]] = {}
    cpu_s: dict[int, float] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_bytes().rpartition(b") ")[2].split()
            except OSError:
                continue  # it has just ended
            children.setdefault(int(fields[1]), []).append(int(name))
            cpu_s[int(name)] = sum(map(int, fields[11:15])) * _TICK_S
    waiting, total = [pid], 0.0
    while waiting:
        if (found := waiting.pop()) != without:
            total += cpu_s.get(found, 0.0)
            waiting += children.get(found, [])
    return total


def work_s() -> float:
    """CPU seconds that a fixed bit of work takes here and now: the best of three, as the first
    finds caches full of other things."""
    taken = []
    for _ in range(3):
        began = time.process_time()
        words = {str(number): number * number % 977 for number in range(15_000)}
        sorted(words, key=words.__getitem__)
        taken.append(time.process_time() - began)
    return min(taken)


class Meter:
    """A plugin for each process that runs tests; ``costs`` is complete after the last test."""

    def __init__(self, server: Path) -> None:
        self.costs = Costs()
        self._pid_file = server / "data" / "postmaster.pid"
        self._cpu_s = 0.0
        self._at = 0.0

    def pytest_collection_finish(self) -> None:
        self._look(PYTEST)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        result = yield
        file = item.nodeid.partition("::")[0]
        if nextitem is None or nextitem.nodeid.partition("::")[0] != file:
            elapsed_s = time.monotonic() - self._at
            self.costs.seconds[file] += elapsed_s
            if nextitem is None or elapsed_s > _SHORT_S:  # a look takes some milliseconds
                self._look(folder_of(file))
        return result

    def _look(self, folder: str) -> None:
        server = self._server()
        now_s = tree_cpu_s(os.getpid(), without=server)
        self.costs.cpu_s[folder] += now_s - self._cpu_s
        if server is not None:
            self.costs.cpu_s[POSTGRES] = tree_cpu_s(server)
        self.costs.works_s.append(work_s())
        self._cpu_s, self._at = now_s, time.monotonic()

    def _server(self) -> int | None:
        try:
            return int(self._pid_file.read_text().split()[0])
        except (OSError, IndexError, ValueError):
            return None

    # -- in forks, whose costs are their own

    def begin(self) -> None:
        self.costs = Costs()
        self._cpu_s, self._at = 0.0, time.monotonic()

    def told(self) -> Any:
        costs = self.costs
        return {
            "cpu_s": dict(costs.cpu_s),
            "seconds": dict(costs.seconds),
            "works_s": costs.works_s,
        }

    def add(self, told: Any) -> None:
        self.costs.add(Costs(**told))


class Keeper:
    """A plugin for the first process of a run: it adds up, tells and decides."""

    def __init__(self, own: Meter) -> None:
        self._own = own
        self._began = time.monotonic()
        self._busy_s = _busy_s()
        self._lines: list[str] = []

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        is_recorded = session.config.getoption("--record-budget")
        if not (is_recorded or _is_whole_fast_tier(session.config)):
            return
        costs = self._own.costs
        if not costs.works_s:  # it has not come to its tests
            return
        elapsed_s = time.monotonic() - self._began
        if session.config.getoption("num_processes") != "0":  # it has run none itself
            costs.cpu_s[PYTEST] = time.process_time()
        others = (_busy_s() - self._busy_s - sum(costs.cpu_s.values())) / elapsed_s
        table = tomllib.loads(TABLE.read_text())
        lines, is_over = compared(costs, table)
        self._lines = [*lines, f"others used {others:.2f} cores meanwhile"]
        if is_recorded:
            TABLE.write_text(as_toml(renewed(table, costs)))
        elif is_over and others > QUIET * (os.cpu_count() or 1):
            self._lines.append("over budget, which does not count on a machine this busy")
        elif is_over and session.exitstatus == pytest.ExitCode.OK:
            self._lines.append("over budget: make it cheaper, or say why not and --record-budget")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._lines:
            terminalreporter.section("CPU seconds, and those of the budget")
            for line in self._lines:
                terminalreporter.write_line(line)


def compared(costs: Costs, table: Mapping[str, Any]) -> tuple[list[str], bool]:
    """A line for each folder and their sum, and whether one of these is over its budget."""
    slower = costs.work_s / table["work_s"]
    rows = [
        (folder, costs.cpu_s[folder], table["cpu_s"].get(folder, 0.0), TOLERANCE)
        for folder in sorted(costs.cpu_s)
    ]
    all_costs, all_budgets = sum(costs.cpu_s.values()), sum(table["cpu_s"].values())
    rows.append(("all", all_costs, all_budgets, TOLERANCE_OF_ALL))
    lines, is_over = [], False
    for name, cost, budget, tolerance in rows:
        over = cost / slower > budget * tolerance + SLACK_S
        is_over |= over
        lines.append(f"{name:24} {cost / slower:7.1f} {budget:7.1f}{'  OVER' if over else ''}")
    lines.append(f"this machine takes {slower:.2f} times as long as the one of the budget")
    return lines, is_over


def renewed(table: Mapping[str, Any], measured: Costs) -> Costs:
    """The table's costs, with those that were measured in place of what it had of these folders.
    What all folders share is only known from a run of all of them."""
    slower = measured.work_s / table["work_s"]
    found = Costs(works_s=measured.works_s)
    found.cpu_s |= {name: cost * slower for name, cost in table["cpu_s"].items()}
    is_whole = found.cpu_s.keys() <= measured.cpu_s.keys()
    found.cpu_s |= {
        name: cost
        for name, cost in measured.cpu_s.items()
        if is_whole or name not in (PYTEST, POSTGRES)
    }
    folders = set(map(folder_of, measured.seconds))
    found.seconds |= {
        file: cost for file, cost in table["seconds"].items() if folder_of(file) not in folders
    }
    found.seconds |= measured.seconds
    return found


def as_toml(costs: Costs) -> str:
    longest = sorted(costs.seconds.items(), key=lambda pair: -pair[1])
    lines = [
        "# What the fast tier costs, written by `make test ARGS=--record-budget`.",
        f"work_s = {costs.work_s:.5f}",
        "\n[cpu_s]",
        *(f'"{name}" = {cost:.1f}' for name, cost in sorted(costs.cpu_s.items())),
        "\n# Files that take long, by wall time: they are started first.\n[seconds]",
        *(f'"{name}" = {cost:.0f}' for name, cost in longest if cost >= 2),
    ]
    return "\n".join(lines) + "\n"


def _is_whole_fast_tier(config: pytest.Config) -> bool:
    return (
        config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and config.getoption("-m") == "not nightly"
        and not config.getoption("-k")
        and not config.getoption("--collect-only")
        and not config.getoption("lf", None)
    )


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)
