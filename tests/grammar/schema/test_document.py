from __future__ import annotations

import random
from typing import Any

import jsonschema
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


IDENTIFIED: dict[str, Any] = {
    "$id": "https://example.com/root",
    "$defs": {
        "d": {"type": "integer"},
        "b": {
            "$id": "lib/b.json#",
            "$defs": {"d": {"type": "string"}, "c": {"$ref": "#/$defs/d"}, "a": {"$anchor": "x"}},
            "anyOf": [{"$ref": "other"}, {"properties": {"o": {"$ref": "../root#/$defs/d"}}}],
            "items": {"$id": "urn:x:y", "$defs": {"n": True}, "not": {"$ref": "#/$defs/n"}},
        },
        "o": {"$id": "lib/other", "type": "boolean"},
    },
    "properties": {
        "c": {"$ref": "#/$defs/b/$defs/c"},
        "d": {"$ref": "#/$defs/d"},
        "x": {"$ref": "lib/b.json#x"},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (("properties", "c"), "$.$defs.b.$defs.c"),
        (("$defs", "b", "$defs", "c"), "$.$defs.b.$defs.d"),
        (("properties", "d"), "$.$defs.d"),
        (("properties", "x"), "$.$defs.b.$defs.a"),
        (("$defs", "b", "anyOf", 0), "$.$defs.o"),
        (("$defs", "b", "anyOf", 1, "properties", "o"), "$.$defs.d"),
        (("$defs", "b", "items", "not"), "$.$defs.b.items.$defs.n"),
    ],
)
def test_references_are_relative_to_the_identifier_around_them(
    schema: tuple[str | int, ...], path: str
) -> None:
    document = Document(IDENTIFIED)
    node: Any = document.root
    for step in schema:
        node = node[step]
    assert document.resolve(node["$ref"], "$")[1] == path


def test_values_are_checked_with_the_identifiers_around_them() -> None:
    document = Document(IDENTIFIED)
    assert document.errors({"c": "a", "d": 1, "x": None}) == []
    assert [list(e.absolute_path) for e in document.errors({"c": 1, "d": "a"})] == [["c"], ["d"]]
    library = jsonschema.Draft202012Validator(IDENTIFIED)
    for value in ({"c": "a"}, {"c": 1}, {"d": "a"}, {"d": 1}):
        assert library.is_valid(value) == document.is_valid(value, document.root)


def test_what_is_not_beneath_an_identifier_stays_as_it_is_written() -> None:
    schema: Any = {
        "$id": "x",
        "not": {"$ref": "#/$defs/a"},
        "$defs": {"a": {"const": {"$id": "y"}}},
    }
    assert Document(schema).root == schema
    part = {"$id": "y", "const": {"$ref": "#"}, "minimum": 3, "allOf": [True]}
    schema = {"$id": "https://x/", "anyOf": [part, True], "not": {"$ref": "y"}}
    assert Document(schema).root == schema


