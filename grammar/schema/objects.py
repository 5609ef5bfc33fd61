"""Members of objects: their names, their values, their number."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

from grammar.schema import ecma
from grammar.schema.arrays import COMBINATORS
from grammar.schema.document import Schema
from grammar.schema.paths import child
from grammar.schema.patterns import Pattern, PatternError, literal
from grammar.schema.scope import Scope
from grammar.schema.values import is_plain

KEYWORDS = (
    "properties",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "required",
    "minProperties",
    "maxProperties",
    "dependentRequired",
    "dependentSchemas",
)
_UNSPEAKABLE_NAME = "a control character without a short escape in a name"
# Each dependency doubles the alternatives that the engine must keep apart.
_MAX_DEPENDENCIES = 4


def lower(scope: Scope) -> None:
    present = scope.present(KEYWORDS)
    if "object" not in scope.types:
        scope.enforce(*present)
        return
    _Members(scope).lower()
    _lower_counts(scope)
    _lower_dependencies(scope)


class _Members:
    """The names that an object can have, and their schemas."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        schema = scope.schema
        self._properties: dict[str, Schema] = {
            name: scope.sub(sub, "properties", name)
            for name, sub in schema.get("properties", {}).items()
        }
        self._patterns: dict[str, Schema] = {}
        self._rest: Schema = {}

    def lower(self) -> None:
        self._drop_unspeakable_names()
        self._lower_rest()
        self._lower_patterns()
        self._lower_property_names()
        scope = self._scope
        if not scope.dialect.merges:
            # Only a closed object keeps its properties there, and a closed one forbids the rest.
            if any(
                self._properties.get(name) is False for name in scope.lowered.get("required", ())
            ):
                scope.rule_out("object")
            self._properties = {k: v for k, v in self._properties.items() if v is not False}
        if self._properties:
            scope.lowered["properties"] = self._properties
        if self._patterns:
            scope.lowered["patternProperties"] = self._patterns
        if self._rest != {}:
            scope.lowered["additionalProperties"] = self._rest

    def _drop_unspeakable_names(self) -> None:
        """Names that the engine never writes, so that their schemas can be left out."""
        scope = self._scope
        self._properties = {k: v for k, v in self._properties.items() if is_plain(k)}
        scope.enforce("properties")
        if "required" not in scope.schema:
            return
        if all(map(is_plain, scope.schema["required"])):
            scope.keep("required", scope.schema["required"])
        else:
            scope.drop("required", _UNSPEAKABLE_NAME)

    def _lower_rest(self) -> None:
        scope, schema = self._scope, self._scope.schema
        if "additionalProperties" in schema:
            self._rest = scope.sub(schema["additionalProperties"], "additionalProperties")
            scope.enforce("additionalProperties", "unevaluatedProperties")
        elif "unevaluatedProperties" in schema:
            if schema["unevaluatedProperties"] is not True and scope.present(COMBINATORS):
                reason = "what other keywords evaluate cannot be followed"
                scope.drop("unevaluatedProperties", reason)
                return
            self._rest = scope.sub(schema["unevaluatedProperties"], "unevaluatedProperties")
            scope.enforce("unevaluatedProperties")

    def _lower_patterns(self) -> None:
        scope = self._scope
        sources: dict[str, Any] = scope.schema.get("patternProperties", {})
        problem = _pattern_problem(sources, closed=self._rest is False)
        if problem is not None:
            scope.drop("patternProperties", problem)
            if self._rest != {}:
                self._rest = {}
                for keyword in scope.present(("additionalProperties", "unevaluatedProperties")):
                    scope.drop(keyword, "it depends on patternProperties")
            return
        for source, sub in sources.items():
            lowered = scope.sub(sub, "patternProperties", source)
            self._patterns[_anchored(Pattern.parse(source).full)] = lowered
            for name in self._properties:
                if ecma.matches(source, name):
                    self._properties[name] = _both(self._properties[name], lowered)
        scope.enforce("patternProperties")

    def _lower_property_names(self) -> None:
        scope = self._scope
        if "propertyNames" not in scope.schema:
            return
        names = scope.schema["propertyNames"]
        if isinstance(names, dict) and set(names) == {"$ref"}:
            path = child(scope.path, "propertyNames")
            names, _ = scope.document.resolve(names["$ref"], path)
        expression = _name_expression(names)
        if expression is None or self._patterns:
            scope.drop("propertyNames", "only one plain pattern, length or enum of names can be")
            return
        place = child(scope.path, "propertyNames")
        for name in self._properties:
            if not scope.document.is_valid(name, names, place):
                self._properties[name] = False
        own = [name for name, sub in self._properties.items() if sub is not False]
        listed = _listed(names) if own else None
        if self._rest is False:
            pass
        elif listed is not None:
            # After the last possible name of a pattern, the engine would still write a comma.
            for name in listed:
                self._properties.setdefault(name, self._rest)
            self._rest = False
        elif own and self._rest != {}:
            reason = "a pattern of names would also hold for the properties that have a name"
            scope.drop("propertyNames", reason)
            return
        else:
            self._patterns = {_anchored(expression): self._rest}
            self._rest = False
        scope.enforce("propertyNames")


