"""The keywords that each backend enforces, and in which form. This was found by differential tests:
``tests/grammar/test_differential.py`` compares each line of this file with ``jsonschema``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from grammar.schema.forms import CONSTRAINTS
from grammar.schema.lowering import Dialect

_LEADS = ("$ref", "anyOf", "oneOf", "allOf")


def _nothing(schema: Mapping[str, Any]) -> dict[str, str]:
    return {}


def _xgrammar(schema: Mapping[str, Any]) -> dict[str, str]:
    refusals = _one_family("xgrammar", schema)
    types = _types(schema)
    _refuse(
        refusals, schema, ("minLength", "maxLength"), "xgrammar lets control characters through"
    )
    _refuse(refusals, schema, ("pattern", "format"), "xgrammar misreads nested groups")
    if "number" in types:
        _refuse(refusals, schema, ("multipleOf",), "xgrammar ignores it for numbers")
        open_bounds = ("exclusiveMinimum", "exclusiveMaximum")
        _refuse(refusals, schema, open_bounds, "xgrammar is inexact at an open bound of numbers")
    if any(keyword in schema for keyword in _BOUNDS):
        _refuse(refusals, schema, ("multipleOf",), "xgrammar ignores it beside a bound")
    if "integer" in types:
        fractions = [k for k in _NUMERIC if schema.get(k, 0) != int(schema.get(k, 0))]
        _refuse(refusals, schema, fractions, "xgrammar takes only integers for it")
    _refuse_open_object("xgrammar", refusals, schema)
    return refusals


def _outlines(schema: Mapping[str, Any]) -> dict[str, str]:
    refusals = _one_family("outlines", schema)
    _refuse(refusals, schema, _NUMERIC, "outlines ignores it")
    if "prefixItems" in schema:
        _refuse(
            refusals, schema, ("minItems", "maxItems"), "outlines ignores it beside prefixItems"
        )
    if not all(map(_needs_no_escape, schema.get("properties", ()))):
        _refuse(refusals, schema, ("properties", "required"), "outlines does not escape names")
    if len(_types(schema)) > 1:
        structural = ("properties", "required", "additionalProperties", "unevaluatedProperties")
        _refuse(refusals, schema, structural, "outlines forgets the other types")
    _refuse_open_object("outlines", refusals, schema)
    return refusals


def _needs_no_escape(name: str) -> bool:
    return name.isprintable() and not set(name) & {'"', "\\"}


LLGUIDANCE = Dialect(
    "llguidance",
    True,
    _nothing,
    lambda pattern: [f"^(?:{text})$" for text in pattern.full],
    max_integer=2**53 - 1,  # it rounds to doubles, and crashes on those around -2**63
)
XGRAMMAR = Dialect(
    "xgrammar", False, _xgrammar, lambda pattern: None if pattern.json is None else [pattern.json]
)
OUTLINES = Dialect(
    "outlines",
    False,
    _outlines,
    lambda pattern: None if pattern.json is None else [pattern.json],
    anything={"type": ["array", "boolean", "null", "number", "object", "string"]},
    listed_name=re.compile(r"[^\x00-\x1f.^$*+?()\[\]{}|\\\"]*"),  # it reads them as regexes
)

DIALECTS = {dialect.name: dialect for dialect in (LLGUIDANCE, XGRAMMAR, OUTLINES)}

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_NUMERIC = (*_BOUNDS, "multipleOf")
_NAMES = ("patternProperties", "propertyNames", "dependentRequired", "dependentSchemas")
_COUNTS = ("minProperties", "maxProperties")


def _one_family(name: str, schema: Mapping[str, Any]) -> dict[str, str]:
    """An engine that looks at one keyword and ignores those beside it."""
    refusals: dict[str, str] = {}
    constraints = [keyword for keyword in schema if keyword in CONSTRAINTS]
    leads = [keyword for keyword in _LEADS if keyword in schema]
    if "allOf" in leads and (len(schema["allOf"]) > 1 or len(leads) > 1):
        leads.remove("allOf")
        _refuse(refusals, schema, ("allOf",), f"{name} does not combine schemas")
    if leads:
        others = [keyword for keyword in constraints if keyword != leads[0]]
        _refuse(refusals, schema, others, f"{name} ignores it beside {leads[0]}")
    elif "type" not in schema:
        _refuse(refusals, schema, constraints, f"{name} ignores it without a type")
    return refusals


def _refuse_open_object(name: str, refusals: dict[str, str], schema: Mapping[str, Any]) -> None:
    if "object" not in _types(schema):
        return
    _refuse(refusals, schema, (*_NAMES, *_COUNTS), f"{name} does not follow it")
    if "patternProperties" in schema:
        _refuse(
            refusals,
            schema,
            ("additionalProperties", "unevaluatedProperties"),
            "it depends on patternProperties",
        )
    rest = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
    if rest is not False or "additionalProperties" in refusals:
        reason = f"in an open object {name} lets a name come again in another spelling"
        _refuse(refusals, schema, ("properties", "required"), reason)
    elif not set(schema.get("required", ())) <= set(schema.get("properties", ())):
        _refuse(refusals, schema, ("required",), f"{name} ignores names without a schema")


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    declared = schema.get("type", ())
    return frozenset([declared] if isinstance(declared, str) else declared)


def _refuse(
    refusals: dict[str, str], schema: Mapping[str, Any], keywords: Iterable[str], reason: str
) -> None:
    for keyword in keywords:
        if keyword in schema:
            refusals.setdefault(keyword, reason)
