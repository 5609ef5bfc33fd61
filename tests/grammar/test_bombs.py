"""Grammars made to hurt: each is refused within the limits, or turns out to be harmless."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from grammar.bench import synthetic_vocabulary
from grammar.compiler import GrammarCompiler
from grammar.errors import (
    CompileFailed,
    GrammarTooLarge,
    InvalidGrammar,
    MatcherFailed,
    UnsupportedKeyword,
)
from grammar.spec import GrammarSpec
from grammar.vocabulary import Vocabulary
from tests.grammar.walks import accepts, allowed_ids

TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary, timeout_s=TIMEOUT_S, memory_bytes=512 << 20)
    compiler.start().result()
    yield compiler
    compiler.close()


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def doubled(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    return schema


REFERENCES = {
    "$defs": {
        f"d{i}": {
            "type": "array",
            "items": False,
            "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2,
        }
        for i in range(22)
    }
    | {"d22": {"type": "null"}},
    "$ref": "#/$defs/d0",
}


def schema(value: Any) -> GrammarSpec:
    return GrammarSpec.from_schema(value)


HARMLESS: dict[str, GrammarSpec] = {
    "nesting 60": schema(nested(60)),
    "anyOf doubled 8 times": schema(doubled(8)),
    "500 optional properties": schema(
        {
            "type": "object",
            "properties": {f"p{i}": {"type": "string"} for i in range(500)},
            "additionalProperties": False,
        }
    ),
    "an automaton of 2**20 states": schema({"type": "string", "pattern": ".*a.{20}"}),
    "an automaton of 2**24 states": schema({"type": "string", "pattern": "^[ab]*a[ab]{24}$"}),
    "references doubled 22 times": schema(REFERENCES),
    "a backtracker's trap": schema({"type": "string", "pattern": "(a+)+b"}),
    "minItems 60,000": schema({"type": "array", "minItems": 60_000}),
    "an ambiguous grammar": GrammarSpec("ebnf", 'start: a\na: a a | "x" |'),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_ones_compile_and_their_masks_stay_quick(
    compiler: GrammarCompiler, vocabulary: Vocabulary, name: str
) -> None:
    started = time.monotonic()
    matcher = compiler.compile(HARMLESS[name]).matcher()
    assert time.monotonic() - started < TIMEOUT_S + 1
    rng = random.Random(0)
    row = np.zeros(vocabulary.mask_words, dtype=np.int32)
    memory = psutil.Process().memory_info().rss
    slowest = 0.0
    for _ in range(150):
        started = time.thread_time()
        try:
            matcher.fill_mask(row)
        except MatcherFailed:
            break  # a limit of the backend: this request ends, and nothing else
        slowest = max(slowest, time.thread_time() - started)
        assert matcher.accept(rng.choice(allowed_ids(matcher, vocabulary)))
        if matcher.is_terminated:
            break
    assert slowest < 0.25
    assert psutil.Process().memory_info().rss - memory < 64 << 20


@pytest.mark.parametrize(
    "rule", ["a a | /[a-z ]/ |", "/[a-z]/ a | /[a-z]/", "a a a | a a | /[a-z]/"]
)
def test_an_ambiguous_grammar_fails_before_its_masks_hold_up_others(rule: str) -> None:
    vocabulary = synthetic_vocabulary(32_000)
    compiler = GrammarCompiler(vocabulary, num_workers=0)
    row = np.zeros(vocabulary.mask_words, dtype=np.int32)
    slowest = 0.0
    with contextlib.suppress(MatcherFailed, GrammarTooLarge):
        matcher = compiler.compile(GrammarSpec("ebnf", f"start: a\na: {rule}")).matcher()
        for token_id in vocabulary.tokenize(b"the quick brown fox jumps over the lazy dog" * 3):
            started = time.thread_time()
            matcher.fill_mask(row)
            slowest = max(slowest, time.thread_time() - started)
            if not matcher.accept(token_id):
                break
    compiler.close()
    assert slowest < 0.1


def test_hundreds_of_optional_properties_can_be_followed_to_the_end() -> None:
    vocabulary = synthetic_vocabulary(50_000)
    compiler = GrammarCompiler(vocabulary, num_workers=0)
    properties = {f"prop_{i}": {"type": "string"} for i in range(500)}
    matcher = compiler.compile(schema({"properties": properties, "type": "object"})).matcher()
    assert accepts(matcher, vocabulary, '{"prop_0": "a", "prop_70": "b b", "prop_499": ""}')
    compiler.close()


def test_what_no_limit_foresees_is_killed(vocabulary: Vocabulary) -> None:
    """Here by way of a backend that builds the whole automaton."""
    compiler = GrammarCompiler(
        vocabulary, backends=["outlines"], timeout_s=0.5, memory_bytes=1 << 30
    )
    bombs: list[Any] = [{"type": "string", "pattern": f"^[ab]*a[ab]{{{n}}}$"} for n in (24, 26)]
    bombs.append({"type": "object", "properties": {f"p{i}": True for i in range(200)}} | CLOSED)
    for bomb in bombs:
        started = time.monotonic()
        with pytest.raises(CompileFailed):
            compiler.compile(schema(bomb))
        assert time.monotonic() - started < 30
    assert compiler.compile(schema({"type": "integer"})).backend == "outlines"
    compiler.close()


CLOSED = {"additionalProperties": False}


def test_a_random_source_never_does_worse_than_an_error(compiler: GrammarCompiler) -> None:
    rng = random.Random(3)
    base = json.dumps(nested(3) | {"pattern": "^(a|b){2,3}$", "enum": [1, "x", None]})
    for _ in range(150):
        data = list(base)
        for _ in range(rng.choice([1, 2, 5])):
            data[rng.randrange(len(data))] = rng.choice('{}[]",:0a\\\u0000é$')
        for kind in ("json_schema", "regex", "ebnf", "choice", "structural_tag"):
            with contextlib.suppress(InvalidGrammar, UnsupportedKeyword):
                compiler.compile(GrammarSpec(kind, "".join(data)))
