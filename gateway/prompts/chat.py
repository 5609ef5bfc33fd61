"""Turns a chat into the token ids of its prompt, and checks the variables for its template."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Protocol, TypeVar
from uuid import UUID

from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from gateway.errors import InvalidRequestError, UnsupportedParameter
from gateway.parsers.reasoning import ReasoningFormat
from gateway.prompts.messages import REASONING, messages_for_template
from gateway.prompts.prompt import Prompt
from gateway.prompts.threads import LONG_CHARS, PromptThreads, check_length
from gateway.schemas.chat import Message

T = TypeVar("T")

MAX_TEXT_KWARG = 256
_SWITCHES = ("enable_thinking", "thinking")
"""The names that templates give to the variable that turns reasoning on and off."""


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
        add_generation_prompt: bool = True,
    ) -> Prompt:
        """Render and tokenize a chat.

        ``max_model_len``: a text that cannot have so few tokens is refused without tokenizing it.
        Raises ``ApiError`` or ``InvalidRequest``.
        """
        variables = {"add_generation_prompt": add_generation_prompt, **(kwargs or {})}
        render = partial(self._render, messages, tools, variables)
        return await self._read(render, self._tokenized, tenant, max_model_len)

    async def count(
        self,
        messages: list[Message],
        *,
        tenant: UUID,
        tools: list[dict[str, Any]] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> int:
        """The number of tokens that ``encode`` would return; of a chat of any length."""
        variables = {"add_generation_prompt": True, **(kwargs or {})}
        render = partial(self._render, messages, tools, variables)
        count = partial(self._tokenizer.count, add_special_tokens=False)
        return await self._read(render, count, tenant, None)

    def _render(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        variables: dict[str, Any],
    ) -> str:
        field = REASONING if self._reasoning is None else self._reasoning.field
        shown = messages_for_template(messages, field)
        return self._template.render(shown, tools=tools, **variables)

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

    def _tokenized(self, text: str) -> Prompt:
        end, format = text.rstrip(), self._reasoning
        return Prompt(
            [self._tokenizer.encode(text, add_special_tokens=False)],
            begins_reasoning=format is not None and end.endswith(format.begin),
            ends_reasoning=format is not None and end.endswith(format.before_answer),
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
