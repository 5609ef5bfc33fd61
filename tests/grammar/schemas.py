"""Random JSON schemas that mix every keyword, and random instances near them."""

from __future__ import annotations

import json
import random
from typing import Any

NAMES = ["a", "b", "kind", "a b", "é", "a/b", 'q"', "n\n", "", "x-1", "ab"]
STRINGS = ["", "a", "ab", "abc", "é日", "a b", 'q"\\', "n\n", "2024-02-29", "12", "x-1"]
NUMBERS = [0, 1, -1, 2, 3, 7, 10, 42, 100, 1.5, -0.5, 0.25, 1e3, 2.0, 123456789]
PATTERNS = [
    "^a",
    "b$",
    "^[a-c]+$",
    "^\\d{2,4}$",
    "^\\w+$",
    "x",
    "^(a|bc)*$",
    "^[^a]*$",
    "^\\S+ ?$",
    "^x-",
]
FORMATS = [
    "date",
    "time",
    "date-time",
    "email",
    "ipv4",
    "ipv6",
    "uuid",
    "hostname",
    "uri",
    "duration",
]
BIG_FORMATS = ["json-pointer", "uri-reference", "iri", "int32"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]


class Schemas:
    """A generator of schemas. ``wild`` is how often it uses what is hard to enforce."""

    def __init__(self, rng: random.Random, wild: float = 0.1) -> None:
        self._rng = rng
        self._wild = wild
        self._definitions: list[str] = []

    def root(self) -> dict[str, Any]:
        rng = self._rng
        self._definitions = [f"d{i}" for i in range(rng.choice([0, 0, 1, 2]))]
        schema = self._object(3) if rng.random() < 0.7 else self.schema(3)
        if isinstance(schema, bool):
            schema = {}
        if self._definitions:
            definitions = {name: self.schema(2) for name in self._definitions}
            schema = {"$defs": definitions, **schema}
        return schema

    def schema(self, depth: int) -> Any:
        rng = self._rng
        if rng.random() < 0.04:
            return rng.choice([True, True, {}, False])
        if self._definitions and rng.random() < 0.15:
            return self._reference(depth)
        if depth > 0 and rng.random() < 0.15:
            return self._combined(depth)
        if rng.random() < 0.12:
            return self._listed(depth)
        schema = self._typed(depth)
        if depth > 0 and rng.random() < self._wild:
            schema |= self._unruly()
        return schema

    def _maybe(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _typed(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        kind = rng.choice(TYPES if depth > 0 else TYPES[:5])
        schema: dict[str, Any] = getattr(self, f"_{kind}")(depth)
        if self._maybe(0.08):
            other = getattr(self, f"_{rng.choice(TYPES[:5])}")(depth)
            schema = other | schema | {"type": sorted({schema["type"], other["type"]})}
        if self._maybe(self._wild):
            schema.pop("type")
        if self._maybe(0.1):
            schema["title"] = "T"
        return schema

    def _null(self, depth: int) -> dict[str, Any]:
        return {"type": "null"}

    def _boolean(self, depth: int) -> dict[str, Any]:
        return {"type": "boolean"}

    def _integer(self, depth: int) -> dict[str, Any]:
        return {"type": "integer"} | self._bounds([n for n in NUMBERS if n == int(n)])

    def _number(self, depth: int) -> dict[str, Any]:
        return {"type": "number"} | self._bounds(NUMBERS)

    def _bounds(self, numbers: list[Any]) -> dict[str, Any]:
        rng, schema = self._rng, {}
        if self._maybe(0.3):
            schema[rng.choice(["minimum", "exclusiveMinimum"])] = rng.choice(numbers)
        if self._maybe(0.3):
            schema[rng.choice(["maximum", "exclusiveMaximum"])] = rng.choice(numbers)
        if self._maybe(0.2):
            schema["multipleOf"] = rng.choice([1, 2, 3, 5, 7, 10, 0.5, 0.25, 1.5, 2.0])
        if self._maybe(self._wild * 0.3):
            schema["multipleOf"] = rng.choice([0.1, 0.01, 10**6])
        if self._maybe(self._wild * 0.3):
            schema["minimum"] = rng.choice([2**53 + 1, 1e-12, 10**20])
        return schema

    def _string(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        schema: dict[str, Any] = {"type": "string"}
        if self._maybe(0.25):
            schema["pattern"] = rng.choice(PATTERNS)
        elif self._maybe(0.2):
            schema["format"] = rng.choice(FORMATS)
        elif self._maybe(self._wild):
            schema["format"] = rng.choice(BIG_FORMATS)
        if self._maybe(0.2):
            schema["minLength"] = rng.choice([0, 1, 2, 3])
        if self._maybe(0.3):
            schema["maxLength"] = rng.choice([3, 4, 10, 20])
        return schema

    def _array(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        schema: dict[str, Any] = {"type": "array"}
        if self._maybe(0.3):
            schema["prefixItems"] = [self.schema(depth - 1) for _ in range(rng.choice([1, 2]))]
        if self._maybe(0.7):
            schema["items"] = self.schema(depth - 1)
        if self._maybe(0.3):
            schema["minItems"] = rng.choice([0, 1, 2])
        if self._maybe(0.5):
            schema["maxItems"] = rng.choice([2, 3, 4])
        if self._maybe(self._wild):
            schema |= rng.choice(
                [
                    {"uniqueItems": True},
                    {"uniqueItems": False},
                    {"uniqueItems": True, "maxItems": 1, "minItems": 0},
                    {"contains": self.schema(0)},
                    {"minContains": 1},
                    {"unevaluatedItems": False},
                ]
            )
        return schema

    def _object(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        names = rng.sample(NAMES, rng.choice([0, 1, 2, 2, 3, 3]))
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: self.schema(depth - 1) for name in names},
        }
        required = [name for name in names if self._maybe(0.6)]
        if self._maybe(self._wild):
            required.append(rng.choice(NAMES))
        if required:
            schema["required"] = sorted(set(required))
        if self._maybe(0.6):
            schema["additionalProperties"] = False
        elif self._maybe(0.3):
            schema["additionalProperties"] = self.schema(depth - 1)
        if self._maybe(self._wild):
            schema |= rng.choice(
                [
                    {"minProperties": rng.choice([1, 2, 3])},
                    {"maxProperties": rng.choice([1, 2, 3])},
                    {"patternProperties": {rng.choice(PATTERNS): self.schema(0)}},
                    {"patternProperties": {"^x-": self.schema(0), "^a": self.schema(0)}},
                    {"propertyNames": {"pattern": rng.choice(PATTERNS)}},
                    {"propertyNames": {"enum": rng.sample(NAMES, 3)}},
                    {"propertyNames": {"maxLength": 2}},
                    {"dependentRequired": {rng.choice(NAMES): [rng.choice(NAMES)]}},
                    {"dependentSchemas": {rng.choice(NAMES): {"required": ["b"]}}},
                    {"unevaluatedProperties": False},
                ]
            )
        return schema

    def _reference(self, depth: int) -> dict[str, Any]:
        schema = {"$ref": f"#/$defs/{self._rng.choice(self._definitions)}"}
        return schema | self._typed(0) if self._maybe(self._wild) else schema

    def _combined(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        if self._maybe(0.25):
            return self._tagged_union(depth)
        keyword = rng.choice(["anyOf", "anyOf", "oneOf", "allOf"])
        if keyword == "allOf":
            kind = rng.choice(["_object", "_string", "_integer", "_number"])
            parts: list[Any] = [getattr(self, kind)(depth - 1) for _ in range(rng.choice([1, 2]))]
            for part in parts[1:]:
                part.pop("type")
            return {"allOf": parts}
        schema = {keyword: [self.schema(depth - 1) for _ in range(rng.choice([1, 2, 3]))]}
        return schema | self._typed(0) if self._maybe(self._wild) else schema

    def _tagged_union(self, depth: int) -> dict[str, Any]:
        options = []
        for tag in ("x", "y"):
            option = self._object(depth - 1)
            option["properties"] = {"kind": {"const": tag}} | option["properties"]
            option["properties"]["kind"] = {"const": tag}
            option["required"] = sorted({"kind", *option.get("required", ())})
            options.append(option)
        return {"oneOf": options}

    def _listed(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        values = [*STRINGS, *NUMBERS, None, True, False, [1, "a"], {"a": 1, "b": []}, [], {}]
        if self._maybe(0.3):
            return {"const": rng.choice(values)}
        schema: dict[str, Any] = {"enum": rng.sample(values, rng.choice([1, 2, 5]))}
        if self._maybe(0.3):
            schema |= {"type": rng.choice(["string", "integer", "number"])}
        if self._maybe(self._wild):
            schema |= {"not": {"const": schema["enum"][0]}}
        return schema

    def _unruly(self) -> dict[str, Any]:
        options: list[dict[str, Any]] = [
            {"not": self.schema(0)},
            {"if": self.schema(0), "then": self.schema(0)},
            {"if": self.schema(0)},
            {"anyOf": [self.schema(0), self.schema(0)]},
            {"x-custom": [1]},
            {"$comment": "c", "default": 1, "examples": []},
        ]
        return self._rng.choice(options)


class Instances:
    """Random JSON values near a schema: many of them valid, many just not."""

    def __init__(self, rng: random.Random, root: Any) -> None:
        self._rng = rng
        self._root = root

    def near(self, schema: Any, depth: int = 5) -> Any:
        rng = self._rng
        if depth == 0 or not isinstance(schema, dict) or rng.random() < 0.05:
            return self._anything(1)
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return self.near(self._root["$defs"][name], depth - 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self.near(rng.choice(schema[keyword]), depth - 1)
        if "allOf" in schema:
            parts = [self.near(part, depth - 1) for part in schema["allOf"]]
            if all(isinstance(part, dict) for part in parts):
                return {key: value for part in parts for key, value in part.items()}
            return rng.choice(parts)
        kinds = schema.get("type", TYPES)
        return self._of_kind(kinds if isinstance(kinds, str) else rng.choice(kinds), schema, depth)

    def _of_kind(self, kind: str, schema: dict[str, Any], depth: int) -> Any:
        rng = self._rng
        match kind:
            case "null":
                return None
            case "boolean":
                return rng.random() < 0.5
            case "integer":
                return rng.choice([int(n) for n in NUMBERS]) * rng.choice([1, 1, 1, 3, -1])
            case "number":
                return rng.choice(NUMBERS) * rng.choice([1, 1, 0.5, -1])
            case "string":
                return self._string(schema)
            case "array":
                return self._array(schema, depth)
        return self._object(schema, depth)

    def _string(self, schema: dict[str, Any]) -> str:
        examples = {
            "date": ["2024-02-29", "2023-02-29"],
            "ipv4": ["1.2.3.4", "01.2.3.4"],
            "email": ["a@b.c", "a"],
            "time": ["12:00:00Z", "12:00:00"],
            "date-time": ["2024-02-29T12:00:00Z", "x"],
            "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
            "ipv6": ["::1", ":"],
            "hostname": ["a.b", "-a"],
            "uri": ["http://a/b", "a"],
            "duration": ["P1D", "P"],
        }
        return self._rng.choice(STRINGS + examples.get(schema.get("format", ""), []) * 5)

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        prefix = schema.get("prefixItems", [])
        count = self._rng.choice([0, 1, 1, 2, 2, 3, schema.get("minItems", 0)])
        return [
            self.near(prefix[i] if i < len(prefix) else schema.get("items", True), depth - 1)
            for i in range(count)
        ]

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        rng = self._rng
        value = {}
        for name, sub in schema.get("properties", {}).items():
            if rng.random() < (0.95 if name in schema.get("required", ()) else 0.5):
                value[name] = self.near(sub, depth - 1)
        for pattern, sub in schema.get("patternProperties", {}).items():
            if rng.random() < 0.5:
                value[rng.choice(["x-1", "ab", "12"]) + pattern[:0]] = self.near(sub, depth - 1)
        if rng.random() < (0.1 if schema.get("additionalProperties") is False else 0.5):
            value[rng.choice(NAMES)] = self.near(schema.get("additionalProperties"), depth - 1)
        return value

    def _anything(self, depth: int) -> Any:
        rng = self._rng
        if depth and rng.random() < 0.3:
            return rng.choice([[self._anything(0)], {rng.choice(NAMES): self._anything(0)}, [], {}])
        return rng.choice([None, True, rng.choice(NUMBERS), rng.choice(STRINGS)])


def spelt(value: Any) -> str:
    """The value as JSON text in the spelling that engines know."""
    return json.dumps(_without_fraction(value), ensure_ascii=False, separators=(",", ":"))


def _without_fraction(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_without_fraction(item) for item in value]
        case dict():
            return {key: _without_fraction(item) for key, item in value.items()}
    return value
