"""One demo for all tests of this folder. Who kills a part of it waits until it is whole again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import missing
from tests.e2e.demo_process import DemoProcess
from tests.run_folder import make_folder


@pytest.fixture(scope="package")
def demo_process() -> Iterator[DemoProcess]:
    """``sluice demo``, ready."""
    if reason := missing("pg"):
        pytest.skip(reason)
    folder = make_folder()
    with DemoProcess(folder / "data") as demo:
        demo.wait_ready()
        yield demo
    shutil.rmtree(folder)


@pytest.fixture(scope="package")
def demo(demo_process: DemoProcess) -> dict[str, Any]:
    """The ready file of a running demo: ``url, ws_url, api_key, admin_key, pid``."""
    return demo_process.wait_ready()
