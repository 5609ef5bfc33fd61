from __future__ import annotations

from typing import Any

import pytest

from grammar.spec import GrammarSpec
from grammar.validation import validate

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        "d": {"format": "date"},
        "r": {"$ref": "#"},
    },
}


def report(schema: Any, text: str) -> list[tuple[str, str]]:
    found = validate(GrammarSpec.from_schema(schema), text)
    assert found.passed == (not found.violations)
    return [(violation.path, violation.message) for violation in found.violations]


@pytest.mark.parametrize("text", ["{}", '{"a": [1, 2], "r": {"a": []}}', '{"d": "2024-02-29"}'])
def test_valid_documents_pass(text: str) -> None:
    assert report(SCHEMA, text) == []


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ('{"a": [1, 1]}', "$.a", "non-unique"),
        ('{"r": {"r": {"a": [1, "x"]}}}', "$.r.r.a[1]", "not of type 'integer'"),
        ('{"d": "2023-02-29"}', "$.d", "is not a 'date'"),
        ("[]", "$", "not of type 'object'"),
        ('{"a": [1, 2', "$", "not JSON"),
        ('{"x": NaN}', "$", "not JSON: NaN"),
        ('{"x": [-Infinity]}', "$", "not JSON: -Infinity"),
        ("[" * 100_000, "$", "not JSON"),
    ],
)
def test_violations_have_their_place(text: str, path: str, message: str) -> None:
    (first, *_) = report(SCHEMA, text)
    assert first[0] == path
    assert message in first[1]


def test_reports_are_short() -> None:
    found = report({"items": {"type": "null"}}, "[" + ",".join(["1"] * 100) + "]")
    assert len(found) == 10
    rest = "' is not of type 'null'"
    for length, end in ((299 - len(rest), rest), (300 - len(rest), "..."), (10_000, "...")):
        ((_, message),) = report({"type": "null"}, '"' + "x" * length + '"')
        assert len(message) == 300
        assert message.endswith(end)


def test_reports_can_be_sent() -> None:
    schema = {"additionalProperties": {"type": "null"}, "propertyNames": {"pattern": "^a"}}
    found = report(schema, '{"\\ud800": "\\udfff"}')
    assert found[0][0] == "$['\\ud800']"
    for path, message in found:
        assert (path + message).encode()


def test_json_object_wants_an_object() -> None:
    spec = GrammarSpec("json_object")
    assert validate(spec, '{"a": 1}').passed
    assert not validate(spec, "[]").passed


def test_what_the_validator_cannot_compute_does_not_pass() -> None:
    assert report({"multipleOf": 0.5}, "1e999")[0][1].startswith("cannot be checked")
