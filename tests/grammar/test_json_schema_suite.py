"""The official JSON-Schema-Test-Suite: a schema is refused with the keyword and its place, or every
document of the suite is judged as the suite says. What departs from it is listed by name.

What is generated is spelt in one way, so a valid document counts as accepted if it is in one order
of its members, and an invalid one as refused if it is in all, and in other spellings as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from referencing import Registry
from referencing.exceptions import Unresolvable

from grammar.compiler import CompiledGrammar, GrammarCompiler
from grammar.errors import CompileFailed, GrammarError, InvalidGrammar, UnsupportedKeyword
from grammar.schema.forms import subschemas
from grammar.schema.paths import ROOT, child
from grammar.spec import GrammarSpec
from grammar.validation import validate
from grammar.vocabulary import Vocabulary
from tests.grammar.json_schema_suite import DRAFTS, Group, load, orders
from tests.grammar.json_schema_suite.departures import (
    CHECKED_OTHERWISE,
    DEPARTURES,
    EVERY_ONE,
    GENERATED,
    NOT_GENERATED,
    REFUSED,
    Effect,
    Name,
)
from tests.grammar.schemas import spelt
from tests.grammar.test_differential import follows


def listed(effect: Effect, backend: str, among: set[Name]) -> set[Name]:
    """The departures of one effect that are among the names of what was tried."""
    relevant = [d for d in DEPARTURES if effect in d.effect and d.backend in ("", backend)]
    return among & set[Name]().union(*(departure.listed() for departure in relevant))


NUM_ENFORCED = {
    ("llguidance", "draft2020-12"): 324,
    ("llguidance", "draft7"): 269,
    ("xgrammar", "draft2020-12"): 72,
    ("xgrammar", "draft7"): 67,
}
"""Schemas that are enforced whole. The README gives the total."""


class Trial:
    """All groups of a draft before one backend."""

    def __init__(self, compiler: GrammarCompiler, draft: str) -> None:
        self._compiler = compiler
        self._draft = draft
        self.tried: set[Name] = set()
        self.num_compiled = 0
        self.not_generated: set[Name] = set()
        self.generated: set[Name] = set()
        self.checked_otherwise: set[Name] = set()
        self.refused: set[Name] = set()

    def run(self, *, strict: bool) -> None:
        for file, groups in load()[self._draft].items():
            for group in groups:
                self.tried.add((file, group.name, EVERY_ONE))
                spec = GrammarSpec.from_schema(group.schema, strict=strict)
                try:
                    compiled = self._compiler.compile(spec)
                except GrammarError as error:
                    if not is_rightly_refused(error, spec, group):
                        self.refused.add((file, group.name, EVERY_ONE))
                else:
                    self.num_compiled += 1
                    self._judge(file, group, compiled)

    def _judge(self, file: str, group: Group, compiled: CompiledGrammar) -> None:
        for instance in group.instances:
            name = (file, group.name, instance.name)
            self.tried.add(name)
            if not instance.is_valid:
                if not compiled.unenforced and self._accepts_in_any_spelling(
                    compiled, instance.value
                ):
                    self.generated.add(name)
            elif not self._accepts_in_some_order(compiled, instance.value):
                self.not_generated.add(name)
            if validate(compiled.spec, json.dumps(instance.value)).passed != instance.is_valid:
                self.checked_otherwise.add(name)

    def _accepts_in_some_order(self, compiled: CompiledGrammar, value: Any) -> bool:
        vocabulary = self._compiler.vocabulary
        return any(follows(compiled.matcher(), vocabulary, spelt(v)) for v in orders(value))

    def _accepts_in_any_spelling(self, compiled: CompiledGrammar, value: Any) -> bool:
        return self._accepts_in_some_order(compiled, value) or any(
            follows(compiled.matcher(), self._compiler.vocabulary, text)
            for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=2))
        )


def is_rightly_refused(error: GrammarError, spec: GrammarSpec, group: Group) -> bool:
    """Whether the error names a keyword at its place, or nothing satisfies the schema, or it refers
    to another document."""
    if isinstance(error, CompileFailed):  # it takes too long
        return True
    assert isinstance(error, InvalidGrammar | UnsupportedKeyword), error
    if isinstance(error, UnsupportedKeyword):
        assert error.path.endswith(error.keyword), error
        assert error.path in places(spec.document(), ROOT), error
        return True
    if not any(instance.is_valid for instance in group.instances):
        return True
    if error.path.endswith(".$ref"):
        assert error.path in places(spec.document(), ROOT), error
        return refers_elsewhere(group)
    return False


def places(schema: Any, path: str) -> set[str]:
    """The paths of all keywords in a schema."""
    if not isinstance(schema, dict):
        return set()
    found = {child(path, keyword) for keyword in schema}
    return found.union(*(places(sub, where) for sub, where in subschemas(schema, path)))


def refers_elsewhere(group: Group) -> bool:
    """Whether ``jsonschema`` finds that a reference leads out of the document."""
    validator = jsonschema.validators.validator_for(group.schema)
    try:
        for instance in group.instances:
            validator(group.schema, registry=Registry()).is_valid(instance.value)
    except Unresolvable:
        return True
    return False


def strictly(compiler: GrammarCompiler, draft: str) -> Trial:
    trial = Trial(compiler, draft)
    trial.run(strict=True)
    (backend,) = compiler.backends
    assert trial.not_generated == listed(NOT_GENERATED, backend, trial.tried)
    assert trial.generated == listed(GENERATED, backend, trial.tried)
    assert trial.refused == listed(REFUSED, backend, trial.tried)
    return trial


@pytest.fixture(params=["llguidance", "xgrammar"])
def compiler(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary, backends=[request.param], num_workers=0)
    yield compiler
    compiler.close()


@pytest.mark.parametrize("draft", DRAFTS)
def test_what_is_enforced_holds(compiler: GrammarCompiler, draft: str) -> None:
    (backend,) = compiler.backends
    assert strictly(compiler, draft).num_compiled == NUM_ENFORCED[backend, draft]


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("draft", DRAFTS)
def test_what_outlines_enforces_holds(vocabulary: Vocabulary, draft: str) -> None:
    compiler = GrammarCompiler(vocabulary, backends=["outlines"], timeout_s=2.0)
    try:
        assert strictly(compiler, draft).num_compiled > 40
    finally:
        compiler.close()


@pytest.mark.parametrize("draft", DRAFTS)
def test_what_is_left_out_is_checked_afterwards(vocabulary: Vocabulary, draft: str) -> None:
    """Without ``strict`` no valid document is excluded, and each invalid one is found to be so."""
    compiler = GrammarCompiler(vocabulary, backends=["llguidance"], num_workers=0)
    trial = Trial(compiler, draft)
    trial.run(strict=False)
    compiler.close()
    assert trial.not_generated == listed(NOT_GENERATED, "llguidance", trial.tried)
    assert trial.checked_otherwise == listed(CHECKED_OTHERWISE, "llguidance", trial.tried)
    assert trial.refused == listed(REFUSED, "llguidance", trial.tried)
    assert trial.num_compiled > 280


def test_every_departure_is_in_the_suite() -> None:
    names = {
        (file, group.name, name)
        for files in load().values()
        for file, groups in files.items()
        for group in groups
        for name in (EVERY_ONE, *(instance.name for instance in group.instances))
    }
    for departure in DEPARTURES:
        assert departure.listed() <= names, departure.reason


def test_the_suite_is_whole() -> None:
    counts = {draft: sum(map(len, files.values())) for draft, files in load().items()}
    assert counts == {"draft2020-12": 438, "draft7": 311}
