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
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenants.shared import EngineRecord
from tests.attack.serving import MODEL, ROOT, Deployment
from tests.e2e.server_process import command_of, is_engine
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
            "RAY_worker_niceness": "0",
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
        return self._processes(is_engine)

    def actors(self, kind: str) -> list[psutil.Process]:
        """The processes of actors of a class."""
        return self._processes(lambda process: command_of(process)[:1] == [f"ray::{kind}"])

    def _processes(self, is_it: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if is_it(process) and process.environ().get("HOME") == self.env["HOME"]:
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
    deadline = time.monotonic() + 240
    while not is_it(found := await engines(deployment)):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.5)


def settings(models: dict[str, Any], **engine: Any) -> dict[str, dict[str, Any]]:
    quick = {"scale_up_after_s": 3.0, "scale_down_after_s": 20.0}
    patient = {"failover_wait_s": 180.0, "cold_start_wait_s": 180.0}
    return {
        "models": {"served_model_name": MODEL, **models},
        "fleet": {"replicas": 0, **quick, **patient},
        "engine": {"long_prefill_token_threshold": 8, "device": "cpu", **engine},
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


async def test_load_comes_and_goes_while_what_places_dies(database: str, nodes: Nodes) -> None:
    """The model sleeps, is woken, gets a second engine, has both replaced, loses one and what Ray
    runs for it, and sleeps again."""
    deployment = Deployment(
        database,
        num_workers=1,
        settings=settings({"min_replicas": 0, "max_replicas": 2}, max_num_seqs=2),
    )
    async with up(deployment, nodes):
        with deployment:  # which is ready although there is no engine
            member, answers = deployment.member("sparse"), Answers()
            asked = questions(400)[:3]
            async with client_of(member) as client:
                listed = (await client.get(f"{deployment.url}/v1/models")).json()["data"]
                assert [model["id"] for model in listed] == [MODEL]
                assert not await engines(deployment)
                expected = [await ask(client, deployment.url, one, answers) for one in asked]
                assert len(await engines(deployment)) == 1

                is_over = asyncio.Event()

                async def chat(number: int) -> None:
                    while not is_over.is_set():
                        got = await ask(client, deployment.url, asked[number % 3], answers)
                        assert got == expected[number % 3]

                chats = [asyncio.create_task(chat(number)) for number in range(6)]
                await wait_for(deployment, lambda found: len(found) == 2)
                before = {one.id: one.epoch for one in await engines(deployment)}
                config = ("--config", str(deployment.config_file))
                await asyncio.to_thread(nodes.sluice, "fleet", "roll", *config)
                assert are_back(before, await engines(deployment), num_new=2)
                for victims in ("ControllerActor", "SupervisorActor"):
                    before = {one.id: one.epoch for one in await engines(deployment)}
                    nodes.actors(victims)[0].kill()
                    await asyncio.sleep(2)
                    nodes.engines()[0].kill()
                    await wait_for(deployment, partial(are_back, before, num_new=1))
                    # A request without a token that loses two engines to a kill would fail.
                    await asyncio.sleep(10)
                is_over.set()
                await asyncio.gather(*chats)
            booked = await deployment.settled(member, answers.num_done)
            assert booked.completion_tokens == answers.num_tokens
            await wait_for(deployment, lambda found: not found)
            assert not psutil.wait_procs(nodes.engines(), timeout=30)[1]


def are_back(before: dict[str, int], found: list[EngineRecord], *, num_new: int) -> bool:
    """Whether the same engines serve, so many at least with a new epoch."""
    is_new = [engine.epoch > before.get(engine.id, 0) for engine in found]
    return {engine.id for engine in found} == before.keys() and sum(is_new) >= num_new
