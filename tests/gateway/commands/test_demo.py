"""``sluice demo`` in this process; ``tests/e2e/on_one_demo`` has it in one of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import shlex
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.demo import MODEL_DIR
from engine.errors import ModelLoadError
from gateway import logs
from gateway.commands import demo
from gateway.commands.data_dir import DataDir, Keys, Running
from gateway.commands.demo import Demo, Question
from gateway.config import ServerConfig
from gateway.errors import AddressInUse, ConfigError, SetupError
from gateway.processes import server
from tenants.embedded import EmbeddedPostgres
from tenants.errors import EmbeddedPostgresError
from tenants.postmaster import Postmaster
from tests.e2e.conftest import open_folder
from tests.postgres import FAST

__all__ = ["open_folder"]


def make(folder: Path, *, ready_file: Path | None = None, **options: Any) -> Demo:
    """options: of ``Demo``, and ``port`` and ``model`` as from the environment."""
    env = {"SLUICE_SERVER_PORT": str(options.pop("port", 0))}
    if "model" in options:
        env["SLUICE_ENGINE_MODEL"] = options.pop("model")
    config = demo.configure(None, folder, env=env)
    return Demo(config, data_dir=folder, ready_file=ready_file, **options)


# -- what is refused before anything is started


def test_a_taken_port_is_named_with_the_option(tmp_path: Path) -> None:
    with server.bind(ServerConfig(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=rf"{port} is taken; choose another --port"):
            make(tmp_path / "data", port=port).run()
    assert not (tmp_path / "data").exists()


def test_a_port_that_this_folders_demo_has_leads_to_its_page(tmp_path: Path) -> None:
    with server.bind(ServerConfig(port=0)) as taken:
        url = server.url_of(taken)
        running = Running(url=url, ws_url="", api_key="sk-1", admin_key="sk-2", pid=os.getpid())
        running.write(tmp_path / "ready.json")
        with pytest.raises(AddressInUse) as caught:
            make(tmp_path, port=taken.getsockname()[1]).run()
    assert str(caught.value) == (
        f"{url.removeprefix('http://')} is taken by the demo that runs here already, at "
        f"{url}/#key=sk-1; choose another --port or --host"
    )


def test_a_folder_that_cannot_be_made_is_named_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"cannot be made.*--data-dir"):
        make(tmp_path / "file" / "data").run()


@pytest.mark.parametrize("ready_file", ["", "missing/ready.json"])
def test_a_ready_file_that_cannot_be_written_is_named_with_the_option(
    tmp_path: Path, ready_file: str
) -> None:
    with pytest.raises(SetupError, match=r"cannot be written; choose another --ready-file"):
        make(tmp_path / "data", ready_file=tmp_path / ready_file).run()
    assert not (tmp_path / "data" / "postgres").exists()


def test_a_model_that_is_not_there_starts_no_database(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="/no/such/model"):
        make(tmp_path / "data", model="/no/such/model").run()
    assert not (tmp_path / "data" / "postgres").exists()


# -- its settings


def test_settings_come_from_a_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "mine" / "sluice.toml"
    file.parent.mkdir()
    file.write_text(
        '[server]\nport = 81\n[engine]\nenable_lora = true\n[models]\nadapters_dir = "a"\n'
    )
    config = demo.configure(file, tmp_path / "data", env={"SLUICE_SERVER_PORT": "82"})
    assert (config.server.port, config.server.log_level) == (82, "warning")
    assert (config.engine.model, config.model_name) == (str(MODEL_DIR), "demo")
    assert config.engine.enable_lora
    assert config.models.adapters_dir == str(file.parent / "a")
    assert config.tenants.secrets_file == str(tmp_path / "data" / "secrets.json")


def test_another_model_goes_by_its_own_name(tmp_path: Path) -> None:
    named = {"SLUICE_ENGINE_MODEL": "Qwen/Qwen3-8B"}
    assert demo.configure(None, tmp_path, env=named).model_name == "Qwen3-8B"
    named["SLUICE_MODELS_SERVED_MODEL_NAME"] = "mine"
    assert demo.configure(None, tmp_path, env=named).model_name == "mine"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("server.workers", "2"),
        ("tenants.dsn", "postgresql://db/sluice"),
        ("tenants.direct_dsn", "postgresql://db/sluice"),
        ("tenants.secrets_file", "mine.json"),
    ],
)
def test_what_a_demo_decides_itself_is_refused(tmp_path: Path, key: str, value: str) -> None:
    variable = f"SLUICE_{key.replace('.', '_').upper()}"
    with pytest.raises(ConfigError, match=rf"^{key} is for `sluice serve`"):
        demo.configure(None, tmp_path, env={variable: value})


def test_a_chat_template_of_the_settings_makes_a_model_take_chats(tmp_path: Path) -> None:
    folder = shutil.copytree(MODEL_DIR, tmp_path / "base")
    (folder / "chat_template.jinja").unlink()
    env = {"SLUICE_ENGINE_MODEL": str(folder)}
    assert not demo._takes_chats(demo.configure(None, tmp_path, env=env))
    env["SLUICE_MODELS_CHAT_TEMPLATE"] = str(MODEL_DIR / "chat_template.jinja")
    assert demo._takes_chats(demo.configure(None, tmp_path, env=env))


# -- a run of it


@contextmanager
def until_ready(folder: Path, act: Callable[[Running], None]) -> Iterator[None]:
    """Beside a demo on ``folder``: does ``act`` once it is ready, then ends it as Ctrl-C does."""

    def act_and_end(running: Running) -> None:
        try:
            act(running)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    with once_ready(folder, act_and_end):
        yield


@contextmanager
def once_ready(folder: Path, act: Callable[[Running], None]) -> Iterator[None]:
    """Beside a demo on ``folder``: does ``act`` once it is ready."""
    failures: list[BaseException] = []

    def run() -> None:
        deadline = time.monotonic() + 100
        while (running := DataDir(folder).running()) is None:
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        try:
            act(running)
        except BaseException as exc:
            failures.append(exc)

    beside = threading.Thread(target=run)
    beside.start()
    try:
        yield
    finally:
        beside.join()
    if failures:
        raise failures[0]


def ask(url: str, api_key: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        msgspec.json.encode(body),
        {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


@pytest.mark.pg
def test_it_tells_what_works_and_keeps_its_keys_while_they_do(
    open_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = open_folder / "data"
    seen: list[Running] = []

    def act(running: Running) -> None:
        seen.append(running)
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
        answer = ask(running.url, running.api_key, body | {"max_tokens": 5})
        assert answer["choices"][0]["message"]["content"]
        assert (folder / "ready.json").exists()

    def run() -> str:
        with until_ready(folder, act):
            make(folder, replay_tokens_per_s=1000.0).run()
        assert not (folder / "ready.json").exists()
        return capsys.readouterr().out

    said = run()
    (first,) = seen
    assert f"{first.url}/#key={first.api_key}" in said
    assert f"{first.url}/admin/#key={first.admin_key}" in said
    assert_curl_line(said, first)

    run()
    assert (seen[1].api_key, seen[1].admin_key) == (first.api_key, first.admin_key)

    # As after `sluice key revoke`, or with a file of another database.
    DataDir(folder).save_keys(Keys(api_key="sk-slc-another", admin_key=first.admin_key))
    run()
    assert first.api_key != seen[2].api_key != "sk-slc-another"
    assert DataDir(folder).load_keys() == Keys(api_key=seen[2].api_key, admin_key=seen[2].admin_key)


def assert_curl_line(said: str, running: Running) -> None:
    """A shell reads it as one request with a body that is JSON."""
    (line,) = re.findall(r"^curl .*$", said, re.MULTILINE)
    words = shlex.split(line)
    assert f"{running.url}/v1/chat/completions" in words
    assert f"Authorization: Bearer {running.api_key}" in words
    body = json.loads(words[words.index("-d") + 1])
    assert body == {**Question("demo", is_chat=True).body, "stream": True}


@pytest.mark.pg
def test_a_server_that_fails_takes_its_database_down(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise SetupError("the server does not answer its own /readyz: it is broken")

    monkeypatch.setattr(demo, "_probe", broken)
    folder = open_folder / "data"
    with pytest.raises(SetupError, match="it is broken"):
        make(folder, replay_tokens_per_s=1000.0).run()
    assert not (folder / "postgres" / "postmaster.pid").exists()
    assert not (folder / "ready.json").exists()


def kill_database(folder: Path) -> int:
    """Returns the id of the process."""
    postmaster = Postmaster.find(DataDir(folder).postgres / "data")
    assert postmaster is not None
    postmaster.process.kill()
    return postmaster.process.pid


@pytest.mark.pg
def test_a_database_that_is_killed_is_started_again(
    open_folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "configure", lambda *_: None)  # it would take the log from the test
    folder = open_folder / "killed"
    restarted = "PostgreSQL had ended, killed or crashed, and was started again"

    def act(running: Running) -> None:
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
        killed = kill_database(folder)
        deadline = time.monotonic() + 60
        # Either may come first: the gateway is there as soon as the server is.
        while any(text not in caplog.text for text in ("Listening to PostgreSQL", restarted)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        started = Postmaster.find(DataDir(folder).postgres / "data")
        assert started is not None
        assert started.process.pid != killed
        answer = ask(running.url, running.api_key, body | {"max_tokens": 5})
        assert answer["choices"][0]["message"]["content"]

    with until_ready(folder, act):
        make(folder, replay_tokens_per_s=1000.0).run()
    told = [record.getMessage() for record in caplog.records]
    assert told.count(restarted) == 1
    began = [line for line in told if line.startswith("Not listening to ")]
    assert sum("s now)" not in line for line in began) == 1


@pytest.mark.pg
@pytest.mark.asyncio
async def test_a_database_is_watched_again_once_files_can_be_opened(
    open_folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "DATABASE_CHECK_S", 0.01)
    postgres = EmbeddedPostgres(open_folder / "watched", settings=FAST)
    await asyncio.to_thread(postgres.start)
    watching = asyncio.create_task(demo._keep_running(postgres))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        while "Whether PostgreSQL runs is unknown: [Errno 24]" not in caplog.text:
            assert not watching.done()
            await asyncio.sleep(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    os.kill(postgres.pid or 0, signal.SIGKILL)
    try:
        while "was started again" not in caplog.text:
            assert not watching.done()
            await asyncio.sleep(0.01)
    finally:
        await demo._end(watching)
        await asyncio.to_thread(postgres.stop)
    assert "PostgreSQL is watched again" in caplog.text


@pytest.mark.pg
def test_a_database_that_does_not_start_again_ends_it_with_the_reason(open_folder: Path) -> None:
    folder = open_folder / "lost"

    def act(running: Running) -> None:
        data = DataDir(folder).postgres / "data"
        (data / "postgresql.conf").write_text("work_mem = '1 banana'\n")
        kill_database(folder)

    with (
        once_ready(folder, act),
        pytest.raises(EmbeddedPostgresError, match=r"did not start.*1 banana"),
    ):
        make(folder, replay_tokens_per_s=1000.0).run()
    assert not (folder / "ready.json").exists()


# -- the first question


def test_a_model_that_takes_no_chats_is_asked_to_go_on() -> None:
    assert Question("m", is_chat=True).path == "/v1/chat/completions"
    question = Question("m", is_chat=False)
    assert question.path == "/v1/completions"
    assert question.body == {"model": "m", "prompt": demo.QUESTION}


@contextmanager
def answering(**statuses: int) -> Iterator[tuple[str, list[str]]]:
    """A server that answers paths with these statuses; its URL and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = b"because"
            self.send_response(statuses[self.path.rpartition("/")[2]])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}", asked
        finally:
            listening.shutdown()
            thread.join()


