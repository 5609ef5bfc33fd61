"""Outputs that are sampled evenly from all that is allowed can always end: no prefix is a trap."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

from grammar.compiler import GrammarCompiler
from grammar.spec import GrammarSpec
from grammar.vocabulary import Vocabulary
from tests.grammar.walks import allowed_ids

SCHEMAS: list[Any] = [
    {"type": "string", "not": {"pattern": "^a"}, "maxLength": 9},
    {"type": "object", "patternProperties": {"^a": {"type": "null"}, "b$": {"const": None}}},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object", "maxProperties": 3},
    {"type": "array", "items": {"enum": ["a", "b", 1]}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "contains": {"const": 1}, "items": {"enum": [1, 2]}},
    {"if": {"type": "string"}, "then": {"format": "date-time"}, "else": {"minimum": 3}},
    {"type": "string", "pattern": "^(?=.*[A-Z])(?=.*[0-9]).{4,12}$"},
    {"type": "string", "format": "idn-email"},
]
# By what an output may end soon; each is tried in turn until none is allowed.
CLOSERS = [b'"', b"}", b"]", b":", b"n", b"u", b"l", b"1", b"a", b"A", b"0"]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_whatever_was_sampled_the_output_can_be_closed(vocabulary: Vocabulary, schema: Any) -> None:
    compiler = GrammarCompiler(vocabulary, backends=["llguidance"], num_workers=0)
    rng = np.random.default_rng(0)
    validator = jsonschema.Draft202012Validator(schema)
    end = min(vocabulary.eos_token_ids)
    for length in (0, 3, 10, 40):
        for _ in range(3):
            matcher = compiler.compile(GrammarSpec.from_schema(schema)).matcher()
            output: list[int] = []
            while not matcher.is_terminated and len(output) < length + 200:
                allowed = allowed_ids(matcher, vocabulary)
                assert allowed, bytes(output)
                sampled = int(rng.choice(allowed))
                token = sampled if len(output) < length else closing(allowed, end, rng)
                assert matcher.accept(token)
                output.append(token)
            assert matcher.is_terminated, bytes(output[:-1])
            text = b"".join(vocabulary.tokens[token] for token in output[:-1])
            assert validator.is_valid(json.loads(text)), text
    compiler.close()


def closing(allowed: list[int], end: int, rng: np.random.Generator) -> int:
    """The token that ends the output soonest, as far as a look at it tells."""
    if end in allowed:
        return end
    singles = [token for token in (closer[0] for closer in CLOSERS) if token in allowed]
    return singles[0] if singles and rng.random() < 0.8 else int(rng.choice(allowed))
