"""References, alternatives, conjunctions and conditions."""

from __future__ import annotations

from grammar.schema.disjoint import overlapping
from grammar.schema.document import Schema
from grammar.schema.forms import TYPES
from grammar.schema.languages import TooComplex
from grammar.schema.negation import Around, Open, all_of, any_of
from grammar.schema.paths import child
from grammar.schema.scope import Scope

KEYWORDS = (
    *("$ref", "$dynamicRef", "anyOf", "oneOf", "allOf"),
    *("not", "if", "then", "else"),
)

_MAX_OVERLAPS = 100


def lower(scope: Scope) -> None:
    if "$dynamicRef" in scope.schema:
        scope.drop("$dynamicRef", "it is not supported")
    if "$ref" in scope.schema:
        path = child(scope.path, "$ref")
        scope.keep("$ref", scope.lowering.reference(scope.schema["$ref"], path))
    if "anyOf" in scope.schema:
        scope.keep("anyOf", _options(scope, "anyOf"))
    if "oneOf" in scope.schema:
        _lower_one_of(scope)
    if "allOf" in scope.schema:
        parts = [scope.sub(s, "allOf", i) for i, s in enumerate(scope.schema["allOf"])]
        scope.keep("allOf", [part for part in parts if part != {}])
    _lower_conditions(scope)


def _options(scope: Scope, keyword: str) -> list[Schema]:
    options = [scope.sub(s, keyword, i) for i, s in enumerate(scope.schema[keyword])]
    return [option for option in options if option is not False] or [False]


def _lower_one_of(scope: Scope) -> None:
    alternatives = scope.schema["oneOf"]
    options = [scope.sub(s, "oneOf", i) for i, s in enumerate(alternatives)]
    try:
        overlaps = overlapping(alternatives, scope.document)
        if sum(map(len, overlaps.values())) > _MAX_OVERLAPS:
            raise Open("too many of them do")
        for place, others in overlaps.items():
            around = [scope.around("oneOf"), alternatives[place]]
            apart = [
                _complement(scope, "oneOf", alternatives[other], around, common)
                for other, common in others.items()
            ]
            options[place] = all_of([options[place], *apart])
            scope.lowering.merges = True
    except (Open, TooComplex) as error:
        scope.drop(
            "oneOf",
            f"its alternatives may overlap, and {error}; write anyOf, or a constant in each",
        )
    else:
        scope.enforce("oneOf")
    options = [option for option in options if option is not False] or [False]
    if "anyOf" not in scope.lowered:
        scope.lowered["anyOf"] = options
    else:
        scope.also({"anyOf": options})


def _complement(
    scope: Scope,
    keyword: str,
    schema: Schema,
    around: list[Schema],
    types: frozenset[str] = frozenset(TYPES),
) -> Schema:
    """What ``schema`` does not allow, lowered; it allows only values of ``types``. Raises
    ``Open``."""
    if not scope.dialect.merges:
        raise Open(f"{scope.dialect.name} does not combine schemas")
    context = Around(around, scope.document)
    return scope.instead(scope.lowering.negation.of_types(schema, types, context), keyword)


def _lower_conditions(scope: Scope) -> None:
    schema = scope.schema
    if "not" in schema:
        try:
            scope.also(_complement(scope, "not", schema["not"], [scope.around("not")]))
        except Open as error:
            scope.drop("not", f"what is left cannot be said: {error}")
        else:
            scope.enforce("not")
    if "if" not in schema or not scope.present(("then", "else")):
        scope.enforce("if", "then", "else")
        return
    try:
        _lower_branches(scope)
    except Open as error:
        for keyword in scope.present(("if", "then", "else")):
            scope.drop(keyword, f"what does not match it cannot be said: {error}")
    else:
        scope.enforce("if", "then", "else")


def _lower_branches(scope: Scope) -> None:
    schema = scope.schema
    around = [scope.around("if", "then", "else")]
    otherwise = [_complement(scope, "if", schema["if"], around)]
    if "else" in schema:
        otherwise.append(scope.sub(schema["else"], "else"))
    then = [scope.sub(schema["if"], "if")]
    if "then" in schema:
        then.append(scope.sub(schema["then"], "then"))
    scope.also(any_of([all_of(then), all_of(otherwise)]))
