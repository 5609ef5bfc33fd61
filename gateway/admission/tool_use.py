"""A request's tools: those that the model is shown, the grammar for its calls, and their parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from engine.text.tokenizer import Tokenizer
from gateway.admission import output_format
from gateway.admission.unenforced import NO_PARAMETERS, WHOLE, LooseCalls
from gateway.errors import InvalidRequestError, UnsupportedParameter, quoted
from gateway.parsers.base import Schemas, ToolFormat, ToolParser
from gateway.schemas.chat import (
    AllowedToolsChoice,
    ChatFields,
    CustomTool,
    FunctionDefinition,
    FunctionTool,
    NamedCustomTool,
    NamedFunction,
)
from grammar import strict_profile
from grammar.errors import GrammarError
from grammar.schema.document import Schema
from grammar.schema.paths import ROOT, child
from grammar.schema.scope import Finding
from grammar.spec import GrammarSpec
from grammar.structural_tag import (
    AnyText,
    ConstString,
    Format,
    JsonSchema,
    Tag,
    TagsWithSeparator,
    Token,
    TriggeredTags,
    to_json,
)
from grammar.structural_tag import Or as Either
from grammar.structural_tag import Sequence as InOrder

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NO_SCHEMA: Schema = {"type": "object"}
_ANSWER = re.compile(r"\$\.format\.elements\[1\](?:\.elements\[\d+\])?\.json_schema")
_IN_TAG = re.compile(
    r".*\.tags\[(\d+)\]\.content(?:\.elements\[(\d+)\]\.content|\.elements\[\d+\])?"
)


class ToolUse(NamedTuple):
    """The tools of one request that shows any to the model."""

    tools: list[FunctionTool]
    """The tools shown to the model."""
    callable: list[FunctionTool]
    """The tools that it may call."""
    is_required: bool
    """Whether it must call one."""
    is_parallel: bool
    """Whether it may call more than one."""

    @property
    def is_strict(self) -> bool:
        """Whether arguments are guaranteed to satisfy their schema."""
        return any(tool.function.strict for tool in self.callable)

    @property
    def is_free(self) -> bool:
        """Whether the model's output is not constrained at all."""
        return not (self.is_required or self.is_strict or self.callable != self.tools)

    @property
    def schemas(self) -> Schemas:
        return {tool.function.name: tool.function.parameters or {} for tool in self.tools}

    def for_template(self) -> list[dict[str, Any]]:
        return shown_to_model(self.tools)


