"""``pattern``, ``format`` and lengths."""

from __future__ import annotations

from grammar.schema import formats
from grammar.schema.patterns import Pattern, PatternError
from grammar.schema.scope import Scope

_LONGEST = 2**31 - 1
"""Characters that no output has."""
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
            scope.keep(keyword, min(int(scope.schema[keyword]), _LONGEST))
        else:
            scope.drop(keyword, f"{scope.dialect.name} ignores it beside a pattern or a format")


def _lower_pattern(scope: Scope) -> None:
    try:
        pattern = Pattern.parse(scope.schema["pattern"])
    except PatternError as error:
        scope.drop("pattern", str(error))
        return
    texts = scope.dialect.pattern(pattern)
    if texts is None:
        scope.drop("pattern", f"{scope.dialect.name} cannot follow it")
        return
    scope.keep("pattern", texts[0])
    for text in texts[1:]:
        scope.also({"pattern": text})


def _lower_format(scope: Scope) -> None:
    name = scope.schema["format"]
    found = formats.lookup(name)
    if found is None:  # an annotation
        scope.enforce("format")
        return
    texts = scope.dialect.pattern(found.pattern)
    if texts is None:
        scope.drop("format", f"{scope.dialect.name} cannot follow the format '{name}'")
    elif "pattern" not in scope.lowered and found.max_length is None and len(texts) == 1:
        scope.lowered["pattern"] = texts[0]
        scope.enforce("format")
    elif scope.dialect.merges:
        for text in texts:
            scope.also({"pattern": text})
        if found.max_length is not None:
            scope.also({"maxLength": found.max_length})
        scope.enforce("format")
    else:
        scope.drop("format", f"{scope.dialect.name} ignores it beside a pattern or a length")
