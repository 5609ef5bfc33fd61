"""The settings as documents show them: each with its type, default and meaning."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.config.loading import ENV_PREFIX, SECTIONS


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the settings table."""

    section: str
    key: str
    type: str
    default: str
    """As TOML would write it; empty when there is none."""
    description: str

    @property
    def is_shared(self) -> bool:
        """Whether all models of ``[[models]]`` have the same value."""
        own = self.section in ("engine", "models")
        return not own and (self.section, self.key) != ("fleet", "replicas")

    @property
    def env(self) -> str:
        return f"{ENV_PREFIX}{self.section}_{self.key}".upper()


def settings() -> Iterator[Setting]:
    """Every key of every section, in the order of ``Config``."""
    for section, struct in SECTIONS.items():
        documented = _attribute_docs(struct)
        for field in msgspec.structs.fields(struct):
            yield Setting(
                section=section,
                key=field.name,
                type=documented[field.name][0],
                default="" if field.required else _toml(_default(field)),
                description=documented[field.name][1],
            )


def _attribute_docs(struct: type[msgspec.Struct]) -> dict[str, tuple[str, str]]:
    """Attribute to (annotation, docstring below it): Python keeps neither at run time."""
    docs: dict[str, tuple[str, str]] = {}
    if (base := struct.__base__) is not None and base is not msgspec.Struct:
        docs = _attribute_docs(base)
    body = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    assert isinstance(body, ast.ClassDef)
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = " ".join(str(after.value.value).split())
            docs[node.target.id] = (ast.unparse(node.annotation), text)
    return docs


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _toml(value: Any) -> str:
    if value is None:
        return ""
    return msgspec.json.encode(value).decode()
