"""What clients heard, and whether it is well-formed: one finish, usage, and the text played."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.gateway.departures.plan import HttpVisit
from tests.gateway.raw_http import events
from tests.gateway.routes.test_responses import events_of

STREAM_ID = "x-sluice-stream-id"


@dataclass
class Heard:
    """An answer, as far as a client has read it."""

    visit: HttpVisit
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_whole: bool = False
    num_leaves: int = 0

    @property
    def is_events(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def whole_events(self) -> bytes:
        return self.body[: self.body.rfind(b"\n\n") + 2] if b"\n\n" in self.body else b""

    @property
    def name(self) -> str | None:
        """Of the stream or the response, once it is known."""
        if STREAM_ID in self.headers:
            return self.headers[STREAM_ID]
        if self.visit.way != "responses" or self.status != 200:
            return None
        if self.is_events and self.whole_events.startswith(b"event: response."):
            first, end, _ = self.whole_events.partition(b"\n\n")
            found: str = events_of(first + end)[0]["response"]["id"]
            return found
        return json.loads(self.body)["id"] if self.is_whole and not self.is_events else None

    @property
    def code(self) -> str:
        """Of the error, if it is one."""
        if self.status != 200:
            return str(json.loads(self.body)["error"]["code"])
        last = self.whole_events.rstrip(b"\n").rpartition(b"data: ")[2]
        if not self.is_events or last in (b"", b"[DONE]"):
            return ""
        error = json.loads(last).get("error")
        return "" if error is None else str(error["code"])

    @property
    def is_good(self) -> bool:
        """Whether an ``Idempotency-Key`` stands for it."""
        return self.is_whole and self.status == 200 and not self.code and not self._has_failed

    @property
    def _has_failed(self) -> bool:
        return self.visit.way == "responses" and b"event: response.failed" in self.body

    def check(self, *, may_fail: bool, may_be_cut: bool) -> None:
        """Whether what was read to its end is an answer to the visit.

        ``may_fail``: an error may be the answer. ``may_be_cut``: it may have been ended before its
        time, for somebody's wish or because nobody read it.
        """
        if not self.is_whole:
            return
        if self.status != 200:
            assert may_fail, (self.status, self.code)
            told = json.loads(self.body or b"null")
            assert told is not None, (self.status, self.headers)
            assert set(told["error"]) == {"message", "type", "param", "code"}
        elif self.visit.way == "responses":
            self._check_response(may_fail=may_fail, may_be_cut=may_be_cut)
        elif self.is_events:
            self._check_chunks(may_fail=may_fail, may_be_cut=may_be_cut)
        else:
            self._check_completion()

    def _check_completion(self) -> None:
        answer = json.loads(self.body)
        assert len(answer["choices"]) == self.visit.num_choices
        for choice in answer["choices"]:
            assert choice["finish_reason"] == "stop"
            assert _content(choice) == self.visit.text
        self._check_usage(answer["usage"])

    def _check_chunks(self, *, may_fail: bool, may_be_cut: bool) -> None:
        chunks = events(self.body)
        texts: defaultdict[int, str] = defaultdict(str)
        finishes: defaultdict[int, int] = defaultdict(int)
        for chunk in chunks:
            for choice in () if chunk == "[DONE]" else chunk.get("choices", ()):
                texts[choice["index"]] += _content(choice)
                finishes[choice["index"]] += choice["finish_reason"] is not None
        for text in texts.values():
            assert is_beginning(text, self.visit.text), (text, self.visit.text)
        assert max(finishes.values(), default=0) <= 1
        if self.code:
            assert may_fail or (may_be_cut and self.code == "stream_abandoned"), self.code
            return
        assert chunks[-1] == "[DONE]"
        assert list(finishes.values()) == [1] * self.visit.num_choices
        assert may_be_cut or set(texts.values()) <= {self.visit.text}
        if set(texts.values()) == {self.visit.text} and not may_be_cut:
            self._check_usage(chunks[-2]["usage"])

    def _check_usage(self, usage: dict[str, Any]) -> None:
        assert usage["completion_tokens"] == self.visit.num_choices * self.visit.num_tokens

    def _check_response(self, *, may_fail: bool, may_be_cut: bool) -> None:
        if self.code:  # the worker is gone, or the key
            assert may_fail, self.code
            return
        if not self.is_events:
            answer = json.loads(self.body)
        else:
            told = events_of(self.body)
            assert told[0]["sequence_number"] == 0
            answer = told[-1]["response"]
            ends = ("completed", "incomplete", "failed")
            assert told[-1]["type"] in [f"response.{end}" for end in ends]
            deltas = [e["delta"] for e in told if e["type"] == "response.output_text.delta"]
            assert "".join(deltas) == said_in(answer)
        self.check_object(answer, may_fail=may_fail, may_be_cut=may_be_cut)

    def check_object(self, answer: dict[str, Any], *, may_fail: bool, may_be_cut: bool) -> None:
        """A response object, from wherever it is known."""
        status, text = answer["status"], said_in(answer)
        assert is_beginning(text, self.visit.text), (text, self.visit.text)
        if status == "completed":
            assert text == self.visit.text
            assert answer["usage"]["output_tokens"] == self.visit.num_tokens
        elif status == "cancelled":
            assert may_be_cut or may_fail
        elif status == "failed":
            assert may_fail
        else:
            assert status in ("queued", "in_progress")
            assert self.visit.background


def is_beginning(said: str, text: str) -> bool:
    """Of an answer that may have been cut within a character."""
    return text.startswith(said.removesuffix("\N{REPLACEMENT CHARACTER}"))


def _content(choice: dict[str, Any]) -> str:
    said = choice.get("delta") or choice.get("message") or choice
    return said.get("content") or said.get("text") or ""


def said_in(response: dict[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )
