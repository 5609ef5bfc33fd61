from __future__ import annotations

import pytest

from grammar.backends.outlines import OutlinesBackend
from grammar.errors import InvalidGrammar
from grammar.spec import GrammarSpec
from grammar.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def backend(vocabulary: Vocabulary) -> OutlinesBackend:
    return OutlinesBackend(vocabulary)


def test_refusals(backend: OutlinesBackend) -> None:
    with pytest.raises(InvalidGrammar):
        backend.compile(GrammarSpec.from_schema({"type": "string", "pattern": "(?=a)b"}))


def test_an_index_survives_the_way_to_another_process(backend: OutlinesBackend) -> None:
    spec = GrammarSpec.from_schema({"enum": ["a.b", "a|c"]})
    compiled = backend.compile(spec)
    grammar = backend.load(spec, compiled.dump())
    assert grammar.memory_bytes == compiled.memory_bytes > 0
    matcher = grammar.matcher()
    assert matcher.forced_bytes() == b""
    for byte in b'"a|c':
        assert matcher.accept(byte)
    assert not matcher.is_accepting()
    matcher.rollback(2)
    for byte in b'.b"':
        assert matcher.accept(byte)
    assert matcher.is_accepting()
    assert not matcher.accept(97)