def _listed(names: Schema) -> list[str] | None:
    """The names that ``propertyNames`` of a simple form lists, if it does."""
    if isinstance(names, bool) or names.keys().isdisjoint({"enum", "const"}):
        return None
    values = names["enum"] if "enum" in names else [names["const"]]
    return [value for value in values if isinstance(value, str) and is_plain(value)]


def _both(first: Schema, second: Schema) -> Schema:
    if first is False or second is False:
        return False
    return {"allOf": [first, second]}


def _anchored(expression: str) -> str:
    return f"^(?:{expression})$"


def _pattern_problem(sources: dict[str, Any], *, closed: bool) -> str | None:
    try:
        patterns = [Pattern.parse(source) for source in sources]
    except PatternError as error:
        return str(error)
    if not closed and not all(pattern.exact for pattern in patterns):
        return (
            "which names match depends on the dialect; anchor only the start, or close the object"
        )
    prefixes = sorted(pattern.prefix for pattern in patterns)
    if any(b.startswith(a) for a, b in pairwise(prefixes)):
        return "several patterns must begin differently"
    return None


def _name_expression(names: Schema) -> str | None:
    """The expression for the names that ``propertyNames`` allows, if it is a simple one."""
    if isinstance(names, bool):
        return r"[\s\S]*" if names else None
    said = {k: v for k, v in names.items() if k not in ("title", "description", "$comment")}
    if said.pop("type", "string") != "string":
        return None
    match said:
        case {"pattern": source, **rest} if not rest:
            try:
                return Pattern.parse(source).full
            except PatternError:
                return None
        case {"enum": values, **rest} if not rest:
            names_allowed = [v for v in values if isinstance(v, str) and is_plain(v)]
            return "|".join(map(literal, names_allowed)) if names_allowed else None
        case {"const": str(value), **rest} if not rest and is_plain(value):
            return literal(value)
        case {"maxLength": most, **rest} if set(rest) <= {"minLength"} and most <= 1000:
            return rf"[\s\S]{{{int(rest.get('minLength', 0))},{int(most)}}}"
        case {"minLength": least, **rest} if not rest and least <= 1000:
            return rf"[\s\S]{{{int(least)},}}"
        case _:
            return r"[\s\S]*" if not said else None


def _lower_counts(scope: Scope) -> None:
    lowered = scope.lowered
    names = {*lowered.get("properties", ()), *lowered.get("required", ())}
    num_required = len(lowered.get("required", ()))
    closed = lowered.get("additionalProperties") is False and "patternProperties" not in lowered
    for keyword in scope.present(("minProperties", "maxProperties")):
        count = int(scope.schema[keyword])
        least = keyword == "minProperties"
        if count <= num_required if least else closed and count >= len(names):
            scope.enforce(keyword)
        elif num_required < len(names):
            scope.drop(keyword, "it cannot be counted beside optional properties")
        elif least and count > num_required + 1:
            # A repeated name is one member, but a grammar cannot remember names.
            scope.drop(keyword, "free names may repeat: only one more than is required can be")
        else:
            scope.keep(keyword, count)


def _lower_dependencies(scope: Scope) -> None:
    for keyword in scope.present(("dependentRequired", "dependentSchemas")):
        # On a name that an engine never writes nothing depends.
        dependencies = {k: v for k, v in scope.schema[keyword].items() if is_plain(k)}
        if len(dependencies) > _MAX_DEPENDENCIES:
            scope.drop(keyword, f"more than {_MAX_DEPENDENCIES} dependencies")
            continue
        if keyword == "dependentRequired" and not all(map(is_plain, chain(*dependencies.values()))):
            scope.drop(keyword, _UNSPEAKABLE_NAME)
            continue
        for name, needs in dependencies.items():
            if keyword == "dependentRequired":
                then: Schema = {"required": needs}
            else:
                then = scope.sub(needs, keyword, name)
            scope.also({"anyOf": [{"properties": {name: False}}, then]})
        scope.enforce(keyword)
