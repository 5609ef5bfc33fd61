"""Engines of the bundled model on a simulated cluster: nodes are lost, load comes and goes.

python -m pytest -m nightly tests/e2e/test_ray.py
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenants.shared import EngineRecord
from tests.attack.serving import ROOT, Deployment
from tests.e2e.server_process import is_engine
from tests.e2e.test_fleet import Answers, ask, client_of, questions
from tests.postgres import fresh_database, postgres_server

__all__ = ["postgres_server"]
pytestmark = [
    pytest.mark.pg,
    pytest.mark.nightly,
    pytest.mark.asyncio,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray"),
]


@pytest.fixture
def database(postgres_server: str) -> Iterator[str]:
    yield from fresh_database(postgres_server)


class Nodes:
    """A cluster of this machine: a head without room for engines, and nodes for a few each."""

    def __init__(self, home: Path, num_nodes: int, num_cpus: int) -> None:
        # Ray keeps tokens in the user's home, and its sockets need a short path.
        self.env = {
            **os.environ,
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": tempfile.mkdtemp(prefix="ray-", dir="/tmp"),
        }
        with (home / "nodes.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.ray_nodes", str(num_nodes), str(num_cpus)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.env,
            )
        self.address = self._answer()
        assert self.address, (home / "nodes.log").read_text()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, command: str) -> None:
        """``lose NODE_ID`` or ``add``."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._answer() == "done"

    def sluice(self, *arguments: str, within_s: float = 300) -> str:
        """The output of a command that succeeds."""
        done = subprocess.run(
            [sys.executable, "-m", "gateway", *arguments],
            capture_output=True,
            text=True,
            timeout=within_s,
            env=self.env,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def engines(self) -> list[psutil.Process]:
        """The processes of engines on its nodes."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if is_engine(process) and process.environ().get("HOME") == self.env["HOME"]:
                    found.append(process)
        return found

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()  # at which it ends
        shutil.rmtree(self.env["RAY_TMPDIR"], ignore_errors=True)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    cluster = Nodes(tmp_path, 2, 2)
    try:
        yield cluster
    finally:
        cluster.close()


async def engines(deployment: Deployment) -> list[EngineRecord]:
    """Those of the registry that serve."""
    async with deployment.store() as store:
        found = await store.shared.list_engines()
    return [engine for engine in found if engine.condition == "ready"]


async def wait_for(deployment: Deployment, is_it: Callable[[list[EngineRecord]], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_it(found := await engines(deployment)):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.5)


def settings(models: dict[str, Any], **fleet: Any) -> dict[str, dict[str, Any]]:
    quick = {"scale_up_after_s": 3.0, "scale_down_after_s": 15.0, "failover_wait_s": 90.0}
    return {
        "models": models,
        "fleet": {"replicas": 0, **quick, **fleet},
        "engine": {"long_prefill_token_threshold": 8, "device": "cpu"},
    }


@contextlib.asynccontextmanager
async def up(deployment: Deployment, cluster: Nodes) -> AsyncIterator[str]:
    """What `sluice fleet up` says."""
    config = str(deployment.config_file)
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(deployment.__exit__, True)  # unless it was entered
            command = ("fleet", "up", "--ray", cluster.address, "--config", config)
            told = await asyncio.to_thread(cluster.sluice, *command)
            stack.pop_all()
        yield told
    finally:
        await asyncio.to_thread(cluster.sluice, "fleet", "down", "--ray", cluster.address)
        assert not psutil.wait_procs(cluster.engines(), timeout=10)[1]


async def test_a_node_is_lost_under_streams(database: str, nodes: Nodes) -> None:
    deployment = Deployment(database, num_workers=1, settings=settings({"min_replicas": 2}))
    async with up(deployment, nodes) as told:
        assert told.count(": ready") == 2
        with deployment:
            placed = await engines(deployment)
            assert len({engine.node for engine in placed}) == 2  # spread
            listed = nodes.sluice("fleet", "list", "--config", str(deployment.config_file))
            assert all(f"\t{engine.node}\n" in listed for engine in placed)
            lost = placed[0]
            assert lost.node is not None

            member, answers = deployment.member("streaming"), Answers()
            asked = questions(1200)[:3]
            async with client_of(member) as client:
                expected = [await ask(client, deployment.url, one, answers) for one in asked]
                running = [
                    asyncio.create_task(ask(client, deployment.url, asked[i % 3], answers))
                    for i in range(9)
                ]
                await asyncio.sleep(1.0)
                await asyncio.to_thread(nodes.tell, f"lose {lost.node.partition('(')[2][:-1]}")
                assert await asyncio.gather(*running) == [expected[i % 3] for i in range(9)]

            def is_replaced(found: list[EngineRecord]) -> bool:
                return len(found) == 2 and all(one.node != lost.node for one in found)

            await wait_for(deployment, is_replaced)
            booked = await deployment.settled(member, answers.num_done)
            assert booked.completion_tokens == answers.num_tokens
            assert len(nodes.engines()) == 2
