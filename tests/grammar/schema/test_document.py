from __future__ import annotations

from typing import Any

import pytest

from grammar.errors import InvalidGrammar
from grammar.schema.document import Document

ROOT_SCHEMA: dict[str, Any] = {
    "$id": "https://example.com/root",
    "$defs": {
        "a b": {"$anchor": "foo", "type": "integer"},
        "c/d~": True,
        "inner": {"$id": "inner", "properties": {"0": True, "1": {"type": "null"}}},
    },
    "x-data": {"type": 3, "list": [1]},
    "anyOf": [{"minimum": 3}],
}


@pytest.mark.parametrize(
    ("reference", "path"),
    [
        ("#", "$"),
        ("#/$defs/a%20b", "$.$defs['a b']"),
        ("#/$defs/c~1d~0", "$.$defs['c/d~']"),
        ("#/anyOf/0", "$.anyOf[0]"),
        ("#foo", "$.$defs['a b']"),
        ("#/$defs/inner/properties/0", "$.$defs.inner.properties['0']"),
        ("inner", "$.$defs.inner"),
        ("inner#/properties/0", "$.$defs.inner.properties['0']"),
        ("inner#/properties/1", "$.$defs.inner.properties['1']"),
        ("https://example.com/root#/anyOf/0", "$.anyOf[0]"),
    ],
)
def test_local_references_resolve(reference: str, path: str) -> None:
    schema, found = Document(ROOT_SCHEMA).resolve(reference, "$")
    assert isinstance(schema, dict | bool)
    assert found == path


@pytest.mark.parametrize(
    "reference",
    [
        "#/$defs/x",
        "#bar",
        "https://example.com/other",
        "file:///etc/passwd",
        "#/x-data",
        "#/x-data/list",
        "other",
    ],
)
def test_all_else_is_refused_and_nothing_is_fetched(reference: str) -> None:
    with pytest.raises(InvalidGrammar, match=r"at \$\.here"):
        Document(ROOT_SCHEMA).resolve(reference, "$.here")


@pytest.mark.parametrize(
    ("definition", "path"),
    [
        ({"$ref": "#/$defs/x"}, "$.$defs.x"),
        ({"allOf": [{"$ref": "#/$defs/x"}]}, "$.$defs.x"),
        ({"anyOf": [{"type": "null"}, {"not": {"$ref": "#/$defs/x"}}]}, "$.$defs.x"),
        ({"$ref": "#/$defs/y"}, "$.$defs.x"),
    ],
)
def test_references_in_a_circle_are_refused(definition: Any, path: str) -> None:
    schema = {"$defs": {"x": definition, "y": {"$ref": "#/$defs/x"}}}
    with pytest.raises(InvalidGrammar, match="back to itself"):
        Document(schema)


def test_the_root_may_be_the_circle() -> None:
    with pytest.raises(InvalidGrammar, match="back to itself"):
        Document({"$ref": "#"})


@pytest.mark.parametrize(
    "draft",
    [
        {},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
    ],
    ids=["none", "2020-12", "7"],
)
def test_behind_a_reference_patterns_are_read_alike_whatever_the_draft(draft: Any) -> None:
    """The library would go on with a class of its own, which reads Python's expressions."""
    next_letter = {"pattern": r"^\p{L}$", "properties": {"next": {"$ref": "#"}}}
    document = Document(draft | next_letter)
    assert document.is_valid({"next": "a"}, document.root)
    assert not document.is_valid({"next": "1"}, document.root)


def test_recursion_through_a_member_is_no_circle() -> None:
    Document({"properties": {"next": {"$ref": "#"}}, "items": {"anyOf": [{"$ref": "#"}, True]}})


def test_values_are_checked_against_subschemas_in_their_document() -> None:
    document = Document(ROOT_SCHEMA)
    assert document.is_valid(1, {"$ref": "#/$defs/a%20b"})
    assert not document.is_valid("1", {"$ref": "#foo"})
    assert document.is_valid([], True)
