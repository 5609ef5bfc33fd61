"""Encodes answers to ``POST /v1/completions``, as ``answers.chat`` does for chats. No I/O.

Choices are numbered prompt by prompt: first the ``n`` answers to the first prompt, then those to
the second.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from gateway.answers.chunks import CompletionEncoder, Head, shown
from gateway.generation.delta import Delta
from gateway.generation.events import Around, Event
from gateway.generation.token_logprobs import TokenLogprob
from gateway.prompts.prompt import Echo

_NO_TEXT = b'"text":""'
_encode = msgspec.json.Encoder().encode


class TextLogprobs(msgspec.Struct):
    """Log-probabilities in the form of Completions: parallel lists, one entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    """Characters of the choice's text before the token."""


class _Offsets:
    """Counts the characters of one choice's text, token by token."""

    def __init__(self) -> None:
        self._num_chars = 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def skip(self, text: str) -> None:
        self._num_chars += len(text)

    def logprobs(self, tokens: Sequence[TokenLogprob | None], first: str = "") -> TextLogprobs:
        """Write log-probabilities. ``first``: the text of a token without one, which is a prompt's
        first."""
        found = TextLogprobs([], [], [], [])
        for token in tokens:
            found.text_offset.append(self._num_chars)
            found.tokens.append(first if token is None else token.token)
            found.token_logprobs.append(None if token is None else token.logprob)
            found.top_logprobs.append(None if token is None else _top(token))
            self._num_chars += len(
                first if token is None else self._utf8.decode(bytes(token.bytes))
            )
        return found


def _top(token: TokenLogprob) -> dict[str, float]:
    """Log-probabilities by the token's text. If tokens have the same text (parts of a
    character all read as U+FFFD), the most likely one is kept."""
    found: dict[str, float] = {}
    for one in (*token.top_logprobs, token):
        found.setdefault(one.token, one.logprob)
    return found


class TextEncoder(CompletionEncoder):
    """The ``Encoder`` of a text completion, whole or streamed."""

    def __init__(self, head: Head, echoes: Sequence[Echo]) -> None:
        """``echoes``: one for each choice."""
        super().__init__(head, ("text_completion", "text_completion"))
        self._collected = [_CollectedText(echo) for echo in echoes]
        self._echoes = echoes
        self._offsets = [_Offsets() for _ in echoes]
        self._heads = [self._head + b'{"index":%d,"text":' % index for index in range(len(echoes))]
        self._heartbeat = self._choice(0, "")

    def opening(self) -> list[Event]:
        """The prompts, if they are echoed without log-probabilities; otherwise nothing."""
        return [
            Event("", self._choice(index, echo.text))
            for index, echo in enumerate(self._echoes)
            if echo.text and not echo.first_token
        ]

    def delta(self, delta: Delta) -> list[Event]:
        events: list[Event] = []
        echo, offsets = self._echoes[delta.index], self._offsets[delta.index]
        if delta.prompt_logprobs is not None:
            logprobs = offsets.logprobs(delta.prompt_logprobs, echo.first_token)
            chunk = self._choice(delta.index, echo.text, logprobs=_encode(logprobs))
            events.append(Event("", chunk))
        reason = b"null" if delta.finish_reason is None else shown(delta.finish_reason)
        if delta.compliance is not None:
            reason += b',"structured_outputs":' + _encode(delta.compliance)
        logprobs_text = b"null"
        if delta.logprobs:
            logprobs_text = _encode(offsets.logprobs(delta.logprobs))
        chunk = self._choice(delta.index, delta.content, reason, logprobs=logprobs_text)
        return [*events, self._padded(chunk)]

    def text_form(self, index: int) -> Around | None:
        if self._is_obfuscated:
            return None
        head, tail = self._choice(index, "").split(_NO_TEXT)
        return Around(head + _NO_TEXT[:-1], b'"' + tail)

    def _choice(
        self,
        index: int,
        text: str,
        finish_reason: bytes = b"null",
        *,
        logprobs: bytes = b"null",
    ) -> bytes:
        return b'%s%s,"logprobs":%s,"finish_reason":%s}%s' % (
            self._heads[index],
            orjson.dumps(text),
            logprobs,
            finish_reason,
            self._tail,
        )


class _CollectedText:
    def __init__(self, echo: Echo) -> None:
        self._echo = echo
        self._text = [echo.text]
        self._logprobs: list[TokenLogprob | None] = []
        self._last = Delta(0)

    def add(self, delta: Delta) -> None:
        self._text.append(delta.content)
        self._logprobs += [*(delta.prompt_logprobs or ()), *delta.logprobs]
        self._last = delta

    def object(self, index: int) -> dict[str, Any]:
        logprobs = None
        if self._logprobs:
            offsets = _Offsets()
            if not self._echo.first_token:
                offsets.skip(self._echo.text)
            logprobs = offsets.logprobs(self._logprobs, self._echo.first_token)
        choice: dict[str, Any] = {
            "index": index,
            "text": "".join(self._text),
            "logprobs": logprobs,
            "finish_reason": self._last.finish_reason,
        }
        if self._last.compliance is not None:
            choice["structured_outputs"] = self._last.compliance
        return choice
