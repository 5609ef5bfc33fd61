from __future__ import annotations

import json
from typing import Any

import pytest

from grammar.costliest import costliest
from grammar.spec import GrammarSpec

PATTERN = {"type": "string", "pattern": "^[ab]*a[ab]{22}$"}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": PATTERN, "b": {"enum": list(range(100))}}}, "$.properties.a.pattern"),
        ({"properties": {"a": {"maxLength": 9_000}, "b": {}}}, "$.properties.a.maxLength"),
        (
            {"items": {"items": {"enum": ["a", "b"]}, "maxItems": 40}, "maxItems": 50},
            "$.items.items.enum",
        ),
        ({"anyOf": [{"type": "string"}] * 30}, "$.anyOf"),
        ({"properties": {f"p{i}": True for i in range(200)}}, "$.properties"),
        ({"$ref": "#/$defs/a", "$defs": {"a": PATTERN}}, "$['$defs'].a.pattern"),
        ({"description": "long " * 900, "minItems": 3}, "$.minItems"),
        (True, "$"),
    ],
)
def test_the_costliest_keyword_is_named(schema: Any, path: str) -> None:
    assert costliest(GrammarSpec.from_schema(schema)).replace("$.$defs", "$['$defs']") == path


def test_in_a_structural_tag_the_place_is_in_the_tag() -> None:
    tags = [
        {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}
        for content in (
            {"type": "json_schema", "json_schema": {"maxLength": 9}},
            {"type": "regex", "pattern": "a{1,400}"},
        )
    ]
    tag = {"type": "structural_tag", "format": {"type": "or", "elements": tags}}
    path = costliest(GrammarSpec("structural_tag", json.dumps(tag)))
    assert path.startswith("$.format.elements[1].content"), path


def test_elsewhere_it_is_the_whole() -> None:
    assert costliest(GrammarSpec("regex", "a{1,400}")) == "$"


@pytest.mark.parametrize("sign", [":", "::="])
def test_of_rules_the_longest_is_named(sign: str) -> None:
    rules = ['start {} x "b"', "x {} " + " | ".join(f'"{i}"' for i in range(99)), 'y {} "c"']
    source = "\n".join(rules).replace("{}", sign)
    assert costliest(GrammarSpec("ebnf", source)) == "the rule 'x'"
