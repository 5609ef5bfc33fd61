"""Pathological grammars, and what must come of each: an error that names what is at fault, from a
count of the work, before the work is done. ``TAKES`` says what must still compile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from grammar.compiler import GrammarCompiler
from grammar.errors import GrammarTooLarge, InvalidGrammar, UnsupportedKeyword
from grammar.spec import GrammarSpec
from grammar.vocabulary import Vocabulary

INTEGER = GrammarSpec.from_schema({"type": "integer"})


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    """The limits of a server, without its clock: what stops a grammar here is a count."""
    compiler = GrammarCompiler(vocabulary, backends=["llguidance"], timeout_s=60)
    compiler.start().result()
    yield compiler
    compiler.close()


def schema(value: Any) -> GrammarSpec:
    return GrammarSpec.from_schema(value, strict=False)


def ebnf(lines: list[str]) -> GrammarSpec:
    return GrammarSpec("ebnf", "\n".join(lines))


def doubling(depth: int, name: str = "r") -> GrammarSpec:
    rules = [f"{name}{i}: {name}{i + 1} {name}{i + 1}" for i in range(depth)]
    return ebnf([f"start: {name}0", *rules, f'{name}{depth}: "a"'])


def alternatives(count: int, options: int) -> dict[str, Any]:
    return {
        "allOf": [
            {"anyOf": [{"type": "object", "required": [f"{i}_{j}"]} for j in range(options)]}
            for i in range(count)
        ]
    }


def patterns(count: int) -> list[dict[str, Any]]:
    sources = (f"[a-z]{{{i + 3}}}.*{chr(97 + i % 26)}[0-9]{{{i + 2}}}" for i in range(count))
    return [{"type": "string", "pattern": source} for source in sources]


def references(depth: int, step: Any) -> dict[str, Any]:
    """Definitions each of which ``step`` makes of a reference to the next."""
    definitions: dict[str, Any] = {
        f"d{i}": step({"$ref": f"#/$defs/d{i + 1}"}) for i in range(depth)
    }
    return {"$defs": definitions | {f"d{depth}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


def nested(head: str, tail: str, depth: int) -> GrammarSpec:
    return GrammarSpec("json_schema", head * depth + "{}" + tail * depth, strict=False)


def doubled(depth: int) -> Any:
    found: Any = {"type": "integer"}
    for _ in range(depth):
        found = {"anyOf": [found, {"type": "array", "items": found}]}
    return found


def strict(**keywords: Any) -> GrammarSpec:
    return GrammarSpec.from_schema(keywords)


MEMBERS = {"type": "object", "properties": {"a": {"minimum": 1}, "b": {"minimum": 2}}}
TRAP = {"pattern": "^(a|a)*$"}
"""For a matcher that goes back, which takes longer than the universe for this:"""
TRAPPED = [f"{'a' * 40}{i}" for i in range(900)]
AGAINST = "its values take too many steps to check against pattern '^(a|a)*$'"
LONG_LIST = [{"a": i} for i in range(3_000)]

STOPPED: dict[str, tuple[GrammarSpec, type[Exception], str]] = {
    "3,000 doubling rules": (doubling(3_000), GrammarTooLarge, "rules"),
    "900 doubling rules": (doubling(900), GrammarTooLarge, "rule 'r"),
    "30 doubling terminals": (doubling(30, "T"), GrammarTooLarge, "rule 'T"),
    "doubling GBNF": (
        ebnf(
            ["root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(30)), 'r30 ::= "a"'],
        ),
        GrammarTooLarge,
        "rule 'r",
    ),
    "groups": (ebnf(["start: " + "(" * 5_000 + '"a"' + ")" * 5_000]), GrammarTooLarge, "'start'"),
    "intersections": (
        ebnf(["start: T", "T: " + " & ".join(f"/.*a.{{{i}}}b.*/" for i in range(22))]),
        GrammarTooLarge,
        "rule 'T'",
    ),
    "a long text": (ebnf([f'start: "{"a" * 200_000}"']), GrammarTooLarge, "rule 'start'"),
    "20,000 alternatives": (
        ebnf(["start: " + " | ".join(f'"x{i}"' for i in range(20_000))]),
        GrammarTooLarge,
        "alternatives",
    ),
    "nested counts in a terminal": (
        ebnf(["start: T", "T: U{1,100}", "U: (/[a-z]/{1,100} V)", 'V: "v"']),
        GrammarTooLarge,
        "rule 'T'",
    ),
    "a regex": (GrammarSpec("regex", "(a{1,1000}){1,1000}"), GrammarTooLarge, "1000000"),
    "allOf of anyOf 12 x 8": (schema(alternatives(12, 8)), GrammarTooLarge, "$.allOf"),
    "allOf of anyOf 3 x 30": (schema(alternatives(3, 30)), GrammarTooLarge, "$.allOf"),
    "allOf of anyOf 2 x 200": (schema(alternatives(2, 200)), GrammarTooLarge, "$.allOf"),
    "eight patterns": (schema({"allOf": patterns(8)}), GrammarTooLarge, "pattern"),
    "thirty patterns": (schema({"allOf": patterns(30)}), GrammarTooLarge, "pattern"),
    "thirty patterns of a member": (
        schema({"allOf": [{"properties": {"a": part}} for part in patterns(30)]}),
        GrammarTooLarge,
        "pattern",
    ),
    "references merged": (
        schema(
            references(
                25,
                lambda ref: {
                    "type": "object",
                    "properties": {name: {"allOf": [ref, MEMBERS]} for name in "ab"},
                },
            )
        ),
        GrammarTooLarge,
        "allOf",
    ),
    "references doubled in alternatives": (
        schema(references(25, lambda ref: {"anyOf": [ref, ref], "minimum": 1})),
        GrammarTooLarge,
        "",
    ),
    "a chain of references": (
        schema(references(3_000, lambda ref: {"properties": {"a": ref}})),
        GrammarTooLarge,
        "$ref",
    ),
    "20,000 required names": (
        schema({"required": [f"r{i}" for i in range(20_000)]}),
        GrammarTooLarge,
        "properties",
    ),
    "2,000 patterns of names": (
        schema({"patternProperties": {f"^{i:05}x": {} for i in range(2_000)}}),
        GrammarTooLarge,
        "patternProperties",
    ),
    "400 long patterns": (
        schema(
            {"properties": {f"p{i}": {"pattern": rf"^\w{{1,{4000 + i}}}$"} for i in range(400)}}
        ),
        GrammarTooLarge,
        "pattern",
    ),
    "values to check": (
        schema({"enum": list(range(990)), "not": {"anyOf": [{"const": i} for i in range(3_000)]}}),
        GrammarTooLarge,
        "enum",
    ),
    "items to compare": (
        schema({"enum": [LONG_LIST], "uniqueItems": True}),
        GrammarTooLarge,
        "enum",
    ),
    "a value and references": (
        schema(references(30, lambda ref: {"allOf": [ref, ref]}) | {"enum": [1]}),
        GrammarTooLarge,
        "enum",
    ),
    "a trap beside enum": (schema({"enum": TRAPPED} | TRAP), GrammarTooLarge, f"enum: {AGAINST}"),
    "a trap beside const": (
        schema({"const": TRAPPED[0], "not": TRAP}),
        GrammarTooLarge,
        f"const: {AGAINST}",
    ),
    "a trap for names": (
        schema({"const": {TRAPPED[0]: 1}, "patternProperties": {"^(a|a)*$": {}}}),
        GrammarTooLarge,
        "against patternProperties '^(a|a)*$'",
    ),
    "a trap for the names of members": (
        schema({"properties": {TRAPPED[0]: {}}, "propertyNames": TRAP}),
        GrammarTooLarge,
        "propertyNames: its values take too many steps",
    ),
    "300 alternatives": (
        schema({"oneOf": [{"properties": {f"p{i}": {}}} for i in range(300)]}),
        GrammarTooLarge,
        "oneOf: more than 250 alternatives",
    ),
    "id beside references": (
        schema({"properties": {"a": {"id": "http://a/b"}, "b": {"$ref": "http://a/b"}}}),
        InvalidGrammar,
        "id is of draft 4",
    ),
    "exclusiveMinimum alone": (
        schema({"type": "integer", "exclusiveMinimum": True}),
        InvalidGrammar,
        "exclusiveMinimum",
    ),
    "divisibleBy": (schema({"divisibleBy": 2}), InvalidGrammar, "write multipleOf"),
    "extends": (schema({"extends": {}}), InvalidGrammar, "write allOf"),
    "disallow": (schema({"disallow": "string"}), InvalidGrammar, "write not"),
    "$recursiveRef": (schema({"$recursiveRef": "#"}), InvalidGrammar, "leads back to itself"),
    "nested data": (
        GrammarSpec("json_schema", '{"const":' + "[" * 900 + "]" * 900 + "}"),
        GrammarTooLarge,
        "nested",
    ),
    "anyOf doubled 18 times": (schema(doubled(18)), GrammarTooLarge, ""),
    "20,000 values": (strict(enum=[f"v{i}" for i in range(20_000)]), GrammarTooLarge, "enum"),
    "20,000 choices": (GrammarSpec.from_choices([*map(str, range(20_000))]), GrammarTooLarge, ""),
    "1,000 optional properties": (
        strict(properties={f"p{i}": {"type": "string"} for i in range(1_000)}),
        GrammarTooLarge,
        "properties",
    ),
    "minLength 1e6": (strict(type="string", minLength=10**6), GrammarTooLarge, "minLength"),
    "maxItems 1e5": (strict(type="array", maxItems=10**5), GrammarTooLarge, "maxItems"),
    "a bound of 2**80": (strict(type="integer", minimum=2**80), UnsupportedKeyword, "minimum"),
    "repeated repetitions": (
        strict(type="string", pattern="([a-z]{1,100}){1,100}"),
        UnsupportedKeyword,
        "pattern",
    ),
    "thousands of optional parts": (
        ebnf(["start: " + '("a"|"b")? ' * 3_000]),
        GrammarTooLarge,
        "",
    ),
    "a megabyte": (strict(description="x" * 10**6), GrammarTooLarge, ""),
    **{
        f"{head} {depth} times": (nested(head, tail, depth), GrammarTooLarge, "nested")
        for depth in (70, 900, 5_000)
        for head, tail in [
            ('{"not":', "}"),
            ('{"allOf":[', "]}"),
            ('{"anyOf":[', "]}"),
            ('{"items":', "}"),
            ('{"if":', "}"),
            ('{"properties":{"a":', "}}"),
            ('{"dependentSchemas":{"a":', "}}"),
        ]
    },
}


def tagged(number: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"k": {"const": number}}, "required": ["k"]}


def levels(depth: int) -> dict[str, Any]:
    if not depth:
        return {"type": "string"}
    return {
        "type": "object",
        "properties": {"name": {"type": "string"}, "child": levels(depth - 1)},
        "required": ["name", "child"],
    }


def api(count: int, members: int) -> dict[str, Any]:
    """Definitions like those of an API's description, which refer to each other."""

    def member(i: int, j: int) -> dict[str, Any]:
        other = {"$ref": f"#/$defs/S{(i + j + 1) % count}"}
        forms: list[dict[str, Any]] = [
            {"type": "string", "maxLength": 200},
            {"type": "integer", "minimum": 0},
            {"type": "string", "format": "date-time"},
            {"type": "array", "items": other},
            {"anyOf": [{"type": "null"}, other]},
            {"enum": [f"value {k}" for k in range(12)]},
        ]
        return forms[(i + j) % 6] | {"description": f"The member {j} of the object {i}. " * 3}

    objects = {
        f"S{i}": {
            "type": "object",
            "properties": {f"member_{i}_{j}": member(i, j) for j in range(members)},
            "required": [f"member_{i}_{j}" for j in range(0, members, 2)],
        }
        for i in range(count)
    }
    return {"$defs": objects, "$ref": "#/$defs/S0"}


