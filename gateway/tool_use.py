"""What a request says of tools: what the model is shown, what it may write, and how it is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from engine.tokenizer import Tokenizer
from gateway import output_format
from gateway.errors import InvalidRequestError, UnsupportedParameter
from gateway.parsers.base import Schemas, ToolFormat, ToolParser
from gateway.schemas.chat import (
    AllowedToolsChoice,
    ChatFields,
    CustomTool,
    FunctionTool,
    NamedCustomTool,
    NamedFunction,
)
from grammar.errors import GrammarError
from grammar.schema.document import Schema
from grammar.schema.scope import Finding
from grammar.spec import GrammarSpec
from grammar.structural_tag import (
    AnyText,
    ConstString,
    Format,
    JsonSchema,
    Tag,
    TagsWithSeparator,
    TriggeredTags,
    to_json,
)
from grammar.structural_tag import Or as Either
from grammar.structural_tag import Sequence as InOrder

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NO_SCHEMA: Schema = {"type": "object"}
_NO_PARAMETERS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
"""What a function without ``parameters`` takes, as in OpenAI's API."""
_ANSWER = "$.format.elements[1].json_schema"
_IN_TAG = re.compile(r"\.tags\[(\d+)\]\.content\.json_schema")


class ToolUse(NamedTuple):
    """Of one request that shows tools to the model."""

    tools: list[FunctionTool]
    """Shown to the model."""
    callable: list[FunctionTool]
    """Those it may call."""
    is_required: bool
    """Whether it must call one."""
    is_parallel: bool
    """Whether it may call more than one."""

    @property
    def is_strict(self) -> bool:
        """Whether arguments are held to a schema without fail."""
        return any(tool.function.strict for tool in self.callable)

    @property
    def is_free(self) -> bool:
        """Whether the model may write calls as it likes."""
        return not (self.is_required or self.is_strict or self.callable != self.tools)

    @property
    def schemas(self) -> Schemas:
        return {tool.function.name: tool.function.parameters or {} for tool in self.tools}

    def for_template(self) -> list[dict[str, Any]]:
        plain: list[dict[str, Any]] = msgspec.to_builtins(self.tools)
        return plain


class Tools:
    """Reads tools for one model."""

    def __init__(self, format: ToolFormat | None, tokenizer: Tokenizer) -> None:
        """``format``: None for a model that knows no tools."""
        self.format = format
        self._tokenizer = tokenizer
        self._is_special: dict[str, bool] = {}

    def read(self, fields: ChatFields) -> ToolUse | None:
        """None when no tool is shown to the model. Raises ``InvalidRequestError``."""
        choice = fields.tool_choice
        if not fields.tools:
            if choice not in (None, "none", "auto"):
                raise InvalidRequestError("Only allowed when tools are given.", param="tool_choice")
            if fields.parallel_tool_calls is not None and fields.tools is None:
                raise InvalidRequestError(
                    "Only allowed when tools are given.", param="parallel_tool_calls"
                )
            return None
        tools = _checked(fields.tools)
        if choice == "none":
            return None
        if self.format is None:
            raise UnsupportedParameter("This server's model knows no tools.", param="tools")
        callable, is_required = _chosen(tools, choice)
        is_parallel = fields.parallel_tool_calls is not False
        use = ToolUse(
            tools,
            callable,
            is_required,
            is_parallel and not isinstance(choice, NamedFunction),
        )
        self._check_possible(use, self.format)
        return use

    def make_parser(self, use: ToolUse) -> Callable[[], ToolParser]:
        format, schemas = self._format, use.schemas
        return lambda: format.make_parser(schemas)

    def prefill(self, use: ToolUse) -> str:
        """What the prompt says already of an answer that must be a call.

        A tag that is a token of its own cannot be asked for by a grammar, which knows text only.
        """
        opening = self._format.opening
        return opening if use.is_required and self.is_special(opening) else ""

    def grammar(self, use: ToolUse, answer: GrammarSpec | None) -> GrammarSpec | None:
        """Calls as ``use`` demands, or else an ``answer``; None where anything goes."""
        if use.is_free and answer is None:
            return None
        strict = use.is_strict or (answer is not None and answer.strict)
        tags = tuple(self._tag(tool, strict=strict) for tool in use.callable)
        calls = self._calls(tags, use)
        if use.is_required:
            tree = calls if not self.prefill(use) else self._after_opening(calls)
        elif answer is None:
            trigger = _common_start([tag.begin for tag in tags])
            tree = TriggeredTags((trigger,), tags, False, not use.is_parallel)
        else:
            tree = Either((calls, _as_format(answer)))
        return GrammarSpec("structural_tag", _dump(tree), strict=strict)

    def is_special(self, text: str) -> bool:
        """Whether a special token stands in ``text``, a part of a format: there are few of them."""
        if text not in self._is_special:
            token_ids = self._tokenizer.encode(text, add_special_tokens=False)
            self._is_special[text] = not self._tokenizer.special_ids.isdisjoint(token_ids)
        return self._is_special[text]

    @property
    def _format(self) -> ToolFormat:
        assert self.format is not None, "there is no ToolUse without a format"
        return self.format

    def _check_possible(self, use: ToolUse, format: ToolFormat) -> None:
        for index, tool in enumerate(use.tools):
            if tool.function.strict and not format.has_json_arguments:
                raise UnsupportedParameter(
                    "This model does not write arguments as JSON, which alone can be held to a "
                    "schema; leave it out or send false.",
                    param=f"tools[{index}].function.strict",
                )
        if use.is_free:
            return
        inner = format.begin + format.end + format.separator
        if self.is_special(inner) or (self.is_special(format.opening) and not use.is_required):
            param = "tool_choice" if use.is_required or not use.is_strict else "tools"
            raise UnsupportedParameter(
                "This model writes calls with special tokens, which no grammar can ask for: strict "
                "tools and this tool_choice cannot be enforced.",
                param=param,
            )

    def _tag(self, tool: FunctionTool, *, strict: bool) -> Tag:
        format, function = self._format, tool.function
        content: Format = AnyText()
        if format.has_json_arguments:
            is_held = bool(function.strict) or not strict
            wanted = _NO_PARAMETERS if function.parameters is None else function.parameters
            content = JsonSchema((is_held and wanted) or _NO_SCHEMA, "$")
        return Tag(format.begin.replace("%s", function.name), content, (format.end,))

    def _calls(self, tags: tuple[Tag, ...], use: ToolUse) -> Format:
        format = self._format
        calls = TagsWithSeparator(tags, format.separator, True, not use.is_parallel)
        if not format.opening:
            return calls
        return InOrder((ConstString(format.opening), calls, ConstString(format.closing)))

    def _after_opening(self, calls: Format) -> Format:
        assert isinstance(calls, InOrder)
        return InOrder(calls.elements[1:])


