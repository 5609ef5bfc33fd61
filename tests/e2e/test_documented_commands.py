"""Each command that the site has its reader type is run here as it is printed, or named below with
what runs it in place of this."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from deploy import site
from engine.demo import MODEL_DIR
from tenants.embedded import find_binaries
from tests.e2e.demo_process import DemoProcess
from tests.e2e.examples import PATH, ROOT, Command, Shell, block, commands, example
from tests.e2e.server_process import ServerProcess
from tests.postgres import pg_folder, started

__all__ = ["pg_folder"]

pytestmark = pytest.mark.pg

ON_A_DEMO = (
    ("README.md", "sluice chat"),
    ("README.md", "monthly-tokens"),
    ("README.md", "/v1/rerank"),
    ("gateway/README.md", "/v1/streams"),
    ("docs/webhooks.md", "sluice webhook create"),
)
DEMOS = (("docs/scaling.md", "sluice demo --replicas"), ("README.md", "eagle3"))
IN_PRODUCTION = ("gateway/README.md", "createuser")
BACKUP = ("gateway/README.md", "pg_dump "), ("gateway/README.md", "pg_restore")
ENGINES = ("docs/scaling.md", "sluice fleet drain")

ELSEWHERE = {
    "README.md": {
        "make demo": ".ci/run starts it in a fresh clone",
        "make test": "it would run this",
        "sluice demo --model Qwen": "a GPU and the hub; tests/gateway/commands/test_demo.py",
        "sluice adapter load": "an adapter; tests/e2e/test_adapters.py",
        "curl … -d": "not whole",
    },
    "deploy/README.md": {
        "docker compose": "a container engine; its section What was tried says how it went",
        "kubectl": "a cluster; tests/deploy/test_chart.py renders the chart",
        "helm": "likewise",
    },
    "docs/models.md": {
        "sluice models check Qwen": "the hub; tests/gateway/commands/test_models.py"
    },
    "docs/scaling.md": {
        "sluice serve --replicas 4": "four engines; tests/e2e/test_fleet.py and test_workers.py",
        "sluice engine --config sluice.toml --model chat": "tests/e2e/test_fleet.py",
        "pip install": "the registry",
        "ray start": "a cluster; tests/e2e/test_ray.py",
        "sluice fleet up --ray": "likewise",
        "sluice fleet down --ray": "likewise",
    },
    "tenants/README.md": {
        "export SLUICE_TEST": "other servers of PostgreSQL",
        "python -m pytest": "likewise",
        "SLUICE_TEST": "likewise",
    },
    "tests/README.md": {"make test": "it would run this", "python -m pytest": "likewise"},
}
"""By page: how a command begins, and what it needs or what runs it."""


def is_elsewhere(page: str, command: Command) -> bool:
    return any(command.text.startswith(begin) for begin in ELSEWHERE.get(page, ()))


def bare(command: Command) -> str:
    """Without the remark behind it."""
    return re.sub(r" +# .*", "", command.text)


def test_each_command_is_run_or_named() -> None:
    run = {*ON_A_DEMO, *DEMOS, IN_PRODUCTION, *BACKUP, ENGINES}
    typed = {(page, bare(one)) for page, word in run for one in block(page, word)}
    named = {(page, begin) for page, begins in ELSEWHERE.items() for begin in begins}
    pages = {page for part in site.PAGES.values() for page in part.values()}
    for page in pages - {"docs/openapi.md"}:
        for one in commands(page):
            for command in one:
                is_run = (page, bare(command)) in typed or is_elsewhere(page, command)
                assert is_run, f"{page}: nobody runs {command.text}"
    for page, begin in named:
        texts = [command.text for one in commands(page) for command in one]
        assert any(text.startswith(begin) for text in texts), f"{page} has no {begin}"


@contextmanager
def serving(shell: Shell, command: Command, ready: str) -> Iterator[ServerProcess]:
    """A command that goes on until it is ended, once it has printed ``ready``."""
    words = shlex.split(shell.meant(command.text), comments=True)
    program = words.index("sluice")
    env = dict(word.split("=", 1) for word in words[:program])
    output = shell.folder / f"output-{time.monotonic_ns()}.txt"
    arguments = ["-m", "gateway", *words[program + 1 :]]
    with ServerProcess(
        *arguments, output=output, env={**shell.env, **env}, cwd=shell.folder
    ) as server:
        while ready not in server.output():
            server.is_starting()
        yield server


def ask(url: str, key: str) -> Any:
    """The choices of an answer of the first model."""
    model = _asked(f"{url}/v1/models", key)["data"][0]["id"]
    chat = {"model": model, "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 4}
    return _asked(f"{url}/v1/chat/completions", key, chat)["choices"]


def _asked(url: str, key: str, body: Any = None) -> Any:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


@pytest.mark.nightly
def test_those_for_a_demo(open_folder: Path) -> None:
    folder = open_folder / "demo"
    folder.mkdir()
    (folder / ".venv").symlink_to(sys.prefix)
    with DemoProcess(folder / ".sluice") as demo:
        ready = demo.wait_ready()
        shell = Shell(
            folder,
            {"http://127.0.0.1:8000": ready["url"]},
            {"URL": ready["url"], "KEY": ready["api_key"]},
        )
        told = {
            (page, word): "".join(shell.run(one) for one in block(page, word))
            for page, word in ON_A_DEMO
        }
    budget = told["README.md", "monthly-tokens"]
    assert '"finish_reason":"length"' in budget
    assert "insufficient_quota" in budget
    assert "acme\tdemo\t1\t16\t0\t44\t" in budget
    assert '"index":1' in told["README.md", "/v1/rerank"].partition('"results"')[2][:40]
    assert (folder / "rest").read_bytes().endswith(b"data: [DONE]\n\n")
    assert "acme.example.com" in told["docs/webhooks.md", "sluice webhook create"]


@pytest.mark.nightly
@pytest.mark.parametrize(("page", "word"), DEMOS)
def test_demos(open_folder: Path, page: str, word: str) -> None:
    folder = open_folder / re.sub(r"\W", "", word)
    folder.mkdir()
    (folder / "engine").symlink_to(ROOT / "engine")
    shell = Shell(folder, {"sluice demo": "sluice demo --port 0"})
    command = next(one for one in block(page, word) if word in one.text)
    with serving(shell, command, "Ctrl-C stops everything.") as server:
        found = re.search(r"(http://\S+)/#key=(\S+)", server.output())
        assert found is not None
        assert ask(found[1], found[2])


@pytest.fixture
def production(pg_folder: Path) -> Iterator[Shell]:
    """A folder with the settings of the gateway's README, and an empty PostgreSQL."""
    binaries = find_binaries()
    assert binaries is not None
    with started(binaries, pg_folder) as dsn:
        folder, run = pg_folder / "srv", pg_folder / "run"
        folder.mkdir()
        shell = Shell(
            folder,
            {
                "Qwen/Qwen3-0.6B": str(MODEL_DIR),
                "Qwen/Qwen3-8B": str(MODEL_DIR),
                "postgresql://sluice@db.internal/sluice": f"postgresql://sluice@/sluice?host={run}",
                "postgresql://sluice@db/sluice": f"'postgresql://sluice@/sluice?host={run}'",
                "10.0.0.7": "127.0.0.1",
            },
            {
                "PATH": f"{binaries}:{PATH}",
                "PGHOST": str(run),
                "PGUSER": "postgres",
                "SLUICE_SERVER_PORT": "0",
                "SLUICE_ENGINE_DEVICE": "cpu",
            },
        )
        assert dsn.startswith("postgresql://postgres@")
        settings = example("gateway/README.md", "toml", "# sluice.toml")
        (folder / "sluice.toml").write_text(shell.meant(settings))
        yield shell


