"""Turns a chat into the token ids of its prompt, and checks the variables for its template."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto
from functools import partial
from typing import Any, Protocol, TypeVar
from uuid import UUID

from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from gateway.errors import ContextLengthExceeded, InvalidRequestError, UnsupportedParameter
from gateway.parsers.reasoning import ReasoningFormat
from gateway.prompts.messages import REASONING, messages_for_template
from gateway.prompts.prompt import Prompt
from gateway.prompts.threads import LONG_CHARS, PromptThreads, check_length
from gateway.schemas.chat import ChatFields, Message

T = TypeVar("T")

MAX_TEXT_KWARG = 256
MAX_COUNTED_CHARS = 5_000_000
"""More than a body holds by default. A conversation may be longer, and for each of its characters
the tokenizer takes up to 400 bytes while it counts."""
_SWITCHES = ("enable_thinking", "thinking")
"""The names that templates give to the variable that turns reasoning on and off."""


_MARK = "\ue000end of what is continued\ue000"
"""Put behind the message that an answer goes on with, to find in the rendered text where it
ends: templates put more behind it, and may strip it."""


class Ending(Enum):
    """How a prompt ends."""

    BEGUN = auto()
    """With the beginning of an answer."""
    CLOSED = auto()
    """With the end of the last message."""
    CONTINUED = auto()
    """In the last message, which is the assistant's: the answer goes on with it."""

    @classmethod
    def of(cls, fields: ChatFields) -> Ending:
        """Raises ``InvalidRequestError``."""
        if not fields.continue_final_message:
            return cls.CLOSED if fields.add_generation_prompt is False else cls.BEGUN
        if fields.add_generation_prompt:
            raise InvalidRequestError(
                "Must not be true together with continue_final_message.",
                param="add_generation_prompt",
            )
        return cls.CONTINUED


class TemplateFields(Protocol):
    """The fields of a request that ``ChatPrompts.kwargs`` reads."""

    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...

    @property
    def reasoning_effort(self) -> str | None: ...

    @property
    def verbosity(self) -> str | None: ...


