from __future__ import annotations

import json
from typing import Any

import pytest

from grammar.bench import SCHEMAS
from grammar.errors import InvalidGrammar, UnsupportedKeyword
from grammar.plan import plan
from grammar.spec import GrammarSpec

ALL = ("llguidance", "xgrammar", "outlines")
NUMBER = {"type": "integer", "minimum": 3}
LENGTH = {"type": "string", "maxLength": 3}


def backends(schema: Any, order: tuple[str, ...] = ALL, *, strict: bool = True) -> list[str]:
    spec = GrammarSpec.from_schema(schema, strict=strict)
    return [candidate.backend for candidate in plan(spec, order)]


def test_strict_keeps_those_that_enforce_all_in_the_order_given() -> None:
    assert backends({"type": "integer"}) == list(ALL)
    assert backends({"type": "integer"}, ("outlines", "xgrammar")) == ["outlines", "xgrammar"]
    assert backends(NUMBER) == ["llguidance", "xgrammar"]
    assert backends(LENGTH) == ["llguidance", "outlines"]
    assert backends({"anyOf": [NUMBER, LENGTH]}) == ["llguidance"]


def test_strict_and_nobody_able_names_the_keyword() -> None:
    with pytest.raises(UnsupportedKeyword) as caught:
        backends({"items": {"contains": {}, "maxContains": 1}, "minItems": 1})
    assert (caught.value.keyword, caught.value.path) == ("contains", "$.items.contains")


def test_not_strict_prefers_the_one_that_leaves_out_least() -> None:
    schema = {"type": "array", "items": {"anyOf": [NUMBER, LENGTH]}, "uniqueItems": True}
    assert backends(schema, ("outlines", "xgrammar", "llguidance"), strict=False)[0] == "llguidance"
    candidate = next(plan(GrammarSpec.from_schema(schema, strict=False), ALL))
    assert [finding.path for finding in candidate.unenforced] == ["$.uniqueItems"]
    assert "uniqueItems" not in candidate.spec.source


def test_a_backend_never_sees_what_it_would_misread() -> None:
    schema = LENGTH | {"x-guidance": {"lenient": True}, "format": "date", "title": "T"}
    for candidate in plan(GrammarSpec.from_schema(schema, strict=False), ALL):
        lowered = json.loads(candidate.spec.source)
        assert "x-guidance" not in lowered
        assert "format" not in lowered
        assert "title" not in lowered


def test_other_kinds_go_to_the_first_that_takes_them() -> None:
    assert [c.backend for c in plan(GrammarSpec("ebnf", "x"), ("outlines", "xgrammar"))] == [
        "xgrammar"
    ]
    assert [c.backend for c in plan(GrammarSpec("regex", "x"), ALL)] == ["llguidance"]
    with pytest.raises(InvalidGrammar, match="takes ebnf"):
        next(plan(GrammarSpec("ebnf", "x"), ("outlines",)))


def test_blanks_are_left_out_by_whoever_does_so_everywhere() -> None:
    compact = GrammarSpec("json_schema", "{}", any_whitespace=False)
    assert [candidate.backend for candidate in plan(compact, ALL)] == ["llguidance"]
    assert not next(plan(compact, ALL)).spec.any_whitespace
    with pytest.raises(InvalidGrammar, match="leaves out blanks"):
        next(plan(compact, ("xgrammar", "outlines")))


def test_schemas_inside_structural_tags_are_planned_too() -> None:
    tag = {"begin": "<f>", "schema": {"items": {"uniqueItems": True}}, "end": "</f>"}
    source = json.dumps({"structures": [tag], "triggers": ["<f>"]})
    with pytest.raises(UnsupportedKeyword) as caught:
        next(plan(GrammarSpec("structural_tag", source), ALL))
    assert caught.value.path == "$.structures[0].schema.items.uniqueItems"
    candidates = list(plan(GrammarSpec("structural_tag", source, strict=False), ALL))
    assert [candidate.backend for candidate in candidates] == ["llguidance", "xgrammar"]
    assert "uniqueItems" not in candidates[0].spec.source


