"""Collects what needs a GPU only where there is one, and with ``-m gpu`` nothing else.

Files are told by their text and functions by their marks, before the first are imported and the
second parametrized: thousands of cases would only be made to be skipped. A file that is named on
the command line is collected all the same, and its tests skip and say why.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

DEVICES = ("/dev/nvidiactl", "/dev/dxg")
"""The second is that of Windows' Linux."""
_SOME = re.compile(r"\bmark\.gpu\b")
_WHOLE = re.compile(r"^pytestmark = .*\bmark\.gpu\b", re.MULTILINE)


@functools.cache
def has_gpu() -> bool:
    if not any(Path(device).exists() for device in DEVICES):
        return False
    # Imported here: most machines have no such device, and a run of the gateway never pays for it.
    import torch

    return torch.cuda.is_available()


class Selection:
    """A plugin for the process that collects tests."""

    def __init__(self, config: pytest.Config, *, gpu: bool) -> None:
        self._config = config
        self._gpu = gpu
        self._only_gpu = config.getoption("-m") == "gpu"
        self._whole: set[str] = set()
        self._some: set[str] = set()

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if collection_path.suffix != ".py":
            return None
        text = collection_path.read_text()
        if self._only_gpu and not _SOME.search(text):
            return True
        if self._gpu or not _WHOLE.search(text):
            return None
        self._whole.add(str(collection_path))
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(
        self, collector: pytest.Module | pytest.Class, name: str, obj: object
    ) -> list[pytest.Item] | None:
        marks = obj.__dict__.get("pytestmark", []) if hasattr(obj, "__dict__") else []
        needs_gpu = isinstance(marks, list) and any(_is_gpu(mark) for mark in marks)
        return [] if needs_gpu and self._leaves_out(collector) else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """One case of several may need a GPU."""
        items[:] = [
            item
            for item in items
            if item.get_closest_marker("gpu") is None or not self._leaves_out(item)
        ]

    def _leaves_out(self, node: pytest.Item | pytest.Module | pytest.Class) -> bool:
        if self._gpu or node.session.isinitpath(node.path):
            return False
        self._some.add(str(node.path))
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        # pytest asks for all files of a folder, even if only one of them is to run.
        named = [Path(name.partition("::")[0]).resolve() for name in self._config.args]
        whole = sum(any(Path(path).is_relative_to(at) for at in named) for path in self._whole)
        if whole or self._some:
            terminalreporter.write_line(
                f"no CUDA device: left out {whole} files of tests that need one,"
                f" and some tests of {len(self._some)} others"
            )


def _is_gpu(mark: object) -> bool:
    return getattr(mark, "name", None) == "gpu"