class Tools:
    """Interprets requests' tools for one model."""

    def __init__(self, format: ToolFormat | None, tokenizer: Tokenizer) -> None:
        """format: None for a model that does not support tools."""
        self.format = format
        self._tokenizer = tokenizer
        self._is_special: dict[str, bool] = {}
        self._special_ids = {
            text: token_id
            for token_id in sorted(tokenizer.special_ids, reverse=True)
            if (text := tokenizer.token_bytes(token_id).decode(errors="replace"))
        }

    def read(self, fields: ChatFields) -> ToolUse | None:
        """The tools of a request; None when no tool is shown to the model. Raises
        ``InvalidRequestError``."""
        choice = fields.tool_choice
        if not fields.tools:
            if choice not in (None, "none", "auto"):
                raise InvalidRequestError("Only allowed when tools are given.", param="tool_choice")
            return None
        tools = _checked(fields.tools)
        if choice == "none":
            return None
        if self.format is None:
            raise UnsupportedParameter("This server's model knows no tools.", param="tools")
        callable, is_required = _chosen(tools, choice)
        is_parallel = fields.parallel_tool_calls is not False
        return ToolUse(
            tools,
            callable,
            is_required,
            is_parallel and not isinstance(choice, NamedFunction),
        )

    def make_parser(self, use: ToolUse) -> Callable[[], ToolParser]:
        format, schemas = self._format, use.schemas
        return lambda: format.make_parser(schemas)

    def grammar(self, use: ToolUse, answer: GrammarSpec | None) -> GrammarSpec | None:
        """A grammar for calls as ``use`` demands, or for an ``answer`` in their place; None for
        free text.

        Raises ``InvalidRequestError`` for a strict tool whose schema cannot be enforced with this
        model.
        """
        if use.is_free and answer is None:
            return None
        strict = use.is_strict or (answer is not None and answer.strict)
        tags = tuple(self._tag(tool, strict=strict) for tool in use.callable)
        tree: Format
        if use.is_required:
            tree = self._calls(tags, use)
        elif answer is None:
            tree = self._text_and_calls(tags, use)
        else:
            tree = Either((self._calls(tags, use), self._answer(_as_format(answer))))
        blanks = answer is None or answer.any_whitespace
        return GrammarSpec("structural_tag", _dump(tree), strict, blanks)

    def loose_calls(
        self, use: ToolUse, spec: GrammarSpec | None, findings: Sequence[Finding]
    ) -> LooseCalls:
        """What to check of finished calls; None if nothing. spec: what ``grammar`` returned.
        findings: the keywords of it that are not enforced."""
        functions = {tool.function.name: tool.function for tool in use.tools}
        is_held = spec is not None and not spec.strict and self._format.has_json_arguments
        found: dict[str, list[Finding]] = {
            name: [] if is_held else [*WHOLE]
            for name, function in functions.items()
            if not function.strict
        }
        for finding in findings:
            if (place := _place(finding.path, use.callable)) is not None:
                function, path = place
                found[function.name].append(replace(finding, path=path))
        return LooseCalls(functions, {name: tuple(each) for name, each in found.items()})

    def is_special(self, text: str) -> bool:
        """Whether a special token occurs in ``text``, a part of a format."""
        if text not in self._is_special:
            token_ids = self._tokenizer.encode(text, add_special_tokens=False)
            self._is_special[text] = not self._tokenizer.special_ids.isdisjoint(token_ids)
        return self._is_special[text]

    @property
    def _format(self) -> ToolFormat:
        assert self.format is not None, "there is no ToolUse without a format"
        return self.format

    def _tag(self, tool: FunctionTool, *, strict: bool) -> Tag:
        format, function = self._format, tool.function
        begin = format.begin.replace("%s", function.name)
        return self._wrap(begin, self._arguments(function, strict=strict), format.end)

    def _arguments(self, function: FunctionDefinition, *, strict: bool) -> Format:
        wanted = NO_PARAMETERS if function.parameters is None else function.parameters
        if function.strict:
            try:
                return self._format.spell(wanted)
            except GrammarError as error:
                raise _refusal_of(function, error, output_format.told(error)) from None
        if not self._format.has_json_arguments:
            return AnyText()
        return JsonSchema((wanted or _NO_SCHEMA) if not strict else _NO_SCHEMA, ROOT)

    def _calls(self, tags: tuple[Tag, ...], use: ToolUse) -> Tag | TagsWithSeparator:
        """A format of one call or several, and nothing else."""
        format = self._format
        calls = TagsWithSeparator(tags, format.separator, True, not use.is_parallel)
        return self._wrap(format.opening, calls, format.closing) if format.opening else calls

    def _text_and_calls(self, tags: tuple[Tag, ...], use: ToolUse) -> Format:
        """Free text in which whatever the parser would read as a call is one of these."""
        format, calls = self._format, self._calls(tags, use)
        if format.text is not None:
            return Either((calls, self._answer(format.text)))
        (trigger,) = self._pieces(format.mark)
        return TriggeredTags(
            (trigger,),
            (calls,) if isinstance(calls, Tag) else tags,
            False,
            not use.is_parallel,
            # The special token's text can also be spelled with ordinary tokens.
            () if isinstance(trigger, str) else (format.mark,),
        )

    def _answer(self, content: Format) -> Format:
        """An answer without calls."""
        before = tuple(map(_piece, self._pieces(self._format.answer)))
        return InOrder((*before, content)) if self._format.answer else content

    def _wrap(self, begin: str, content: Format, end: str) -> Tag:
        first, *before = self._pieces(begin)
        *after, last = self._pieces(end)
        if isinstance(content, AnyText) and after:  # it needs an end of its own
            content = Tag("", content, (after.pop(0),))
        inner = (*map(_piece, before), content, *map(_piece, after))
        return Tag(first, inner[0] if len(inner) == 1 else InOrder(inner), (last,))

    def _pieces(self, text: str) -> list[str | Token]:
        """Split at special tokens, which grammars do not treat as text."""
        if not self.is_special(text):
            return [text]
        names = sorted(self._special_ids, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text)
        return [
            Token(self._special_ids[part]) if part in self._special_ids else part
            for part in parts
            if part
        ]


