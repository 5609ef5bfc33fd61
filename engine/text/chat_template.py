"""Renders a conversation with the model's own Jinja chat template. Never imports transformers.

The environment equals the one of ``transformers`` (same options, extensions, filters, globals), so
that a template gives the same text. Templates are code of the model's author and run sandboxed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import InvalidRequest, ModelLoadError, NoChatTemplate
from engine.text.tokenizer import read_json, token_text

SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# What a template itself may raise over a request's data, besides Jinja's own errors.
_DATA_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class ChatTemplate:
    """A model's chat templates: ``default``, and ``tool_use`` where the model has one."""

    def __init__(
        self, templates: dict[str, str], special_tokens: dict[str, str] | None = None
    ) -> None:
        """Raises ``ModelLoadError`` when a template does not compile."""
        environment = _environment()
        self._special_tokens = special_tokens or {}
        self._templates = {}
        self._sources = templates
        for name, source in templates.items():
            try:
                self._templates[name] = environment.from_string(source)
            except jinja2.TemplateError as error:
                raise ModelLoadError(f"the chat template {name!r} is broken: {error}") from error
        if "default" not in self._templates:
            raise ModelLoadError("the model has no default chat template")
        parsed = map(environment.parse, templates.values())
        self.variables = frozenset().union(*map(meta.find_undeclared_variables, parsed))
        """What the templates ask for: ``messages``, most often ``tools``, and what is their own."""

    @classmethod
    def load(cls, model_dir: Path, file: Path | None = None) -> ChatTemplate:
        """Reads ``file``, or the model's chat_template.jinja or tokenizer_config.json.

        Raises ``NoChatTemplate``, and ``ModelLoadError`` for one that cannot be used.
        """
        model_dir = Path(model_dir)
        config = read_json(model_dir / "tokenizer_config.json")
        if file is None:
            templates = _templates(model_dir, config.get("chat_template"))
        else:
            templates = {"default": _text(file)}
        if not templates:
            raise NoChatTemplate(
                f"{model_dir} has no chat template: add chat_template.jinja, or chat_template "
                "in tokenizer_config.json"
            )
        tokens = {name: token_text(config.get(name)) for name in SPECIAL_TOKENS}
        return cls(templates, {name: text for name, text in tokens.items() if text is not None})

    def mentions(self, text: str) -> bool:
        """Whether ``text`` stands in one of the templates."""
        return any(text in source for source in self._sources.values())

    def with_other_text(self, text: str, other: str) -> ChatTemplate:
        """The same templates, which write ``other`` where these write ``text``."""
        sources = {name: source.replace(text, other) for name, source in self._sources.items()}
        return ChatTemplate(sources, self._special_tokens)

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: object,
    ) -> str:
        """The prompt's text. It holds its own BOS: encode with ``add_special_tokens=False``.

        ``kwargs`` reach the template as variables. ``InvalidRequest`` when the template refuses.
        """
        if reserved := sorted({*self._special_tokens, "self", "documents"} & kwargs.keys()):
            raise InvalidRequest(f"{reserved[0]!r} is not a variable that a request may set")
        template = self._templates["default"]
        if tools is not None:
            template = self._templates.get("tool_use", template)
        try:
            return template.render(
                {
                    **self._special_tokens,
                    **kwargs,
                    "messages": messages,
                    "tools": tools,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except (jinja2.TemplateError, *_DATA_ERRORS) as error:
            raise InvalidRequest(f"the chat template refused the messages: {error}") from error


class MissingChatTemplate(ChatTemplate):
    """In place of the template of a model that has none: such a model completes texts only."""

    def __init__(self) -> None:
        super().__init__({"default": ""})

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: object,
    ) -> str:
        """Raises ``InvalidRequest``."""
        raise InvalidRequest(
            "this model has no chat template, so it takes no chats: use /v1/completions, or let "
            "an administrator set models.chat_template"
        )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"the chat template {file} cannot be read: {error}") from error


def _templates(model_dir: Path, inline: object) -> dict[str, str]:
    """Files win over tokenizer_config.json, as in transformers."""
    files = {"default": model_dir / "chat_template.jinja"}
    files |= {path.stem: path for path in model_dir.glob("additional_chat_templates/*.jinja")}
    found = {n: path.read_text(encoding="utf-8") for n, path in files.items() if path.is_file()}
    if found:
        return found
    if isinstance(inline, str):
        return {"default": inline}
    if isinstance(inline, list):
        return {entry["name"]: entry["template"] for entry in inline}
    return {}


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


class _GenerationBlock(Extension):
    """``{% generation %}…{% endgeneration %}`` marks the assistant's text for training only."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