def about_the_answer(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Those of ``Tools.grammar`` that are about the answer's schema, by their path in that."""
    return tuple(
        replace(finding, path=f"${finding.path.removeprefix(_ANSWER)}")
        for finding in findings
        if finding.path.startswith(_ANSWER)
    )


def refusal(error: GrammarError, tools: Sequence[FunctionTool]) -> InvalidRequestError:
    """The same error, at the tool whose schema it is about."""
    path = getattr(error, "path", "")
    if (found := _IN_TAG.search(path)) is None:
        return output_format.refusal(error, "tools")
    inner = f"${path[found.end() :]}"
    return InvalidRequestError(
        f"The schema of {tools[int(found[1])].function.name} cannot be used: "
        f"{str(error).replace(path, inner)}",
        param="tools",
    )


def _checked(tools: Sequence[FunctionTool | CustomTool]) -> list[FunctionTool]:
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError(f"At most {MAX_TOOLS} tools.", param="tools")
    found: list[FunctionTool] = []
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if isinstance(tool, CustomTool):
            raise UnsupportedParameter(
                "Only tools of the type function are supported.", param=f"tools[{index}].type"
            )
        name, path = tool.function.name, f"tools[{index}].function"
        if _NAME.fullmatch(name) is None:
            raise InvalidRequestError(
                "Must be 1 to 64 characters of a-z, A-Z, 0-9, _ and -.", param=f"{path}.name"
            )
        if name in names:
            raise InvalidRequestError(f"There are two tools {name!r}.", param=f"{path}.name")
        names.add(name)
        if tool.function.strict:
            _check_strict(tool, path)
        found.append(tool)
    return found


def _check_strict(tool: FunctionTool, path: str) -> None:
    if tool.function.parameters is None:
        raise InvalidRequestError(
            "A strict function needs a schema of its arguments.", param=f"{path}.parameters"
        )
    output_format.check_strict(
        GrammarSpec.from_schema(tool.function.parameters), f"{path}.parameters"
    )


def _chosen(
    tools: list[FunctionTool],
    choice: str | NamedFunction | NamedCustomTool | AllowedToolsChoice | None,
) -> tuple[list[FunctionTool], bool]:
    """The tools that may be called, and whether one must be."""
    match choice:
        case NamedFunction(function):
            return [_named(tools, function.name, "tool_choice.function.name")], True
        case NamedCustomTool():
            raise UnsupportedParameter(
                "Only tools of the type function are supported.", param="tool_choice.type"
            )
        case AllowedToolsChoice(allowed):
            names = {_allowed(tools, named, index) for index, named in enumerate(allowed.tools)}
            if not names:
                raise InvalidRequestError(
                    "At least one tool must be allowed.", param="tool_choice.allowed_tools.tools"
                )
            chosen = [tool for tool in tools if tool.function.name in names]
            return chosen, allowed.mode == "required"
    return tools, choice == "required"


def _allowed(tools: list[FunctionTool], named: NamedFunction | NamedCustomTool, index: int) -> str:
    path = f"tool_choice.allowed_tools.tools[{index}]"
    if isinstance(named, NamedCustomTool):
        raise UnsupportedParameter(
            "Only tools of the type function are supported.", param=f"{path}.type"
        )
    return _named(tools, named.function.name, f"{path}.function.name").function.name


def _named(tools: list[FunctionTool], name: str, param: str) -> FunctionTool:
    for tool in tools:
        if tool.function.name == name:
            return tool
    raise InvalidRequestError(f"There is no tool {name!r}.", param=param)


def _common_start(texts: list[str]) -> str:
    """Up to the name: what every call begins with, whichever function it is of."""
    first, last = min(texts), max(texts)
    length = 0
    while length < len(first) and first[length] == last[length]:
        length += 1
    return first[:length]


def _as_format(answer: GrammarSpec) -> Format:
    schema = {"type": "object"} if answer.kind == "json_object" else answer.document()
    return JsonSchema(schema, "$")


def _dump(tree: Format) -> str:
    return msgspec.json.encode(to_json(tree)).decode()