def test_tags_that_name_tokens_go_to_the_one_that_can_write_them() -> None:
    def backends_of(part: dict[str, Any], order: tuple[str, ...]) -> list[str]:
        source = json.dumps({"type": "structural_tag", "format": part})
        return [
            candidate.backend for candidate in plan(GrammarSpec("structural_tag", source), order)
        ]

    token, text = {"type": "token", "token": 5}, {"type": "const_string", "value": "a"}
    assert backends_of(text, ("xgrammar", "llguidance")) == ["xgrammar", "llguidance"]
    assert backends_of(token, ("xgrammar", "llguidance")) == ["llguidance"]
    with pytest.raises(InvalidGrammar, match="xgrammar cannot be told") as caught:
        backends_of(token, ("outlines", "xgrammar"))
    assert caught.value.path == "$.format.token"


def test_one_part_of_a_tag_may_make_it_heavy() -> None:
    light = {"type": "json_schema", "json_schema": {"type": "integer"}}
    merged = {"type": "json_schema", "json_schema": {"allOf": [{"type": "integer"}]}}
    for part in (merged, {"type": "regex", "pattern": "a"}):
        tag = {"type": "sequence", "elements": [light, part]}
        source = json.dumps({"type": "structural_tag", "format": tag})
        assert not next(plan(GrammarSpec("structural_tag", source), ALL)).is_light


def is_light(schema: Any, backend: str = "llguidance") -> bool:
    return next(plan(GrammarSpec.from_schema(schema), (backend,))).is_light


@pytest.mark.parametrize("name", SCHEMAS)
def test_typical_schemas_are_light(name: str) -> None:
    assert is_light(SCHEMAS[name])


def test_what_may_take_long_is_not_light() -> None:
    assert not is_light({"type": "integer"}, "xgrammar")  # which takes its time for anything
    assert not is_light({"allOf": [{"type": "integer"}, {"minimum": 1}]})
    assert not is_light({"anyOf": [NUMBER, LENGTH], "type": ["integer", "string"]})
    assert not is_light({"enum": [f"{i:030}" for i in range(600)]})
    wide = {"type": "string", "pattern": "^" + r"\W" * 500}  # 9 kB, once it means one thing only
    assert not is_light({"anyOf": [wide, wide | {"minLength": 3}]})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        {"type": "string", "format": "email", "pattern": "a"},
    ],
)
def test_what_lowering_itself_merges_is_not_light(schema: dict[str, Any]) -> None:
    """Nested, dependencies take time exponential in their depth."""
    assert not is_light(schema)
    assert not is_light({"type": "array", "items": schema})


def test_divisors_weigh_as_much_as_their_automata() -> None:
    assert is_light({"type": "integer", "multipleOf": 4_999})
    both = [{"type": "integer", "multipleOf": divisor} for divisor in (4_999, 4_997)]
    assert not is_light({"type": "array", "prefixItems": both})
    parts = [{"type": "json_schema", "json_schema": schema} for schema in both]
    for elements, light in ((parts, False), (parts[:1], True)):
        source = json.dumps(
            {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
        )
        assert next(plan(GrammarSpec("structural_tag", source), ALL)).is_light == light


def test_only_what_has_no_expression_in_it_is_light_in_other_kinds() -> None:
    content = {"type": "json_schema", "json_schema": {"type": "integer"}}
    for part, light in ((content, True), ({"type": "regex", "pattern": "a+"}, False)):
        source = json.dumps({"type": "structural_tag", "format": part})
        assert next(plan(GrammarSpec("structural_tag", source), ALL)).is_light == light
    assert next(plan(GrammarSpec("json_object"), ALL)).is_light
    assert next(plan(GrammarSpec.from_choices(["a", "b"]), ALL)).is_light
    assert not next(plan(GrammarSpec("regex", "a+"), ALL)).is_light
    assert not next(plan(GrammarSpec("ebnf", 'start: "a"'), ALL)).is_light


def test_a_schema_that_is_plainly_false_is_refused() -> None:
    with pytest.raises(InvalidGrammar, match="nothing can satisfy"):
        backends({"enum": [1], "type": "string"})