def begun(shell: Shell, stack: ExitStack, block: list[Command]) -> tuple[str, str]:
    """Run the commands up to a server that serves: its URL, and the last key that was printed."""
    key = ""
    for command in block:
        if command.text.startswith("sluice serve"):
            server = stack.enter_context(serving(shell, command, "serving on "))
            found = re.search(r"serving on (\S+)", server.output())
            assert found is not None
            return found[1], key
        told = shell.run(command)
        key = next(iter(re.findall(r"sk-slc-\S+", told)), key)
    raise AssertionError("nothing serves")


@pytest.mark.nightly
def test_from_an_empty_database_to_a_restored_one(production: Shell) -> None:
    with ExitStack() as stack:
        url, key = begun(production, stack, block(*IN_PRODUCTION))
        assert ask(url, key)
        for command in block(*BACKUP[0]):
            production.run(command)
    production.run(Command("dropdb sluice"))
    for command in block(*BACKUP[1]):
        production.run(command)
    settings = production.folder / "sluice.toml"
    settings.write_text(settings.read_text().replace("@/sluice?", "@/restored?"))
    with ExitStack() as stack:
        url, _ = begun(production, stack, block(*IN_PRODUCTION)[-1:])
        assert ask(url, key)
        rows = production.run(Command("sluice usage acme"))
    assert re.search(r"acme\t\w+\t2\t", rows), "both requests"


@pytest.mark.nightly
def test_engines_that_join(production: Shell) -> None:
    for command in block(*IN_PRODUCTION)[:6]:
        told = production.run(command)
    key = told.split()[-1]
    engines = [one for one in block(*ENGINES) if not is_elsewhere(ENGINES[0], one)]
    with ExitStack() as stack:
        while engines[0].text.startswith("sluice engine"):
            joined = engines.pop(0)
            server = stack.enter_context(serving(production, joined, " serves "))
            found = re.search(r"the engine (\S+) serves", server.output())
            assert found is not None
            production.stands_for["gpu7:40123"] = found[1]
        url, _ = begun(production, stack, engines)
        for command in engines[1:]:
            told = production.run(command)
        until_answered(url, key)
    assert not engines[1:] or told is not None


def until_answered(url: str, key: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            assert ask(url, key)
        except HTTPError as error:
            if error.code != 503 or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return
