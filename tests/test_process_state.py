from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import process_state


def _ignore_sigusr1() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda: os.chdir("/"), "working directory"),
        (lambda: os.umask(0o777), "umask"),
        (_ignore_sigusr1, "signal handlers"),
        (lambda: sys.setrecursionlimit(1234), "recursion limit"),
        (gc.disable, "collector"),
    ],
)
def test_what_is_left_changed_is_named(
    change: Callable[[], object], name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    mask, depth = os.umask(0o022), sys.getrecursionlimit()
    try:
        with pytest.raises(AssertionError, match=f"left changed.*'{name}'"), process_state.kept():
            change()
    finally:
        os.umask(mask)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        sys.setrecursionlimit(depth)
        gc.enable()


def test_logging_is_put_back() -> None:
    root, server = logging.getLogger(), logging.getLogger("uvicorn")
    handlers, level = root.handlers[:], root.level
    before = process_state._setup(server)
    with process_state.kept():
        root.handlers[:] = [logging.StreamHandler(sys.stderr)]
        root.setLevel(logging.DEBUG)
        server.addHandler(logging.StreamHandler(sys.stderr))
        server.setLevel(logging.ERROR)
        server.propagate, server.disabled = False, True
    assert (root.handlers, root.level) == (handlers, level)
    assert process_state._setup(server) == before


def test_what_programs_set_for_themselves_is_put_back() -> None:
    import torch

    def settings() -> tuple[object, ...]:
        return (
            gc.get_threshold(),
            torch.get_num_threads(),
            torch.get_float32_matmul_precision(),
            resource.getrlimit(resource.RLIMIT_NOFILE),
        )

    before = settings()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with process_state.kept():
        gc.set_threshold(12_345)
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.set_float32_matmul_precision("medium")
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, most))
        assert settings() != before
    assert settings() == before


def test_what_libraries_set_when_they_are_imported_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICE_KEPT", "as it was")
    monkeypatch.setenv("SLUICE_GONE", "as it was")
    environment, path = dict(os.environ), sys.path[:]
    with process_state.kept():
        os.environ.update(SLUICE_X="1", SLUICE_KEPT="changed")
        del os.environ["SLUICE_GONE"]
        sys.path.insert(0, "/x")
    assert dict(os.environ) == environment
    assert sys.path == path
