"""``sluice chat``: a conversation in the terminal over the WebSocket of ``gateway.schemas.ws``.

Synchronous on purpose: one thing happens at a time, and Ctrl-C stops an answer while it is printed,
but leaves at the prompt.
"""

from __future__ import annotations

import json
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.constrain import Constrain
from rich.live import Live
from rich.markdown import Markdown
from rich.spinner import Spinner
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gateway.commands.database import Address
from gateway.errors import ClientError

POLL_S = 0.1
OPEN_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
PROMPT = "\n\x01\x1b[1;35m\x02›\x01\x1b[0m\x02 "
"""The control characters between \\x01 and \\x02 have no width, which readline must know."""
_REASONS = {"length": "cut off at the token limit", "cancelled": "stopped"}


class Options(NamedTuple):
    """Parameters of every turn; None means the server's default."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None

    def fields(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}


class Outcome(NamedTuple):
    """How a turn ended."""

    text: str
    note: str = ""
    failed: bool = False


class ChatClient:
    """One conversation with one server."""

    def __init__(self, address: Address, options: Options) -> None:
        self._address = address
        self._options = options
        self._history: list[dict[str, Any]] = []
        self._console = Console()
        self._interrupts = 0
        self._connection = ExitStack()
        self._reconnect()

    @classmethod
    @contextmanager
    def connect(cls, address: Address, options: Options) -> Iterator[ChatClient]:
        """A connected client. Raises ``ClientError``."""
        client = cls(address, options)
        try:
            yield client
        finally:
            client.close()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()

    def ask_once(self, question: str) -> None:
        """Ask one question. Raises ``ClientError`` when the turn fails."""
        outcome = self._turn(question)
        if outcome.failed:
            raise ClientError(outcome.note)

    def converse(self) -> None:
        """Converse until the end of input, or Ctrl-C at the prompt."""
        if self._console.is_terminal:
            model = ", ".join(self.ready["models"])
            self._console.print(
                f"[bold]{model}[/] at {self._address.url}. "
                "[dim]/new forgets, Ctrl-C stops an answer, Ctrl-D leaves.[/]",
                highlight=False,
            )
        while (question := self._prompt()) is not None:
            if question == "/new":
                self._history.clear()
            elif question:
                self._take_turn(question)
            if self._interrupts > 1:
                return

    def _prompt(self) -> str | None:
        try:
            if not sys.stdin.isatty():
                return input().strip()
            import readline  # noqa: F401  (line editing and history in input())

            return input(PROMPT).strip()
        except (EOFError, KeyboardInterrupt):
            return None

    def _take_turn(self, question: str) -> None:
        try:
            outcome = self._turn(question)
        except ClientError as exc:
            # The connection is lost; the conversation continues on another one.
            outcome = Outcome("", str(exc), failed=True)
            self._reconnect()
        if outcome.failed:
            Console(stderr=True).print(f"sluice: {outcome.note}", style="red", markup=False)

    # -- one turn

    def _turn(self, question: str) -> Outcome:
        messages = [*self._history, {"role": "user", "content": question}]
        turn_id = uuid.uuid4().hex
        self._send(type="chat", id=turn_id, messages=messages, **self._options.fields())
        with self._interruptible():
            outcome = self._show(self._deltas(turn_id))
        if not outcome.failed:
            self._history = [*messages, {"role": "assistant", "content": outcome.text}]
        return outcome

    def _show(self, deltas: Iterator[str | Outcome]) -> Outcome:
        if self._console.is_terminal:
            return self._show_live(deltas)
        outcome = Outcome("")
        for delta in deltas:
            if isinstance(delta, Outcome):
                outcome = delta
            else:
                sys.stdout.write(delta)
                sys.stdout.flush()
        sys.stdout.write("\n")
        return outcome

    def _growing(self, text: str) -> Constrain:
        """The text, with room at the end of a line for the ``^C`` that a terminal echoes there: on
        a line of its own, it would be one line more than the live region erases."""
        return Constrain(Markdown(text), self._console.width - len("^C"))

    def _show_live(self, deltas: Iterator[str | Outcome]) -> Outcome:
        text = ""
        outcome = Outcome("")
        # Transient, because a live region taller than the screen cannot be redrawn. The whole text
        # is printed at the end.
        with Live(Spinner("dots"), console=self._console, transient=True) as live:
            for delta in deltas:
                if isinstance(delta, Outcome):
                    outcome = delta
                else:
                    text += delta
                    live.update(self._growing(text))
        if text:
            self._console.print(Markdown(text))
        if outcome.note and not outcome.failed:
            self._console.print(outcome.note, style="dim", markup=False)
        return outcome

    def _deltas(self, turn_id: str) -> Iterator[str | Outcome]:
        """The answer's pieces, then its outcome."""
        text = ""
        stopping = False
        while True:
            if self._interrupts and not stopping:
                stopping = True
                self._send(type="cancel", id=turn_id)
            if self._interrupts > 1:
                yield Outcome(text, "left")
                return
            message = self._poll()
            if message is None or message.get("id") not in (turn_id, None):
                continue
            match message["type"]:
                case "delta" if "content" in message:
                    text += message["content"]
                    yield message["content"]
                case "delta":
                    for call in message.get("tool_calls") or ():
                        function = call["function"]
                        piece = f"{function.get('name') or ''}{function.get('arguments') or ''}"
                        text += piece
                        yield piece
                case "done":
                    yield Outcome(text, _note(message))
                    return
                case "error":
                    yield Outcome(text, message["error"]["message"], failed=True)
                    return

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Count Ctrl-C instead of raising it in the middle of a frame."""
        self._interrupts = 0

        def count(signum: int, frame: FrameType | None) -> None:
            self._interrupts += 1

        previous = signal.signal(signal.SIGINT, count)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    # -- the socket

    def _reconnect(self) -> None:
        """Open another connection. Raises ``ClientError``."""
        self._connection.close()
        self._socket = _open(self._address, self._connection)
        self.ready = self._receive()

    def _send(self, **message: Any) -> None:
        try:
            self._socket.send(json.dumps(message))
        except ConnectionClosed as exc:
            raise ClientError(_closed(exc)) from None

    def _poll(self) -> dict[str, Any] | None:
        try:
            return self._decode(self._socket.recv(timeout=POLL_S))
        except TimeoutError:
            return None
        except ConnectionClosed as exc:
            raise ClientError(_closed(exc)) from None

    def _receive(self) -> dict[str, Any]:
        while (message := self._poll()) is None:
            pass
        if message["type"] == "error":
            raise ClientError(message["error"]["message"])
        return message

    def _decode(self, data: str | bytes) -> dict[str, Any]:
        message: dict[str, Any] = msgspec.json.decode(data)
        return message


def _open(address: Address, stack: ExitStack) -> ClientConnection:
    """A connection that ``stack`` closes."""
    url = "ws" + address.url.removeprefix("http") + "/v1/chat"
    headers = {"Authorization": f"Bearer {address.key}"}
    try:
        return stack.enter_context(
            connect(
                url,
                additional_headers=headers,
                open_timeout=OPEN_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
                compression=None,
            )
        )
    except InvalidStatus as exc:
        raise ClientError(f"{address.url}: {_refusal(exc)}") from None
    except InvalidHandshake as exc:
        raise ClientError(f"{address.url} is not a Sluice server: {exc}") from None
    except (OSError, TimeoutError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc) or "no answer in time"
        raise ClientError(
            f"{address.url} does not answer ({reason}); is the server running?"
        ) from None


def _refusal(exc: InvalidStatus) -> str:
    try:
        error = msgspec.json.decode(exc.response.body or b"")["error"]["message"]
        return str(error)
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"refused with HTTP {exc.response.status_code}; is this a Sluice server?"


def _closed(exc: ConnectionClosed) -> str:
    reason = exc.rcvd.reason if exc.rcvd is not None else ""
    return f"the server closed the connection{f': {reason}' if reason else ''}; ask again"


def _note(done: dict[str, Any]) -> str:
    tokens = done["usage"]["completion_tokens"]
    reason = _REASONS.get(done["finish_reason"])
    return f"{tokens} tokens{f', {reason}' if reason else ''}"
