"""``sluice chat`` against a server that plays every part: in a pipe, and on a real terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gateway.commands.chat_client import ChatClient, Options
from gateway.commands.database import Address
from gateway.errors import ClientError
from tests.gateway.web.scripted_server import KEY, Call, Done, Drop, Fail, ScriptedServer, Wait

ROOT = Path(__file__).parents[3]
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def _running() -> Iterator[ScriptedServer]:
    with ScriptedServer().serve() as server:
        yield server


@pytest.fixture
def server(_running: ScriptedServer) -> ScriptedServer:
    _running.reset()
    return _running


def connected(server: ScriptedServer, key: str = KEY, **options: object) -> ChatClient:
    return ChatClient(Address(server.url, key), Options(**options))  # type: ignore[arg-type]


def test_one_question(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.say("Hel", "lo ", "*you*.")
    with ChatClient.connect(Address(server.url, KEY), Options()) as client:
        client.ask_once("Hi")
    assert capsys.readouterr().out == "Hello *you*.\n"
    assert server.turns()[0]["messages"] == [{"role": "user", "content": "Hi"}]


def test_options_travel_only_when_given(server: ScriptedServer) -> None:
    with ChatClient.connect(Address(server.url, KEY), Options()) as client:
        client.ask_once("Hi")
    assert set(server.turns()[0]) == {"type", "id", "messages"}
    options = Options(model="scripted", max_tokens=5, temperature=0.0)
    with ChatClient.connect(Address(server.url, KEY), options) as client:
        client.ask_once("Hi")
    assert server.turns()[1].items() >= {"model": "scripted", "max_tokens": 5}.items()
    assert server.turns()[1]["temperature"] == 0.0


def test_a_failed_turn_is_an_error(server: ScriptedServer) -> None:
    server.say("Half", Fail("The engine restarted."))
    with (
        ChatClient.connect(Address(server.url, KEY), Options()) as client,
        pytest.raises(ClientError, match="The engine restarted"),
    ):
        client.ask_once("Hi")


def test_a_refused_key_is_told_in_the_servers_words(server: ScriptedServer) -> None:
    with pytest.raises(ClientError, match="This API key is unknown"):
        connected(server, key="wrong")


def test_a_dropped_connection_is_an_error(server: ScriptedServer) -> None:
    server.say("Half", Drop())
    with (
        ChatClient.connect(Address(server.url, KEY), Options()) as client,
        pytest.raises(ClientError, match="closed the connection"),
    ):
        client.ask_once("Hi")


def test_tool_calls_are_shown(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.say(Call("", name="f"), Call('{"x": 1}'), Done("tool_calls"))
    with ChatClient.connect(Address(server.url, KEY), Options()) as client:
        client.ask_once("Hi")
    assert capsys.readouterr().out == 'f{"x": 1}\n'


def command(server: ScriptedServer) -> list[str]:
    return [sys.executable, "-m", "gateway", "chat", "--url", server.url, "--key", KEY]


def test_a_pipe_of_questions_is_one_conversation(server: ScriptedServer) -> None:
    server.say("Aye.")
    done = subprocess.run(
        command(server), input="One\n\nTwo\n/new\nThree\n", capture_output=True, text=True,
        timeout=60, cwd=ROOT, check=True,
    )  # fmt: skip
    assert done.stdout == "Aye.\n" * 3
    assert done.stderr == ""
    histories = [[m["content"] for m in turn["messages"]] for turn in server.turns()]
    assert histories == [["One"], ["One", "Aye.", "Two"], ["Three"]]


def test_a_failure_does_not_end_the_conversation(server: ScriptedServer) -> None:
    def script(message: dict[str, object]) -> list[object]:
        question = message["messages"][-1]["content"]  # type: ignore[index]
        answers: dict[object, list[object]] = {"fail": [Fail("Not now.")], "drop": [Drop()]}
        return answers.get(question, [Done()])

    server.script = script  # type: ignore[assignment]
    done = subprocess.run(
        command(server), input="fail\ndrop\nfine\n", capture_output=True, text=True,
        timeout=60, cwd=ROOT, check=True,
    )  # fmt: skip
    assert "Not now." in done.stderr
    assert "closed the connection" in done.stderr
    # What failed is not part of the history.
    assert [m["content"] for m in server.turns()[-1]["messages"]] == ["fine"]


# Makes its standard input the terminal it answers to, then becomes the program.
_ON_A_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, arguments: list[str]) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ON_A_TERMINAL, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        )
        os.close(slave)
        self._bytes = b""
        self._seen = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str, within_s: float = 30.0) -> None:
        """Wait until ``text`` shows after what was expected before."""
        deadline = time.monotonic() + within_s
        while (found := self._screen().find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, f"{text!r} not in {self._screen()[self._seen :]!r}"
            self._read()
        self._seen = found + len(text)

    def exit_code(self, within_s: float = 30.0) -> int:
        deadline = time.monotonic() + within_s
        while (code := self._process.poll()) is None:
            assert time.monotonic() < deadline, f"still running: {self._screen()!r}"
            self._read()  # a terminal nobody reads would keep the program from ending
        return code

    def leave(self) -> int:
        """Ctrl-C until it has ended.

        One between the prompt and the wait for a key is noticed only with the next key: so it
        comes when the program sleeps, and once more if that was another sleep.
        """
        deadline = time.monotonic() + 60
        while psutil.Process(self._process.pid).status() != psutil.STATUS_SLEEPING:
            assert time.monotonic() < deadline
            self._read()
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"still running: {self._screen()!r}"
            self.type("\x03")
            again = time.monotonic() + 10
            while self._process.poll() is None and time.monotonic() < again:
                self._read()
        return self._process.returncode

    def _read(self) -> None:
        if select.select([self._master], [], [], 0.05)[0]:
            with contextlib.suppress(OSError):  # the program has closed its side
                self._bytes += os.read(self._master, 65536)

    def _screen(self) -> str:
        return _ESCAPES.sub("", self._bytes.decode(errors="ignore"))


def test_a_terminal_shows_markdown_and_counts(server: ScriptedServer) -> None:
    server.say("Some **bold** words.")
    with Terminal(command(server)) as terminal:
        terminal.expect("scripted at http")
        terminal.expect("›")
        terminal.type("Hi\n")
        terminal.expect("Some bold words.")
        terminal.expect("13 tokens")
        terminal.expect("›")
        terminal.type("\x04")  # Ctrl-D
        assert terminal.exit_code() == 0


def test_ctrl_c_stops_the_answer_and_then_leaves(server: ScriptedServer) -> None:
    server.say("Begun", Wait(), " and never done")
    with Terminal(command(server)) as terminal:
        terminal.expect("›")
        terminal.type("Go\n")
        terminal.expect("Begun")
        terminal.type("\x03")
        terminal.expect("stopped")
        assert [m["type"] for m in server.received] == ["connected", "chat", "cancel"]
        terminal.expect("›")
        assert terminal.leave() == 0


def test_ctrl_c_twice_leaves_in_the_middle_of_an_answer(server: ScriptedServer) -> None:
    server.say("Begun", Wait())
    # A server that does not react to the cancel either.
    server.deaf = True
    with Terminal(command(server)) as terminal:
        terminal.expect("›")
        terminal.type("Go\n")
        terminal.expect("Begun")
        terminal.type("\x03")
        deadline = time.monotonic() + 30
        while server.received[-1]["type"] != "cancel":  # two at once would count as one
            assert time.monotonic() < deadline
            time.sleep(0.01)
        terminal.type("\x03")
        assert terminal.exit_code() == 0


def test_a_growing_answer_leaves_room_for_the_echo_of_ctrl_c(server: ScriptedServer) -> None:
    with ChatClient.connect(Address(server.url, KEY), Options()) as client:
        console = client._console
        lines = console.render_lines(client._growing("word " * 100), pad=False)
    widths = [sum(segment.cell_length for segment in line) for line in lines]
    assert len(widths) > 2
    assert max(widths) <= console.width - len("^C")
