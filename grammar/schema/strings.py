"""``pattern``, ``format`` and lengths."""

from __future__ import annotations

from grammar.schema import formats
from grammar.schema.patterns import Pattern, PatternError
from grammar.schema.scope import Scope

KEYWORDS = ("pattern", "format", "minLength", "maxLength")


def lower(scope: Scope) -> None:
    present = scope.present(KEYWORDS)
    if "string" not in scope.types:
        scope.enforce(*present)
        return
    if "pattern" in present:
        _lower_pattern(scope)
    if "format" in present:
        _lower_format(scope)
    for keyword in scope.present(("minLength", "maxLength")):
        if scope.dialect.merges or "pattern" not in scope.lowered:
            scope.keep(keyword, int(scope.schema[keyword]))
        else:
            scope.drop(keyword, f"{scope.dialect.name} ignores it beside a pattern or a format")


def _lower_pattern(scope: Scope) -> None:
    try:
        pattern = Pattern.parse(scope.schema["pattern"])
    except PatternError as error:
        scope.drop("pattern", str(error))
        return
    text = scope.dialect.pattern(pattern)
    if text is None:
        scope.drop("pattern", f"{scope.dialect.name} cannot follow it")
    else:
        scope.keep("pattern", text)


def _lower_format(scope: Scope) -> None:
    name = scope.schema["format"]
    found = formats.lookup(name)
    text = None if found is None else scope.dialect.pattern(found.pattern)
    if found is None or text is None:
        scope.drop("format", f"the format '{name}' cannot be enforced")
    elif "pattern" not in scope.lowered and found.max_length is None:
        scope.lowered["pattern"] = text
        scope.enforce("format")
    elif scope.dialect.merges:
        length = {} if found.max_length is None else {"maxLength": found.max_length}
        scope.also({"pattern": text, **length})
        scope.enforce("format")
    else:
        scope.drop("format", f"{scope.dialect.name} ignores it beside a pattern or a length")