CHAT = Question("demo", is_chat=True)


def test_a_server_that_answers_passes() -> None:
    with answering(readyz=200, completions=200) as (url, asked):
        demo._probe(url, "key", CHAT)
    assert asked == ["/readyz", "/v1/chat/completions"]


@pytest.mark.parametrize(
    ("statuses", "told"),
    [
        ({"readyz": 503, "completions": 200}, "/readyz answered 503: because"),
        ({"readyz": 200, "completions": 500}, "/v1/chat/completions answered 500: because"),
    ],
)
def test_a_server_that_does_not_is_not_announced(statuses: dict[str, int], told: str) -> None:
    with answering(**statuses) as (url, _), pytest.raises(SetupError, match=told):
        demo._probe(url, "key", CHAT)


def test_a_server_that_is_not_there_is_named() -> None:
    with server.bind(ServerConfig(port=0)) as taken:
        url = server.url_of(taken)
    with pytest.raises(SetupError, match="does not answer its own /readyz"):
        demo._probe(url, "key", CHAT)


# -- stopping


@pytest.mark.asyncio
async def test_blocking_work_is_waited_for_even_when_cancelled() -> None:
    """PostgreSQL's start must be over before its stop begins."""
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(30)
        ended.set()

    working = asyncio.create_task(demo._in_thread(work))
    await asyncio.to_thread(begun.wait, 30)
    working.cancel()
    await asyncio.sleep(0.02)
    assert not working.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert ended.is_set()


def test_the_bundled_model_takes_chats(tmp_path: Path) -> None:
    assert demo._takes_chats(demo.configure(None, tmp_path, env={}))
