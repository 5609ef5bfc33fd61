from __future__ import annotations

import random
from typing import Any

import jsonschema
import pytest

from grammar.errors import InvalidGrammar
from grammar.schema.checker import Checker
from grammar.schema.document import Document
from tests.grammar.schemas import Instances, Schemas


def messages(schema: Any, value: Any) -> list[str]:
    return [error.message for error in Checker(schema).iter_errors(value)]


def test_patterns_that_the_library_cannot_read() -> None:
    assert messages({"pattern": r"^\p{L}+$"}, "né") == []
    assert messages({"pattern": r"^\p{L}+$"}, 1) == []
    assert messages({"pattern": r"^\p{L}+$"}, "n1") == [r"'n1' does not match '^\\p{L}+$'"]


@pytest.mark.parametrize(
    ("rest", "value", "message"),
    [
        (False, {"é": 1, "N": 2, "-": "x"}, None),
        (False, {"é": "x"}, "'x' is not of type 'integer'"),
        (False, {"1": 1}, "'1' does not match any of the regexes"),
        ({"type": "null"}, {"é": 1, "1": None, "N": "x"}, None),
        ({"type": "null"}, {"1": 1}, "1 is not of type 'null'"),
    ],
)
def test_names(rest: Any, value: Any, message: str | None) -> None:
    schema = {
        "properties": {"N": {}},
        "patternProperties": {r"^\p{Ll}$": {"type": "integer"}, "^-$": {}},
        "additionalProperties": rest,
    }
    found = messages(schema, value)
    assert len(found) == (message is not None)
    assert message is None or found[0].startswith(message)


def test_a_property_that_nobody_knows() -> None:
    (message,) = messages({"pattern": r"\p{RGI_Emoji}"}, "a")
    assert message.startswith("pattern cannot be checked: ")
    names = {"patternProperties": {r"\p{RGI_Emoji}": {}}, "additionalProperties": False}
    (message,) = messages(names, {"a": 1})
    assert message.startswith("patternProperties cannot be checked: ")
    assert messages(names, {}) == []


def test_names_that_the_library_would_have_to_evaluate() -> None:
    schema = {"patternProperties": {r"^\p{L}": {}}, "unevaluatedProperties": False}
    (message,) = messages(schema, {"a": 1})
    assert message.startswith("unevaluatedProperties cannot be checked: ")


def test_a_reference_to_a_root_that_names_its_draft() -> None:
    root = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "pattern": r"^\p{L}+$",
        "additionalProperties": {"$ref": "#"},
    }
    assert Document(root).errors({"a": {"b": "é"}}) == []
    (error,) = Document(root).errors({"a": {"b": "1"}})
    assert list(error.absolute_path) == ["a", "b"]


def test_otherwise_it_finds_what_the_library_finds() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        schema = Schemas(rng, 0.5).root()
        try:
            Document(schema)
        except InvalidGrammar:  # a reference in a circle
            continue
        near = Instances(rng, schema)
        library, ours = jsonschema.Draft202012Validator(schema), Checker(schema)
        for _ in range(3):
            value = near.near(schema)
            assert ours.is_valid(value) == library.is_valid(value), (schema, value)