BASE = {"type": "object", "properties": {f"b{i}": {"maxLength": 50} for i in range(30)}}
TAKES: dict[str, GrammarSpec] = {
    "500 properties": schema({"properties": {f"p{i}": {"type": "string"} for i in range(500)}}),
    "200 values": schema({"enum": [f"value {i}" for i in range(200)]}),
    "30 levels": schema(levels(30)),
    "200 KB of an API": schema(api(90, 12)),
    "a base of twenty": schema(
        {
            "$defs": {"base": BASE},
            "properties": {
                f"p{i}": {"allOf": [{"$ref": "#/$defs/base"}, MEMBERS]} for i in range(20)
            },
        }
    ),
    "a merge that leads back": schema(
        {"type": "object", "properties": {"a": {"$ref": "#", "minProperties": 0}}}
    ),
    "exclusiveMinimum beside minimum": schema({"minimum": 1, "exclusiveMinimum": True}),
    "250 alternatives": schema({"oneOf": [tagged(i) for i in range(250)]}),
    "1,000 alternatives of one value": schema({"oneOf": [{"const": i} for i in range(1_000)]}),
    "a trap in oneOf": strict(oneOf=[{"const": TRAPPED[0]}, {"type": "string"} | TRAP]),
    "maxLength 1e12": strict(type="string", maxLength=10**12),
    "two patterns": schema({"allOf": patterns(2)}),
    "left recursion": ebnf(['start: start "a" | "a"']),
    "300 rules in a chain": ebnf(
        ["start: r0", *(f"r{i}: r{i + 1}" for i in range(300)), 'r300: "a"']
    ),
}


@pytest.mark.parametrize("name", STOPPED)
def test_a_count_stops_it_with_an_error_that_names_it(compiler: GrammarCompiler, name: str) -> None:
    spec, kind, named = STOPPED[name]
    workers = compiler.worker_pids
    with pytest.raises(kind) as caught:
        compiler.compile(spec)
    assert named in str(caught.value)
    assert len(str(caught.value)) < 1_500, "most of it the path"
    assert compiler.worker_pids == workers, "no process was lost"
    assert compiler.compile(INTEGER).backend == "llguidance"


def test_the_worker_says_no_more_than_it_must(compiler: GrammarCompiler) -> None:
    """The text of a bad library is not the client's."""
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(GrammarSpec("regex", "(" * 2_000 + "a" + ")" * 2_000))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", TAKES)
def test_what_is_large_for_good_reason_compiles(compiler: GrammarCompiler, name: str) -> None:
    assert compiler.compile(TAKES[name]).backend == "llguidance"


def test_the_description_of_an_api_is_as_large_as_it_says() -> None:
    assert 150_000 < len(json.dumps(api(90, 12))) < 256 * 1024
