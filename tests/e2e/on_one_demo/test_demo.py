"""``sluice demo`` from the outside: what it prints works, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from engine.demo import MODEL_DIR
from tests.e2e.demo_process import DemoProcess, maps_torch
from tests.e2e.examples import ROOT, example

pytestmark = pytest.mark.pg

REPLAY = ("--replay", "200")
"""For what does not depend on the engine: one that starts without torch, in a tenth of the time."""
SLOW_REPLAY = ("--replay", "50")


def ask(ready: dict[str, Any]) -> dict[str, Any]:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}
    request = urllib.request.Request(
        f"{ready['url']}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {ready['api_key']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        answer: dict[str, Any] = json.loads(response.read())
        return answer


def begin_endless_stream(ready: dict[str, Any]) -> socket.socket:
    """A stream that runs until the model's length; returns once its first bytes are there."""
    body = json.dumps(
        {
            "model": "demo",
            "messages": [{"role": "user", "content": "Hello!"}],
            "stream": True,
            "ignore_eos": True,
        }
    )
    host, port = ready["url"].removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\n"
        f"Authorization: Bearer {ready['api_key']}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    assert b"200 OK" in connection.recv(4096)
    return connection


def test_a_user_can_chat_soon(demo_process: DemoProcess) -> None:
    """With the install done: 15 s at most, and 6 s measured for the first run of a folder, on two
    idle cores. A machine that does much else is given six times as long."""
    assert demo_process.ready_after_s < 90


def test_the_ready_file_says_where_everything_is(
    demo: dict[str, Any], demo_process: DemoProcess
) -> None:
    assert set(demo) == {"url", "ws_url", "api_key", "admin_key", "pid"}
    assert demo["pid"] == demo_process.process.pid
    assert demo["ws_url"] == demo["url"].replace("http", "ws") + "/v1/chat"
    assert ask(demo)["choices"][0]["message"]["role"] == "assistant"


