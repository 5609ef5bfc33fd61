from __future__ import annotations

import pytest

from grammar.backends.xgrammar import XGrammarBackend
from grammar.errors import InvalidGrammar
from grammar.spec import GrammarSpec, Kind
from grammar.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def backend(vocabulary: Vocabulary) -> XGrammarBackend:
    return XGrammarBackend(vocabulary)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("regex", "a("),
        ("ebnf", "root ::= missing"),
        ("ebnf", "start: missing"),
        ("json_schema", '{"type": "foo"}'),
        ("json_schema", '{"type": "integer", "minimum": 3, "maximum": 2}'),
    ],
)
def test_refusals_are_one_line_without_source_positions_of_the_library(
    backend: XGrammarBackend, kind: Kind, source: str
) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        backend.compile(GrammarSpec(kind, source))
    assert "\n" not in caught.value.message
    assert ".cc" not in caught.value.message


def test_loading_gives_the_same_grammar(backend: XGrammarBackend) -> None:
    spec = GrammarSpec("choice", '["ab", "ac"]')
    grammar = backend.load(spec, backend.compile(spec).dump())
    matcher = grammar.matcher()
    assert matcher.forced_bytes() == b"a"
    assert matcher.accept(97)
    assert not matcher.accept(97)
    assert matcher.accept(98)
    assert matcher.is_accepting()
    assert grammar.memory_bytes > 0
