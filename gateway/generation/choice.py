"""One choice of a request: turns the engine's outputs into deltas of text, reasoning and calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import orjson

from engine.client.stream import RequestStream
from engine.messages import RequestOutput, TokenLogprobs
from engine.text.detokenize import Detokenizer, StopStrings
from engine.text.tokenizer import Tokenizer
from gateway.admission.admitted import Admitted
from gateway.errors import (
    AdapterUnavailable,
    ApiError,
    GenerationFailed,
    InvalidRequestError,
    ModelNotFound,
    Overloaded,
)
from gateway.generation.compliance import Call
from gateway.generation.delta import Delta
from gateway.generation.events import Text
from gateway.generation.graphemes import GraphemeGate
from gateway.generation.token_logprobs import named
from gateway.parsers.answer import Piece
from gateway.parsers.base import ToolCallDelta

_OF_IMAGE = re.compile(r"images(?:\[(\d{1,4})\][.: ]*|: )")
"""How the engine begins what it says of a picture of a request."""


class Choice:
    """One of the answers to a request: takes token ids, gives text and tool calls."""

    def __init__(
        self,
        index: int,
        stream: RequestStream,
        admitted: Admitted,
        tokenizer: Tokenizer,
        texts: dict[int, Text],
    ) -> None:
        """``texts``: shared by all choices of one tokenizer; see the attribute."""
        self.index = index
        self.stream = stream
        self.texts = texts
        """By token id, the text that the token adds to a choice that ``is_settled``. It is learned
        as tokens come, of those that add the same text everywhere."""
        self.finish_reason: str | None = None
        self.num_reasoning_tokens = 0
        self.text: list[str] | None = [] if admitted.unenforced is not None else None
        """All content so far, if it must be checked at the end."""
        self._calls: list[tuple[str, str, list[str]]] | None = (
            [] if admitted.loose_calls is not None else None
        )
        self._image_places = admitted.image_places
        params = admitted.params
        self._tokenizer = tokenizer
        self._parser = admitted.make_parser() if admitted.make_parser is not None else None
        self._stops: StopStrings | None = None
        """Looks for stop strings in what the parser takes for content: reasoning and calls do not
        end an answer."""
        if self._parser is not None and admitted.stop:
            self._stops = StopStrings(
                admitted.stop, include_in_output=params.include_stop_str_in_output
            )
        self._detokenizer = Detokenizer(
            tokenizer,
            stop=() if self._stops is not None else admitted.stop,
            include_stop_str_in_output=params.include_stop_str_in_output,
            skip_special_tokens=admitted.skip_special_tokens,
            min_tokens=params.min_tokens,
        )
        self._graphemes = GraphemeGate()
        self._min_tokens = params.min_tokens
        self._shows_stop = params.include_stop_str_in_output
        self._hidden_token_ids = (
            frozenset() if admitted.skip_special_tokens else tokenizer.eos_token_ids
        )
        self._is_plain = (
            self._parser is None
            and self.text is None
            and not admitted.stop
            and not self._hidden_token_ids
        )
        """Whether all tokens are content: the usual case, which is fast."""

    def advance(self, output: RequestOutput) -> Delta:
        """The delta that ``output`` adds. Raises ``ApiError`` if the engine reports an error."""
        if (
            self._is_plain
            and output.finish_reason is None
            and output.logprobs is None
            and output.prompt_logprobs is None
        ):
            return Delta(self.index, self._plain_text(output.new_token_ids))
        if output.finish_reason == "error":
            raise engine_error(output, self._image_places)
        delta = Delta(self.index)
        token_ids = self._visible(output)
        is_thinking = self._parser is not None and self._parser.is_thinking
        if output.logprobs is None and not is_thinking and self._stops is None:
            self._push(delta, token_ids)
        else:
            self._push_singly(delta, token_ids, output.logprobs)
        if output.prompt_logprobs is not None:
            delta.prompt_logprobs = [None, *named(output.prompt_logprobs, self._tokenizer)]
        self._end(delta, output)
        if self.text is not None:
            self.text.append(delta.content)
        return delta

    @property
    def is_settled(self) -> bool:
        """Whether the next token's text does not depend on the tokens before it: see ``texts``."""
        return self._is_plain and self._detokenizer.is_settled and not self._graphemes.is_holding

    def _plain_text(self, token_ids: list[int]) -> str:
        was_settled = self.is_settled
        text = self._graphemes.push(self._detokenizer.push(token_ids))
        if was_settled and text and len(token_ids) == 1 and self.is_settled:
            self._learn(token_ids[0], text)
        return text

    def _learn(self, token_id: int, text: str) -> None:
        # Special tokens have a text only in choices that show them.
        if token_id not in self._tokenizer.special_ids:
            self.texts[token_id] = Text(orjson.dumps(text)[1:-1])

    @property
    def calls(self) -> list[Call]:
        """All calls so far, if they must be checked at the end; otherwise none."""
        return [Call(call_id, name, "".join(parts)) for call_id, name, parts in self._calls or ()]

    @property
    def has_calls(self) -> bool:
        return self._parser is not None and self._parser.has_calls

    def _push(self, delta: Delta, token_ids: list[int]) -> None:
        self._say(delta, self._detokenizer.push(token_ids))

    def _push_singly(
        self, delta: Delta, token_ids: list[int], logprobs: list[TokenLogprobs] | None
    ) -> None:
        """As ``_push``, token by token: for log-probabilities, to count reasoning tokens, and to
        find the token that completed a stop string."""
        for used, token_id in enumerate(token_ids, 1):
            was_thinking = self._parser is not None and self._parser.is_thinking
            self._push(delta, [token_id])
            self.num_reasoning_tokens += was_thinking
            if logprobs is not None:
                delta.logprobs = [*delta.logprobs, *named([logprobs[used - 1]], self._tokenizer)]
            if self._is_stopped:
                break

    @property
    def _is_stopped(self) -> bool:
        return (self._stops or self._detokenizer).stopped is not None

    def _say(self, delta: Delta, text: str) -> None:
        self._show(delta, self._graphemes.push(text))

    def _show(self, delta: Delta, text: str) -> None:
        if self._parser is None:
            delta.content += text
        elif text:
            self._add(delta, self._parser.push(text))

    def _add(self, delta: Delta, piece: Piece) -> None:
        delta.reasoning += piece.reasoning
        if self._stops is None or self._detokenizer.num_tokens <= self._min_tokens:
            delta.content += piece.content
        else:
            delta.content += self._stops.push(piece.content)
        if piece.calls:
            delta.tool_calls = [*delta.tool_calls, *piece.calls]
            if self._calls is not None:
                _collect(self._calls, piece.calls)

    def _end(self, delta: Delta, output: RequestOutput) -> None:
        parser = self._parser
        if self._is_stopped or (parser is not None and parser.is_full):
            self.finish_reason = "stop"
            self.stream.close()
        elif output.finish_reason is not None:
            self.finish_reason = output.finish_reason
            self._say(delta, self._detokenizer.finish())
        if self.finish_reason is None:
            return
        self._show(delta, self._graphemes.finish())
        if parser is not None:
            self._add(delta, parser.finish())
            if self._stops is not None:
                delta.content += self._stops.finish()
                if self._is_stopped:  # by text that was held back until now
                    self.finish_reason = "stop"
            if parser.has_calls and self.finish_reason == "stop":
                self.finish_reason = "tool_calls"
        delta.finish_reason = self.finish_reason
        delta.stop = (self._stops or self._detokenizer).stopped

    def _visible(self, output: RequestOutput) -> list[int]:
        """The tokens that are text. A token that stopped the generation is not, unless the request
        asked for it."""
        token_ids = output.new_token_ids
        if output.finish_reason == "stop" and token_ids and not self._shows_stop:
            last = token_ids[-1]
            if last == output.stop_reason or last in self._tokenizer.eos_token_ids:
                token_ids = token_ids[:-1]
        if not self._hidden_token_ids:
            return token_ids
        return [token_id for token_id in token_ids if token_id not in self._hidden_token_ids]


def _collect(calls: list[tuple[str, str, list[str]]], pieces: Iterable[ToolCallDelta]) -> None:
    for piece in pieces:
        if piece.id is not None:
            calls.append((piece.id, piece.function.name or "", []))
        if piece.function.arguments:
            calls[-1][2].append(piece.function.arguments)


def engine_error(output: RequestOutput, image_places: Sequence[str] = ()) -> ApiError:
    """The error for the client, of an output whose finish reason is ``error``. ``image_places``: as
    of ``Admitted``."""
    message = output.error or "The engine could not finish this request."
    if image_places and (of_image := _OF_IMAGE.match(message)) is not None:
        return InvalidRequestError(
            message[of_image.end() :],
            param=image_places[int(of_image[1] or 0)],
            code="invalid_image",
            is_renamed=True,
        )
    if output.error_code == "invalid_request":
        return InvalidRequestError(message)
    if output.error_code == "queue_full":
        return Overloaded(message, retry_after_s=1)
    if output.error_code == "adapter_unloaded":
        return ModelNotFound("The model does not exist any more.", param="model")
    if output.error_code == "adapter_unavailable":
        return AdapterUnavailable("The model's own files cannot be used at the moment.")
    return GenerationFailed(message)