def test_no_part_is_checked_as_of_another_draft() -> None:
    """Or a tuple, which is spelled anew, would go unchecked."""
    pair = {"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [{"type": "null"}]}
    document = Document(
        {"properties": {"a": {"$ref": "#/$defs/p"}, "b": pair}, "$defs": {"p": pair}}
    )
    assert len(document.errors({"a": [1], "b": [1]})) == 2


@pytest.mark.parametrize("identifier", ["", "#", "#/properties/a", "#1"])
def test_an_identifier_may_only_say_where_it_stands(identifier: str) -> None:
    """As some generators write one into every part."""
    schema = {
        "$id": "https://example.com/root",
        "properties": {"a": {"$id": identifier, "items": {"$ref": "#/$defs/n"}}},
        "$defs": {"n": {"type": "null"}},
    }
    document = Document(schema, "$.format.json_schema")
    assert document.errors({"a": [None]}) == []
    assert len(document.errors({"a": [1]})) == 1


def test_an_identifier_belongs_to_one_schema() -> None:
    """TypeBox writes a schema out wherever it is used, with its identifier."""
    user = {"$id": "User", "properties": {"friend": {"$ref": "User"}, "n": {"$ref": "#/$defs/n"}}}
    user["$defs"] = {"n": {"type": "null"}}
    schema = {"properties": {"a": user, "b": dict(user)}}
    assert Document(schema).errors({"a": {"friend": {"n": None}}, "b": {"n": None}}) == []
    assert len(Document(schema).errors({"a": {"friend": {"n": 1}}, "b": {"n": 1}})) == 2
    other = {"properties": {"a": user, "b": {"$id": "User#", "type": "null"}}}
    with pytest.raises(
        InvalidGrammar, match=r"another schema as well \(at \$\.properties\.b\.\$id"
    ):
        Document(other)
    with pytest.raises(InvalidGrammar, match="another schema as well"):
        Document({"$id": "User", "properties": {"a": user}})


def test_what_is_no_uri_has_its_place() -> None:
    schema = {"$id": "http://[", "items": {"$id": "x"}}
    with pytest.raises(InvalidGrammar, match=r"'http://\[' is no URI: .* \(at \$\.\$id\)"):
        Document(schema)
    schema = {"items": {"$id": "http://["}}
    with pytest.raises(InvalidGrammar, match=r"'http://\[' is no URI: .* \(at \$\.items\.\$id\)"):
        Document(schema)
    schema = {"not": {"anyOf": [{"$id": "x", "if": {"$ref": "http://["}}]}}
    with pytest.raises(
        InvalidGrammar, match=r"is no URI: .* \(at \$\.not\.anyOf\[0\]\.if\.\$ref\)"
    ):
        Document(schema)
    schema = {"$id": "urn:x:y", "items": {"$id": "a"}}
    with pytest.raises(InvalidGrammar, match=r"relative to 'urn:x:y' \(at \$\.items\.\$id\)"):
        Document(schema)


def test_a_reference_that_leads_nowhere_is_named_as_it_is_resolved() -> None:
    schema = {"items": {"$id": "lib/a", "not": {"$ref": "b#/$defs/c"}}}
    with pytest.raises(InvalidGrammar, match=r"^'lib/b#/\$defs/c' leads nowhere in this document"):
        Document(schema)


class Identified:
    """Random schemas with identifiers and references everywhere."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def schema(self, depth: int = 3) -> dict[str, Any]:
        rng = self._rng
        if depth == 0 or rng.random() < 0.25:
            return {"$ref": self._reference()} if rng.random() < 0.3 else self._leaf()
        parts = (self.schema(depth - 1) if rng.random() < 0.7 else self._leaf() for _ in "mn")
        definitions = dict(zip("mn", parts, strict=True))
        schema = {"$defs": definitions, "properties": {"p": self.schema(depth - 1)}}
        return schema | ({"$id": rng.choice(IDENTIFIERS)} if rng.random() < 0.4 else {})

    def _leaf(self) -> dict[str, Any]:
        return {"type": self._rng.choice(["null", "integer", "string"])}

    def _reference(self) -> str:
        pointers = ["#/$defs/m", "#/$defs/n", "#/$defs/m/$defs/n", "#/properties/p/$defs/m", ""]
        return self._rng.choice(["", "", *IDENTIFIERS, "c"]) + self._rng.choice(pointers) or "#"


IDENTIFIERS = ["a", "b", "lib/", "lib/c", "http://h/x", "urn:q:1"]


def test_references_lead_where_the_library_finds_them() -> None:
    values: list[Any] = [None, 1, "s"]
    values += [{"p": value} for value in [*values, {"p": 1}, {"p": None}, {"p": {"p": "s"}}]]
    compared = 0
    for seed in range(2_500):
        schema = Identified(random.Random(seed)).schema()
        if seed % 2:
            schema["$id"] = "http://h/r/root"
        try:
            document = Document(schema)
        except InvalidGrammar:
            continue
        library = jsonschema.Draft202012Validator(schema)
        for value in values:
            assert document.is_valid(value, document.root) == library.is_valid(value), schema
        compared += "$ref" in str(schema) and str(schema).count("$id") > seed % 2
    assert compared > 60
