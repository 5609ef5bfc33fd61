"""The proof of the audit: what it says is enforced is enforced.

Random schemas that mix all keywords; for each one that a backend claims to enforce, documents
sampled from random logits under its masks, and instances near the schema. ``jsonschema`` and
``jsonschema-rs`` have the last word. The long runs are nightly.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from datetime import date
from typing import Any

import jsonschema
import jsonschema_rs
import pytest

from grammar.compiler import CompiledGrammar, GrammarCompiler
from grammar.errors import CompileFailed, InvalidGrammar, UnsupportedKeyword
from grammar.matcher import Matcher
from grammar.schema.forms import CONSTRAINTS
from grammar.spec import GrammarSpec
from grammar.vocabulary import Vocabulary
from tests.grammar.schemas import Instances, Schemas, spelt
from tests.grammar.walks import Walker

FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER


class Trial:
    """Everything that is asked of one backend about one schema."""

    def __init__(self, compiler: GrammarCompiler, seed: int, wild: float) -> None:
        self._compiler = compiler
        self._rng = random.Random(seed)
        self._walker = Walker(compiler.vocabulary, seed)
        self.schema = Schemas(self._rng, wild).root()
        self._validator = jsonschema.Draft202012Validator(
            _with_patterns_of_ecma(self.schema), format_checker=FORMATS
        )

    def is_valid_elsewhere(self, value: Any) -> bool:
        """By a validator of another family, which has patterns as ECMA-262 and formats of its own;
        numbers beyond doubles are beyond it."""
        if not _is_finite(value):
            return True
        try:
            validator = jsonschema_rs.Draft202012Validator(self.schema, validate_formats=True)
        except ValueError:  # a pattern that it cannot read
            return True
        return validator.is_valid(value)

    def compile(self) -> CompiledGrammar | None:
        """None where the backend declines, or no document exists."""
        try:
            return self._compiler.compile(GrammarSpec.from_schema(self.schema))
        except (UnsupportedKeyword, InvalidGrammar, CompileFailed):
            return None

    def is_valid(self, value: Any) -> bool:
        return bool(self._validator.is_valid(value))

    def sample(self, matcher: Matcher) -> Any:
        """A random document, or None if it did not end."""
        text = self._walker.walk(matcher)
        # xgrammar's strings may hold bytes of surrogates, which a decoder replaces.
        return None if text is None else text.decode(errors="replace")

    def instances(self, count: int) -> Iterator[Any]:
        near = Instances(self._rng, self.schema)
        return (near.near(self.schema) for _ in range(count))


def _with_patterns_of_ecma(schema: Any) -> Any:
    """The schema with its patterns as Python has to read them to mean the same: ``$`` is not before
    a line break at the end, and classes are of ASCII."""
    if isinstance(schema, list):
        return [_with_patterns_of_ecma(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: value if key in ("const", "enum") else _with_patterns_of_ecma(value)
        for key, value in schema.items()
    }
    if isinstance(found.get("pattern"), str):
        found["pattern"] = _in_python(found["pattern"])
    if isinstance(found.get("patternProperties"), dict):
        parts = found["patternProperties"].items()
        found["patternProperties"] = {_in_python(pattern): part for pattern, part in parts}
    return found


def _in_python(pattern: str) -> str:
    end = r"\Z" if pattern.endswith("$") else ""
    return f"(?a:{pattern.removesuffix('$')}{end})"


def _is_finite(value: Any) -> bool:
    match value:
        case float() | int():
            return abs(value) < 1e300
        case list():
            return all(map(_is_finite, value))
        case dict():
            return all(map(_is_finite, value.values()))
    return True


def follows(matcher: Matcher, vocabulary: Vocabulary, text: str) -> bool:
    """Whether the text is a complete output, byte for byte."""
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(
        min(vocabulary.eos_token_ids)
    )


def run(
    compiler: GrammarCompiler, seeds: range, wild: float, documents: int = 3, instances: int = 8
) -> Counter[str]:
    """Try a schema for each seed, with so many sampled documents and instances near it."""
    count: Counter[str] = Counter()
    for seed in seeds:
        trial = Trial(compiler, seed, wild)
        compiled = trial.compile()
        if compiled is None:
            count["declined"] += 1
            continue
        count["schemas"] += 1
        for _ in range(documents):
            text = trial.sample(compiled.matcher())
            if text is None:
                continue
            count["documents"] += 1
            count["pairs"] += 1
            try:
                value = json.loads(text)
                assert trial.is_valid(value), (seed, trial.schema, text)
                assert trial.is_valid_elsewhere(value), (seed, trial.schema, text)
            except OverflowError:
                count["beyond the validator"] += 1  # 1e999 under a multipleOf that binds nothing
        for value in trial.instances(instances):
            valid = trial.is_valid(value)
            accepted = follows(compiled.matcher(), compiler.vocabulary, spelt(value))
            assert valid or not accepted, (seed, trial.schema, value)
            assert not accepted or trial.is_valid_elsewhere(value), (seed, trial.schema, value)
            count["pairs"] += 1
            count["valid"] += valid
            count["accepted"] += accepted
    return count


@pytest.fixture(scope="module")
def llguidance(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary, backends=["llguidance"], num_workers=0)
    yield compiler
    compiler.close()


@pytest.fixture(scope="module")
def xgrammar(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary, backends=["xgrammar"], num_workers=0)
    yield compiler
    compiler.close()


@pytest.fixture(scope="module")
def outlines(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    # Some schemas would take it minutes.
    compiler = GrammarCompiler(vocabulary, backends=["outlines"], timeout_s=0.5)
    yield compiler
    compiler.close()


def test_llguidance(llguidance: GrammarCompiler) -> None:
    count = run(llguidance, range(110), wild=0.1)
    assert count["schemas"] >= 60
    assert count["documents"] >= 150
    # Not only sound: of the valid instances it accepts all but those spelt otherwise.
    assert count["accepted"] >= 0.98 * count["valid"] > 200


def test_llguidance_with_every_keyword(llguidance: GrammarCompiler) -> None:
    count = run(llguidance, range(10_000, 10_250), wild=0.5)
    assert count["schemas"] >= 60
    assert count["accepted"] >= 0.97 * count["valid"] > 150


def test_xgrammar(xgrammar: GrammarCompiler) -> None:
    count = run(xgrammar, range(200), wild=0.0)
    assert count["schemas"] >= 50
    assert count["accepted"] >= 0.98 * count["valid"] > 100


def test_outlines(outlines: GrammarCompiler) -> None:
    count = run(outlines, range(45), wild=0.0)
    assert count["schemas"] >= 7
    assert count["accepted"] > 15


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("part", range(10))
def test_llguidance_over_a_million_pairs(llguidance: GrammarCompiler, part: int) -> None:
    """Of schemas and documents, others each night; a failure names its seed."""
    seed = 1_000_000 * date.today().toordinal() + 100_000 * part
    count: Counter[str] = Counter()
    while count["pairs"] < 100_000:
        wild = 0.4 if seed % 1_000 else 0.1
        count += run(llguidance, range(seed, seed + 500), wild, documents=6, instances=44)
        seed += 500
    assert count["documents"] >= 5_000
    assert count["accepted"] >= 0.98 * count["valid"]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_xgrammar_over_a_thousand_schemas(xgrammar: GrammarCompiler) -> None:
    count = run(xgrammar, range(20_000, 24_000), wild=0.1)
    assert count["schemas"] >= 1_000


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_outlines_over_hundreds_of_schemas(outlines: GrammarCompiler) -> None:
    count = run(outlines, range(20_000, 21_200), wild=0.1)
    assert count["schemas"] >= 100


def test_backends_that_enforce_the_same_schema_agree(
    llguidance: GrammarCompiler, xgrammar: GrammarCompiler
) -> None:
    """On every text, token by token; the texts are spelt the one way that both know."""
    compared = 0
    for seed in range(40_000, 40_150):
        trial = Trial(llguidance, seed, wild=0.0)
        other = Trial(xgrammar, seed, wild=0.0)
        compiled, other_compiled = trial.compile(), other.compile()
        if compiled is None or other_compiled is None:
            continue
        sampled = [trial.sample(compiled.matcher()), other.sample(other_compiled.matcher())]
        values = [json.loads(text) for text in sampled if text is not None]
        for value in [*values, *trial.instances(6)]:
            if _has_exponent(value):
                continue
            data = spelt(value).encode()
            first, second = compiled.matcher(), other_compiled.matcher()
            for byte in (*data, min(llguidance.vocabulary.eos_token_ids)):
                taken = first.accept(byte)
                assert second.accept(byte) == taken, (seed, trial.schema, value)
                if not taken:
                    break
            compared += 1
    assert compared > 150


def _has_exponent(value: Any) -> bool:
    """Whether a number in it is spelt with an exponent, where engines differ in what they know."""
    match value:
        case float():
            return "e" in repr(value)
        case list():
            return any(map(_has_exponent, value))
        case dict():
            return any(map(_has_exponent, value.values()))
    return False


def test_the_generator_uses_every_keyword() -> None:
    """Or the runs above would prove less than they say."""
    used: set[str] = set()
    for seed in range(2_000):
        stack: list[Any] = [Schemas(random.Random(seed), wild=0.5).root()]
        while stack:
            node = stack.pop()
            if isinstance(node, dict):
                used |= node.keys() & CONSTRAINTS
                stack += node.values()
            elif isinstance(node, list):
                stack += node
    assert CONSTRAINTS - used == {"$dynamicRef", "else", "maxContains"}
