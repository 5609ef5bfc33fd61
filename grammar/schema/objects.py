"""Members of objects: their names, their values, their number."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain, combinations
from math import comb

from grammar.schema import ecma
from grammar.schema.arrays import COMBINATORS
from grammar.schema.document import Document, Schema
from grammar.schema.languages import Language, TooComplex
from grammar.schema.negation import all_of, any_of
from grammar.schema.paths import child
from grammar.schema.patterns import Pattern, PatternError
from grammar.schema.scope import Scope
from grammar.schema.texts import Irregular, language_of
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
_MAX_DEPENDENCIES = 8
_MAX_CELLS = 64
_MAX_COMBINATIONS = 64


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
        sources: dict[str, Schema] = scope.schema.get("patternProperties", {})
        lowered = {
            source: scope.sub(sub, "patternProperties", source) for source, sub in sources.items()
        }
        names = scope.schema.get("propertyNames", True)
        place = child(scope.path, "propertyNames")
        try:
            listed = _listed(names, scope.document, place)
            cells = _Cells(lowered)
            if listed is None and names is not True:
                cells.restrict(language_of(names, scope.document), self._rest, self._properties)
            if listed is None:
                self._patterns = cells.written()
        except (PatternError, Irregular, TooComplex) as error:
            self._drop_patterns(str(error))
            return
        for name in [*self._properties, *(listed or ())]:
            own = self._properties.get(name)
            matching = [sub for source, sub in lowered.items() if ecma.matches(source, name)]
            if own is None:
                own = {} if matching else self._rest
            self._properties[name] = all_of([own, *matching])
        if names is not True:
            for name in self._properties:
                if not scope.document.is_valid(name, names, place):
                    self._properties[name] = False
            self._rest = False
        scope.enforce("patternProperties", "propertyNames")

    def _drop_patterns(self, reason: str) -> None:
        scope = self._scope
        for keyword in scope.present(("patternProperties", "propertyNames")):
            scope.drop(keyword, reason)
        if self._rest != {} and "patternProperties" in scope.schema:
            self._rest = {}
            for keyword in scope.present(("additionalProperties", "unevaluatedProperties")):
                scope.drop(keyword, "it depends on patternProperties")


def _listed(names: Schema, document: Document, place: str) -> list[str] | None:
    """The names that ``propertyNames`` lists, if it does."""
    if isinstance(names, dict) and set(names) == {"$ref"}:
        names, _ = document.resolve(names["$ref"], place)
    if isinstance(names, bool) or names.keys().isdisjoint({"enum", "const"}):
        return [] if names is False else None
    values = names["enum"] if "enum" in names else [names["const"]]
    return [value for value in values if isinstance(value, str) and is_plain(value)]


class _Cells:
    """Sets of names that have no name in common, each with the schemas that hold for it."""

    def __init__(self, patterns: dict[str, Schema]) -> None:
        """Raises ``PatternError`` or ``TooComplex``."""
        self._cells: list[_Cell] = []
        for source, sub in patterns.items():
            self._add(_Cell(Pattern.parse(source), [sub]))

    def restrict(self, names: Language, rest: Schema, own: Iterable[str]) -> None:
        """Leave names in ``names`` only, of which all others are for ``rest``. ``own`` are the
        names that have a schema of their own."""
        names -= Language.of_texts(own)
        others = names
        for cell in self._cells:
            others -= cell.names
            cell.narrow(names)
        self._cells = [cell for cell in self._cells if not cell.names.is_empty()]
        if rest is not False and not others.is_empty():
            self._cells.append(_Cell(others, [rest]))

    def written(self) -> dict[str, Schema]:
        """As ``patternProperties``."""
        return {f"^(?:{cell.expression()})$": all_of(cell.schemas) for cell in self._cells}

    def _add(self, new: _Cell) -> None:
        cells: list[_Cell] = []
        for cell in self._cells:
            if cell.is_apart(new):
                cells.append(cell)
                continue
            common = _Cell(cell.names & new.names, [*cell.schemas, *new.schemas])
            first = _Cell(cell.names - new.names, cell.schemas)
            new = _Cell(new.names - cell.names, new.schemas)
            cells += [part for part in (first, common) if not part.names.is_empty()]
        if len(cells) > _MAX_CELLS:
            raise TooComplex(f"its patterns overlap in more than {_MAX_CELLS} ways")
        if not self._cells or not new.names.is_empty():
            cells.append(new)
        self._cells = cells


class _Cell:
    def __init__(self, names: Pattern | Language, schemas: list[Schema]) -> None:
        self._pattern = names if isinstance(names, Pattern) else None
        self._language = None if isinstance(names, Pattern) else names
        self.schemas = schemas

    @property
    def names(self) -> Language:
        if self._language is None:
            assert self._pattern is not None
            self._language = self._pattern.language
        return self._language

    def narrow(self, names: Language) -> None:
        self._language, self._pattern = self.names & names, None

    def is_apart(self, other: _Cell) -> bool:
        if self._pattern is not None and other._pattern is not None:
            one, two = self._pattern.prefix, other._pattern.prefix
            if not one.startswith(two) and not two.startswith(one):
                return True
        return self.names.is_disjoint(other.names)

    def expression(self) -> str:
        if self._pattern is not None and len(self._pattern.full) == 1:
            return self._pattern.full[0]
        return self.names.regex()


def _lower_counts(scope: Scope) -> None:
    lowered = scope.lowered
    required = set(lowered.get("required", ()))
    names = {*lowered.get("properties", ()), *required}
    impossible = {name for name, sub in lowered.get("properties", {}).items() if sub is False}
    optional = sorted(names - required - impossible)
    closed = lowered.get("additionalProperties") is False and "patternProperties" not in lowered
    counts: dict[str, int] = {}
    for keyword in scope.present(("minProperties", "maxProperties")):
        count = int(scope.schema[keyword])
        least = keyword == "minProperties"
        if count <= len(required) if least else closed and count >= len(names - impossible):
            scope.enforce(keyword)
        elif least and not closed and count > len(required) + 1:
            # A repeated name is one member, but a grammar cannot remember names.
            scope.drop(keyword, "free names may repeat: only one more than is required can be")
        else:
            counts[keyword] = count
    if not counts:
        return
    if not optional:
        for keyword, count in counts.items():
            scope.keep(keyword, count)
        return
    alternatives = _closed_counts if closed else _open_counts
    options = alternatives(optional, counts, len(required))
    if options is None or not scope.dialect.merges:
        for keyword in counts:
            scope.drop(keyword, "it cannot be counted beside so many optional properties")
        return
    others = sorted(scope.types - {"object", "integer"})
    scope.also(any_of([{"type": others}, *options] if others else options))
    scope.enforce(*counts)


def _closed_counts(
    optional: list[str], counts: dict[str, int], num_required: int
) -> list[Schema] | None:
    """Which of the optional names there are, or are not, as the other names are fixed."""
    least = counts.get("minProperties", 0) - num_required
    most = counts.get("maxProperties", num_required + len(optional)) - num_required
    if most < least or most < 0:
        return [False]
    if comb(len(optional), max(least, 0)) * comb(len(optional), max(most, 0)) > _MAX_COMBINATIONS:
        return None
    with_least: list[Schema] = [
        {"type": "object", "required": list(names)}
        for names in combinations(optional, max(least, 0))
    ]
    without: list[Schema] = [
        {"type": "object", "properties": dict.fromkeys(names, False)}
        for names in combinations(optional, max(len(optional) - most, 0))
    ]
    return [all_of([any_of(with_least), any_of(without)])]


def _open_counts(
    optional: list[str], counts: dict[str, int], num_required: int
) -> list[Schema] | None:
    """For each set of optional names, how many others there are."""
    if 2 ** len(optional) > _MAX_COMBINATIONS:
        if set(counts) != {"minProperties"} or len(optional) > _MAX_COMBINATIONS:
            return None
        none = {"type": "object", "properties": dict.fromkeys(optional, False), **counts}
        return [none, *({"type": "object", "required": [name]} for name in optional)]
    return [
        {
            "type": "object",
            "required": list(names),
            "properties": {name: False for name in optional if name not in names},
            **{
                k: n
                for k, n in counts.items()
                if k == "maxProperties" or n > num_required + len(names)
            },
        }
        for size in range(len(optional) + 1)
        for names in combinations(optional, size)
        if num_required + size <= counts.get("maxProperties", num_required + size)
    ]


def _lower_dependencies(scope: Scope) -> None:
    for keyword in scope.present(("dependentRequired", "dependentSchemas")):
        # On a name that an engine never writes nothing depends.
        dependencies = {k: v for k, v in scope.schema[keyword].items() if is_plain(k)}
        if keyword == "dependentRequired" and not all(map(is_plain, chain(*dependencies.values()))):
            scope.drop(keyword, _UNSPEAKABLE_NAME)
            continue
        thens: dict[str, tuple[Schema, list[str]]] = {}
        for name, needs in dependencies.items():
            if keyword == "dependentRequired":
                then: Schema = {"required": needs}
            else:
                then = scope.sub(needs, keyword, name)
            if then != {}:
                thens.setdefault(json.dumps(then), (then, []))[1].append(name)
        if len(thens) > _MAX_DEPENDENCIES:
            scope.drop(keyword, f"more than {_MAX_DEPENDENCIES} different dependencies")
            continue
        for then, names in thens.values():
            scope.also({"anyOf": [{"properties": dict.fromkeys(names, False)}, then]})
        scope.enforce(keyword)
