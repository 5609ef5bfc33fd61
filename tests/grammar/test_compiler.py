from __future__ import annotations

from collections.abc import Iterator

import pytest

from grammar.compiler import GrammarCompiler
from grammar.errors import GrammarTooLarge, InvalidGrammar, UnsupportedKeyword
from grammar.spec import GrammarSpec, Limits
from grammar.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary)
    yield compiler
    compiler.close()


def test_a_spec_is_compiled_once(compiler: GrammarCompiler) -> None:
    first = compiler.compile(GrammarSpec("regex", "abc"))
    assert compiler.compile(GrammarSpec("regex", "abc")) is first
    assert compiler.submit(GrammarSpec("regex", "abc")).result(10) is first


def test_errors_arrive_through_the_future(compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidGrammar):
        compiler.submit(GrammarSpec("json_schema", "{")).result(10)


@pytest.mark.parametrize(
    "source",
    ["a(", "(?=a)b", r"\bfoo", "[z-a]"],
)
def test_a_bad_regex_is_refused(compiler: GrammarCompiler, source: str) -> None:
    with pytest.raises(InvalidGrammar):
        compiler.compile(GrammarSpec("regex", source))


@pytest.mark.parametrize("source", ['root ::= "a', "start: nothing", "start: /a(/", "%%%"])
def test_a_bad_grammar_is_refused(compiler: GrammarCompiler, source: str) -> None:
    with pytest.raises(InvalidGrammar):
        compiler.compile(GrammarSpec("ebnf", source))


def test_a_keyword_nobody_enforces_is_named(compiler: GrammarCompiler) -> None:
    with pytest.raises(UnsupportedKeyword, match="uniqueItems"):
        compiler.compile(GrammarSpec.from_schema({"type": "array", "uniqueItems": True}))


def test_engine_options_cannot_be_smuggled_in(compiler: GrammarCompiler) -> None:
    schema = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
    with pytest.raises(UnsupportedKeyword, match="x-guidance"):
        compiler.compile(GrammarSpec.from_schema(schema))


def test_limits_apply(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary, limits=Limits(max_enum_values=2))
    with pytest.raises(GrammarTooLarge):
        compiler.compile(GrammarSpec.from_schema({"enum": [1, 2, 3]}))
    compiler.close()