class ChatPrompts:
    """Renders and tokenizes chats for one model."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        threads: PromptThreads,
        *,
        allowed_kwargs: Collection[str],
        reasoning: ReasoningFormat | None = None,
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._allowed = frozenset(allowed_kwargs)
        self._threads = threads
        self._reasoning = reasoning

    @property
    def has_reasoning(self) -> bool:
        """Whether the model reasons before it answers."""
        return self._reasoning is not None

    @property
    def can_switch_reasoning(self) -> bool:
        """Whether the template turns reasoning on and off, or says how much there should be."""
        return not self._template.variables.isdisjoint(("reasoning_effort", *_SWITCHES))

    async def encode(
        self,
        messages: list[Message],
        *,
        tenant: UUID,
        max_model_len: int | None = None,
        tools: list[dict[str, Any]] | None = None,
        kwargs: dict[str, Any] | None = None,
        ending: Ending = Ending.BEGUN,
    ) -> Prompt:
        """Render and tokenize a chat.

        ``max_model_len``: a text that cannot have so few tokens is refused without tokenizing it.
        Raises ``ApiError`` or ``InvalidRequest``.
        """
        render = partial(self._render, messages, tools, kwargs or {}, ending)
        read = partial(self._tokenized, is_continued=ending is Ending.CONTINUED)
        return await self._read(render, read, tenant, max_model_len)

    async def count(
        self,
        messages: list[Message],
        *,
        tenant: UUID,
        tools: list[dict[str, Any]] | None = None,
        kwargs: dict[str, Any] | None = None,
        ending: Ending = Ending.BEGUN,
    ) -> int:
        """The number of tokens that ``encode`` would return, also of a chat that is too long for
        the model. Raises ``ContextLengthExceeded`` beyond ``MAX_COUNTED_CHARS``."""
        render = partial(self._render, messages, tools, kwargs or {}, ending)

        def count(text: str) -> int:
            if len(text) > MAX_COUNTED_CHARS:
                raise ContextLengthExceeded(
                    f"The messages have {len(text)} characters; at most {MAX_COUNTED_CHARS} are "
                    "counted.",
                    param="messages",
                )
            return self._tokenizer.count(text, add_special_tokens=False)

        return await self._read(render, count, tenant, None)

    def _render(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        kwargs: dict[str, Any],
        ending: Ending,
    ) -> str:
        field = REASONING if self._reasoning is None else self._reasoning.field
        shown = messages_for_template(messages, field)
        if ending is Ending.CONTINUED:
            _mark(shown, messages)
        begins = ending is Ending.BEGUN
        text = self._template.render(shown, tools=tools, add_generation_prompt=begins, **kwargs)
        return _up_to_mark(text) if ending is Ending.CONTINUED else text

    async def _read(
        self,
        render: Callable[[], str],
        read: Callable[[str], T],
        tenant: UUID,
        max_model_len: int | None,
    ) -> T:
        """``read`` of the rendered text, both in a thread."""

        def render_and_read() -> tuple[str, T | None]:
            text = render()
            return (text, None) if len(text) >= LONG_CHARS else ("", read(text))

        text, found = await self._threads.run(render_and_read, tenant=tenant, size=0)
        if found is not None:
            return found
        if max_model_len is not None:
            check_length(text, self._tokenizer, max_model_len, param="messages")
        return await self._threads.run(partial(read, text), tenant=tenant, size=len(text))

    def kwargs(self, fields: TemplateFields) -> dict[str, Any]:
        """The template variables that a request sets. Raises ``InvalidRequestError`` or
        ``UnsupportedParameter``, naming the field."""
        given = self._given(fields.chat_template_kwargs or {})
        return given | self._effort(fields.reasoning_effort) | self._verbosity(fields)

    def ignored(self, fields: TemplateFields) -> list[str]:
        """The fields that the template has no place for, and that are no more than hints."""
        found = []
        if fields.reasoning_effort not in (None, "none") and not self.can_switch_reasoning:
            found.append("reasoning_effort")
        # Without a word about it, an answer is as verbose as the model is by itself.
        is_shown = "verbosity" in self._template.variables
        if fields.verbosity not in (None, "medium") and not is_shown:
            found.append("verbosity")
        return found

    def _tokenized(self, text: str, *, is_continued: bool) -> Prompt:
        end, format = text.rstrip(), self._reasoning
        begins = format is not None and end.endswith(format.begin)
        ends = format is not None and end.endswith(format.before_answer)
        return Prompt(
            [self._tokenizer.encode(text, add_special_tokens=False)],
            begins_reasoning=begins and not is_continued,
            ends_reasoning=ends or is_continued,
        )

    def _given(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        for name, value in kwargs.items():
            path = f"chat_template_kwargs.{name[:64]}"
            if name not in self._allowed:
                known = ", ".join(sorted(self._allowed & self._template.variables)) or "none"
                raise UnsupportedParameter(
                    f"This server lets requests set these template variables: {known}.", param=path
                )
            if name not in self._template.variables:
                raise UnsupportedParameter(
                    "This model's chat template has no such variable.", param=path
                )
            is_text = isinstance(value, str) and len(value) <= MAX_TEXT_KWARG
            if not (is_text or value is None or isinstance(value, bool | int | float)):
                raise InvalidRequestError(
                    f"Must be a number, true, false, null or at most {MAX_TEXT_KWARG} characters.",
                    param=path,
                )
        return kwargs

    def _effort(self, effort: str | None) -> dict[str, Any]:
        if effort is None:
            return {}
        if "reasoning_effort" in self._template.variables:
            return {"reasoning_effort": effort}
        for switch in _SWITCHES:
            if switch in self._template.variables:
                return {switch: effort != "none"}
        if effort == "none" and self._reasoning is None:
            return {}
        if effort != "none":
            return {}
        raise UnsupportedParameter(
            "This model always reasons: its chat template has no switch; leave this out.",
            param="reasoning_effort",
        )

    def _verbosity(self, fields: TemplateFields) -> dict[str, Any]:
        if fields.verbosity is None:
            return {}
        if "verbosity" in self._template.variables:
            return {"verbosity": fields.verbosity}
        return {}


def _mark(shown: list[dict[str, Any]], messages: list[Message]) -> None:
    """Mark the end of the last message. Raises ``InvalidRequestError`` if none can follow it."""
    last, path = shown[-1], f"messages[{len(messages) - 1}]"
    if last["role"] != "assistant" or last.get("tool_calls"):
        raise InvalidRequestError(
            "Only a message of the assistant without calls can be continued.", param=path
        )
    if not last["content"]:
        raise InvalidRequestError("There is no text to continue.", param=f"{path}.content")
    last["content"] += _MARK


def _up_to_mark(text: str) -> str:
    found = text.rfind(_MARK)
    if found < 0:
        raise UnsupportedParameter(
            "This model's chat template does not show the end of the last message.",
            param="continue_final_message",
        )
    return text[:found]