def strict_by_default(fields: ChatFields) -> ChatFields:
    """The fields, in which tools that do not say whether they are strict are strict, if their
    schema is within OpenAI's strict subset: clients check calls against it. Whether it can be
    enforced is checked later."""
    tools = [
        msgspec.structs.replace(tool, function=msgspec.structs.replace(tool.function, strict=True))
        if isinstance(tool, FunctionTool) and _is_strict_by_default(tool.function)
        else tool
        for tool in fields.tools or ()
    ]
    return fields if tools == fields.tools else msgspec.structs.replace(fields, tools=tools)


def _is_strict_by_default(function: FunctionDefinition) -> bool:
    if function.strict is not None or function.parameters is None:
        return False
    spec = GrammarSpec.from_schema(function.parameters)
    try:
        spec.validate()
        strict_profile.check(spec.document())
    except GrammarError:
        return False
    return True


def shown_to_model(tools: Sequence[FunctionTool]) -> list[dict[str, Any]]:
    """Tools as a chat template gets them. Without ``strict``, which is addressed to the server: a
    prompt does not depend on what can be enforced."""
    plain: list[dict[str, Any]] = msgspec.to_builtins(tools)
    for tool in plain:
        tool["function"].pop("strict", None)
    return plain


def about_the_answer(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings that concern the answer's schema within ``Tools.grammar``, with their path in
    that schema."""
    return tuple(
        replace(finding, path=f"${finding.path[found.end() :]}")
        for finding in findings
        if (found := _ANSWER.match(finding.path))
    )


def refusal(error: GrammarError, tools: Sequence[FunctionTool]) -> InvalidRequestError:
    """The same error, attributed to the tool whose schema it concerns."""
    path = getattr(error, "path", "")
    if (found := _place(path, tools)) is None:
        return output_format.refusal(error, "tools")
    function, inner = found
    return _refusal_of(function, error, output_format.told(error, inner))


def _refusal_of(
    function: FunctionDefinition, error: GrammarError, message: str
) -> InvalidRequestError:
    return InvalidRequestError(
        f"The schema of {function.name} cannot be used: {message}", param="tools"
    )


def _place(path: str, tools: Sequence[FunctionTool]) -> tuple[FunctionDefinition, str] | None:
    """The tool that a path in ``Tools.grammar`` leads to, and the path in its schema."""
    tag, schema, inner = path.partition(".json_schema")
    found = _IN_TAG.fullmatch(tag)
    if found is None or not schema:
        return None
    function = tools[int(found[1])].function
    if found[2] is None:
        return function, ROOT + inner
    # One tag for each property, see ``parsers.qwen``.
    name = [*(function.parameters or {}).get("properties", {})][int(found[2])]
    return function, child(child(ROOT, "properties"), name) + inner


def check_number(tools: Sequence[object]) -> None:
    """Raise ``InvalidRequestError`` if there are more tools than a request may have."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError(f"At most {MAX_TOOLS} tools.", param="tools")


def _checked(tools: Sequence[FunctionTool | CustomTool]) -> list[FunctionTool]:
    check_number(tools)
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
            raise InvalidRequestError(f"There are two tools {quoted(name)}.", param=f"{path}.name")
        names.add(name)
        _check_schema(tool, path)
        found.append(tool)
    return found


def _check_schema(tool: FunctionTool, path: str) -> None:
    function, param = tool.function, f"{path}.parameters"
    if function.parameters is None:
        if function.strict:
            raise InvalidRequestError(
                "A strict function needs a schema of its arguments.", param=param
            )
        return
    spec = GrammarSpec.from_schema(function.parameters, strict=bool(function.strict))
    if spec.strict:
        output_format.check_strict(spec, param)
    else:
        output_format.check_form(spec, param)
    kind = function.parameters.get("type", "object")
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        raise InvalidRequestError(
            f"Arguments are an object, so the schema's type must be 'object', got {kind!r}.",
            param=param,
        )


def _chosen(
    tools: list[FunctionTool],
    choice: str | NamedFunction | NamedCustomTool | AllowedToolsChoice | None,
) -> tuple[list[FunctionTool], bool]:
    """The tools that may be called, and whether one has to be."""
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
    raise InvalidRequestError(f"There is no tool {quoted(name)}.", param=param)


def _piece(piece: str | Token) -> Format:
    return ConstString(piece) if isinstance(piece, str) else piece


def _as_format(answer: GrammarSpec) -> Format:
    schema = {"type": "object"} if answer.kind == "json_object" else answer.document()
    return JsonSchema(schema, ROOT)


def _dump(tree: Format) -> str:
    return msgspec.json.encode(to_json(tree)).decode()