def test_what_holds_keys_is_for_its_owner_only(demo_process: DemoProcess) -> None:
    folder = demo_process.data_dir
    for name in ("keys.json", "secrets.json", "ready.json"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    assert demo_process.ready_file.stat().st_mode & 0o777 == 0o600


def test_the_curl_line_works_as_printed(demo_process: DemoProcess) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on the PATH")
    demo_process.wait_ready()
    (line,) = [line for line in demo_process.output().splitlines() if line.startswith("curl ")]
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    events = [event for event in done.stdout.split("\n\n") if event]
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


def test_the_readmes_tenant_whose_budget_ends(demo_process: DemoProcess, tmp_path: Path) -> None:
    """Answered until the budget ends, then refused, and both in the ledger."""
    script = example("README.md", "bash", "sluice tenant limits")
    tenant = f"acme-{uuid4()}"  # another each time: the test may be repeated
    for stands_for, what in (
        ("http://127.0.0.1:8000", demo_process.wait_ready()["url"]),
        ("acme", tenant),
    ):
        assert stands_for in script
        script = script.replace(stands_for, what)
    (tmp_path / ".sluice").symlink_to(demo_process.data_dir)
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    created, limits, answered, refused, used = done.stdout.splitlines()
    assert created.startswith(f"Created tenant {tenant} (")
    assert "60" in limits.split("\t")
    answer = json.loads(answered)
    assert answer["choices"][0]["finish_reason"] == "length"
    counts = answer["usage"]
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (16, 44)
    assert json.loads(refused)["error"]["code"] == "insufficient_quota"
    assert used.split("\t") == [tenant, "demo", "1", "16", "0", "44", "0"]


def test_the_page_it_names_is_the_chat_page(
    demo: dict[str, Any], demo_process: DemoProcess
) -> None:
    url = f"{demo['url']}/#key={demo['api_key']}"
    assert url in demo_process.output()
    with urllib.request.urlopen(demo["url"], timeout=60) as response:
        assert b"<title>Sluice</title>" in response.read()


def test_torch_is_in_the_engine_and_not_in_the_gateway(demo_process: DemoProcess) -> None:
    demo_process.wait_ready()
    assert maps_torch(demo_process.engine().pid)
    assert not maps_torch(demo_process.process.pid)


@pytest.mark.parametrize(
    ("number", "moment", "options"),
    [
        (signal.SIGINT, "Starting PostgreSQL", REPLAY),
        pytest.param(signal.SIGTERM, "Starting the engine", (), marks=pytest.mark.nightly),
        pytest.param(signal.SIGINT, "Loading", (), marks=pytest.mark.nightly),
    ],
)
def test_it_can_be_stopped_while_it_starts(
    open_folder: Path, number: signal.Signals, moment: str, options: tuple[str, ...]
) -> None:
    with DemoProcess(open_folder / moment, *options) as demo:
        while moment not in demo.output():
            assert demo.process.poll() is None, demo.output()
            time.sleep(0.01)
        demo.look()
        demo.process.send_signal(number)
        assert demo.wait() == 0
        assert demo.survivors() == []
        assert "Traceback" not in demo.output()


@pytest.mark.nightly
def test_another_model_one_that_takes_no_chats(open_folder: Path, tmp_path: Path) -> None:
    """A base model: it is asked to go on with a text, and the curl line asks the same."""
    shutil.copytree(MODEL_DIR, tmp_path / "my-base")
    (tmp_path / "my-base" / "chat_template.jinja").unlink()
    (tmp_path / "sluice.toml").write_text("[engine]\nmax_model_len = 321\n")
    arguments = ("--model", str(tmp_path / "my-base"), "--config", str(tmp_path / "sluice.toml"))
    with DemoProcess(open_folder / "data", *arguments, name="base") as demo:
        ready = demo.wait_ready()
        assert "/v1/completions" in demo.output()
        assert '"model": "my-base"' in demo.output()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(ready)  # for "demo"
        models = urllib.request.Request(
            f"{ready['url']}/v1/models", headers={"Authorization": f"Bearer {ready['api_key']}"}
        )
        with urllib.request.urlopen(models, timeout=30) as response:
            assert json.load(response)["data"][0]["max_model_len"] == 321
        assert demo.stop() == 0
    assert demo.survivors() == []


def test_a_model_that_is_not_there_is_named_before_anything_starts(tmp_path: Path) -> None:
    with DemoProcess(tmp_path / "data", "--model", "/no/such/model", name="missing") as demo:
        assert demo.wait() == 1
        assert (
            demo.output().splitlines()[-1].startswith("sluice: there is no folder '/no/such/model'")
        )
    assert not (tmp_path / "data" / "postgres").exists()


# -- how it ends: the next tests take the demo down and use its folder


def test_ctrl_c_takes_everything_down_but_what_another_shares(
    demo: dict[str, Any], demo_process: DemoProcess
) -> None:
    """A terminal sends SIGINT to the whole group at once, engine and all. The database is one with
    that of a second demo in the same folder, which works on."""
    folder = demo_process.data_dir
    with DemoProcess(folder, *REPLAY, name="two") as two:
        ready = two.wait_ready()
        assert (ready["api_key"], ready["admin_key"]) == (demo["api_key"], demo["admin_key"])
        assert json.loads((folder / "ready.json").read_bytes()) == demo
        assert f"at {demo['url']}: this one shares" in " ".join(two.output().split())
        names = {process.name() for process in demo_process.look()}
        assert "postgres" in names
        demo_process.interrupt_group()
        assert demo_process.wait() == 0
        assert "Traceback" not in demo_process.output()
        assert not (folder / "ready.json").exists()
        ask(ready)
        assert two.stop() == 0
        assert [*demo_process.survivors(), *two.survivors()] == []


def test_a_killed_demo_leaves_no_engine_and_the_next_one_starts(
    demo: dict[str, Any], demo_process: DemoProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of the gateway: the engine follows it; the database waits for the next run. A second
    Ctrl-C of that does not wait for requests."""
    monkeypatch.setenv("SLUICE_SERVER_SHUTDOWN_TIMEOUT_S", "100")
    assert demo_process.process.poll() is not None, "the test before has ended it"
    folder = demo_process.data_dir
    with DemoProcess(folder, *REPLAY, name="killed") as killed:
        killed.wait_ready()
        engine = killed.engine()
        killed.process.kill()
        killed.process.wait()
        engine.wait(timeout=60)
        with DemoProcess(folder, *SLOW_REPLAY, name="after") as after:
            ready = after.wait_ready()
            assert ready["api_key"] == demo["api_key"]
            ask(ready)
            stream = begin_endless_stream(ready)
            after.interrupt_group()
            while "press Ctrl-C again" not in after.output():
                after.is_starting()
            after.interrupt_group()
            told = b""
            while piece := stream.recv(65_536):
                told += piece
            assert b"shutting_down" in told, (
                "its end, which nobody waited for, is half a minute away"
            )
            assert after.wait() == 0
            assert after.survivors() == []
            assert "Traceback" not in after.output()
            stream.close()
    assert not (folder / "ready.json").exists()
