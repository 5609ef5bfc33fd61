"""Turns a chat into the token ids of its prompt, and checks the variables for its template."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

from engine.images.processor import ImageProcessor
from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from gateway.errors import ContextLengthExceeded, InvalidRequestError, UnsupportedParameter
from gateway.parsers.reasoning import ReasoningFormat
from gateway.prompts.messages import REASONING, messages_for_template
from gateway.prompts.prompt import Prompt
from gateway.prompts.threads import LONG_CHARS, PromptThreads, check_length
from gateway.schemas.chat import ChatFields, Message, Picture

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


class Rendered(NamedTuple):
    """A chat as text."""

    text: str
    pictures: list[Picture]


class Marks:
    """Tells the pictures of a chat from texts that spell what stands for one: the template writes
    a secret mark, which becomes the placeholder before the text is tokenized."""

    def __init__(self, processor: ImageProcessor, tokenizer: Tokenizer) -> None:
        self._processor = processor
        self._mark = f"\ue000picture {secrets.token_hex(16)}\ue000"
        self.placeholder = tokenizer.token_bytes(processor.placeholder).decode()
        self._either = re.compile(f"({re.escape(self._mark)})|{re.escape(self.placeholder)}")

    def put_into(self, template: ChatTemplate) -> ChatTemplate:
        return template.with_other_text(self.placeholder, self._mark)

    def resolve(self, rendered: Rendered) -> tuple[str, list[bool]]:
        """The text with its placeholders, and for each of them whether it is a picture's. Raises
        ``UnsupportedParameter`` for pictures that the template leaves out."""
        are_pictures = [bool(found[1]) for found in self._either.finditer(rendered.text)]
        pictures = rendered.pictures
        if sum(are_pictures) != len(pictures):
            raise UnsupportedParameter(
                "This model's chat template does not show pictures there.",
                param=pictures[0].place,
                is_renamed=True,
            )
        text = rendered.text.replace(self._mark, self.placeholder)
        return self._processor.rendered(text), are_pictures

    def places(self, token_ids: list[int], are_pictures: list[bool]) -> list[int]:
        """The indices of the pictures' placeholders."""
        wanted = self._processor.placeholder
        found = [index for index, token_id in enumerate(token_ids) if token_id == wanted]
        return [index for index, is_one in zip(found, are_pictures, strict=True) if is_one]


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
        processor: ImageProcessor | None = None,
    ) -> None:
        """``processor``: of a model that sees."""
        self._marks = None if processor is None else Marks(processor, tokenizer)
        self._template = template if self._marks is None else self._marks.put_into(template)
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
    ) -> tuple[int, list[Picture]]:
        """The number of tokens that ``encode`` would return, also of a chat that is too long for
        the model, and its pictures, each of which counts as one. Raises ``ContextLengthExceeded``
        beyond ``MAX_COUNTED_CHARS``."""
        render = partial(self._render, messages, tools, kwargs or {}, ending)

        def count(rendered: Rendered) -> tuple[int, list[Picture]]:
            text, pictures = rendered
            marks = self._marks if pictures else None
            if len(text) > MAX_COUNTED_CHARS:
                raise ContextLengthExceeded(
                    f"The messages have {len(text)} characters; at most {MAX_COUNTED_CHARS} are "
                    "counted.",
                    param="messages",
                )
            if marks is not None:
                text, _ = marks.resolve(rendered)
            return self._tokenizer.count(text, add_special_tokens=False), pictures

        return await self._read(render, count, tenant, None)

    def _render(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        kwargs: dict[str, Any],
        ending: Ending,
    ) -> Rendered:
        field = REASONING if self._reasoning is None else self._reasoning.field
        pictures: list[Picture] = []
        shown = messages_for_template(messages, field, None if self._marks is None else pictures)
        if ending is Ending.CONTINUED:
            _mark(shown, messages)
        begins = ending is Ending.BEGUN
        text = self._template.render(shown, tools=tools, add_generation_prompt=begins, **kwargs)
        return Rendered(_up_to_mark(text) if ending is Ending.CONTINUED else text, pictures)

    async def _read(
        self,
        render: Callable[[], Rendered],
        read: Callable[[Rendered], T],
        tenant: UUID,
        max_model_len: int | None,
    ) -> T:
        """``read`` of the rendered text, both in a thread."""

        def render_and_read() -> tuple[Rendered, T | None]:
            rendered = render()
            return rendered, None if len(rendered.text) >= LONG_CHARS else read(rendered)

        rendered, found = await self._threads.run(render_and_read, tenant=tenant, size=0)
        if found is not None:
            return found
        size = len(rendered.text)
        if max_model_len is not None:
            check_length(rendered.text, self._tokenizer, max_model_len, param="messages")
        return await self._threads.run(partial(read, rendered), tenant=tenant, size=size)

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

    def _tokenized(self, rendered: Rendered, *, is_continued: bool) -> Prompt:
        marks = self._marks if rendered.pictures else None
        text, are_pictures = (rendered.text, []) if marks is None else marks.resolve(rendered)
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        end, format = text.rstrip(), self._reasoning
        begins = format is not None and end.endswith(format.begin)
        ends = format is not None and end.endswith(format.before_answer)
        return Prompt(
            [token_ids],
            begins_reasoning=begins and not is_continued,
            ends_reasoning=ends or is_continued,
            pictures=rendered.pictures,
            places=[] if marks is None else marks.places(token_ids, are_pictures),
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
