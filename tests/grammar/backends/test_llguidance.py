from __future__ import annotations

import json

import numpy as np
import pytest

from grammar.backends.llguidance import LLGuidanceBackend
from grammar.compiler import GrammarCompiler
from grammar.errors import GrammarTooLarge, InvalidGrammar, MatcherFailed
from grammar.spec import GrammarSpec, Kind
from grammar.vocabulary import Mask, Vocabulary
from tests.grammar.walks import accepts


@pytest.fixture(scope="module")
def backend(vocabulary: Vocabulary) -> LLGuidanceBackend:
    return LLGuidanceBackend(vocabulary)


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        ("regex", "(?=a)b", "look-around"),
        ("ebnf", "start: x", 'unknown name: "x"'),
        ("ebnf", "%%%", "Expected name"),
        ("json_schema", '{"type": "integer", "minimum": 3, "maximum": 2}', "nothing can satisfy"),
        ("json_schema", '{"uniqueItems": true}', "uniqueItems"),
    ],
)
def test_messages_say_what_and_not_our_own_text(
    backend: LLGuidanceBackend, kind: Kind, source: str, message: str
) -> None:
    with pytest.raises(InvalidGrammar, match=message) as caught:
        backend.compile(GrammarSpec(kind, source))
    for ours in ("x-guidance", "no_forcing", "%json", "non-verbose", " | "):
        assert ours not in str(caught.value)


def test_what_was_computed_counts_as_memory(backend: LLGuidanceBackend) -> None:
    """A short source can hold 40 MB, and a cache by bytes must know."""
    divisors = [{"type": "integer", "multipleOf": 9_973 - i} for i in range(10)]
    spec = GrammarSpec.from_schema({"type": "array", "prefixItems": divisors})
    assert backend.compile(spec).memory_bytes > 10_000_000
    assert backend.compile(GrammarSpec.from_schema({"type": "integer"})).memory_bytes < 5_000_000


def test_too_large_a_grammar_is_told_from_a_wrong_one(backend: LLGuidanceBackend) -> None:
    branches = [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(4)]} for i in range(12)]
    with pytest.raises(GrammarTooLarge):
        backend.compile(GrammarSpec.from_schema({"type": "object", "allOf": branches}))


def test_loading_is_compiling_again(backend: LLGuidanceBackend, vocabulary: Vocabulary) -> None:
    spec = GrammarSpec("regex", "ab")
    grammar = backend.load(spec, backend.compile(spec).dump())
    matcher = grammar.matcher()
    assert matcher.accept(97)
    assert matcher.forced_bytes() == b"b"
    assert grammar.memory_bytes > 0


def test_a_key_has_one_spelling(backend: LLGuidanceBackend) -> None:
    schema = {"type": "object", "properties": {"a/b": {"type": "integer"}}}
    grammar = backend.compile(GrammarSpec("json_schema", json.dumps(schema)))

    def accepts(text: str) -> bool:
        matcher = grammar.matcher()
        return all(matcher.accept(byte) for byte in text.encode()) and matcher.is_accepting()

    assert accepts('{"a/b":1,"c\\n":"x"}')
    for other in (r"{\u0061/b", r"a\/b", r"\u0061\/b"):
        assert not accepts(f'{{"a/b":1,"{other}":"x"}}')


def test_running_into_a_limit_fails_the_matcher(
    backend: LLGuidanceBackend, vocabulary: Vocabulary
) -> None:
    matcher = backend.compile(GrammarSpec("regex", r"(\w{1,500}){1,500}x")).matcher()
    row: Mask = np.zeros(vocabulary.mask_words, dtype=np.int32)

    def follow() -> None:
        for _ in range(50):
            matcher.fill(row)
            matcher.accept(ord("a"))

    with pytest.raises(MatcherFailed, match="too"):
        follow()


def test_a_document_may_be_laid_out_and_no_more(backend: LLGuidanceBackend) -> None:
    grammar = backend.compile(GrammarSpec("json_object"))

    def follows(text: str) -> bool:
        matcher = grammar.matcher()
        return all(matcher.accept(byte) for byte in text.encode())

    deep: dict[str, object] = {}
    for _ in range(15):
        deep = {"a": deep, "b": [1, "x"]}
    for layout in (None, 0, 2, 4, "\t"):
        assert follows(json.dumps(deep, indent=layout))
    assert follows('{ \r\n  "a" :  [ 1 ,\t2 ] }')
    assert follows('{\n\n  "a": 1,  \n  "b": 2\n\n}')
    for idle in ("\n" * 3, " " * 17, "\n" + " " * 65, "\n \n ", "\t" * 17, "\n" * 2 + "\t" * 65):
        assert not follows("{" + idle)
        assert not follows('{"a":' + idle)


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_bounds_hold_to_the_last_safe_integer(backend: LLGuidanceBackend, kind: str) -> None:
    last = 2**53 - 1
    bounded = {"type": kind, "minimum": -last, "maximum": last}
    grammar = backend.compile(GrammarSpec.from_schema(bounded))

    def accepts(text: str) -> bool:
        matcher = grammar.matcher()
        return all(matcher.accept(byte) for byte in text.encode()) and matcher.is_accepting()

    for value in (0, last - 1, last, -last):
        assert accepts(str(value))
    for beyond in (str(last + 1), str(-last - 1), f"{last}.4", f"{last}0"):
        assert not accepts(beyond)
    assert accepts(f"{last - 1}.7") == (kind == "number")


def test_a_document_may_be_without_blanks(backend: LLGuidanceBackend) -> None:
    def accepts(grammar: GrammarSpec, text: str) -> bool:
        matcher = backend.compile(grammar).matcher()
        return all(matcher.accept(byte) for byte in text.encode()) and matcher.is_accepting()

    value = {"a b": [1, {"c": " "}], "d": {}}
    tag = {"type": "tag", "begin": "<a>", "content": {"type": "json_schema"}, "end": "</a>"}
    for schema in (True, {"const": value}):
        source = json.dumps(schema)
        content = {"type": "json_schema", "json_schema": schema}
        tags = json.dumps({"type": "structural_tag", "format": tag | {"content": content}})
        for kind, text, before, after in (
            ("json_schema", source, "", ""),
            ("structural_tag", tags, "<a>", "</a>"),
        ):
            compact = GrammarSpec(kind, text, any_whitespace=False)  # type: ignore[arg-type]
            dense = json.dumps(value, separators=(",", ":"))
            assert accepts(compact, f"{before}{dense}{after}")
            assert not accepts(compact, f"{before}{json.dumps(value)}{after}")
            loose = GrammarSpec(kind, text)  # type: ignore[arg-type]
            assert accepts(loose, f"{before}{json.dumps(value)}{after}")
    assert accepts(GrammarSpec("json_object", any_whitespace=False), '{"a":1}')
    assert not accepts(GrammarSpec("json_object", any_whitespace=False), '{"a": 1}')


@pytest.mark.parametrize(
    ("pattern", "allowed", "barred"),
    [
        ('^[^"]$', "\\a\n", '"'),
        (r"^[^\\]$", '"a\n', "\\"),
        (r'^[^"\\]$', "a\n\t", '"\\'),
        (r'^[^"\n]$', "\\a\t", '"\n'),
        (r'^([^"a]|\x00|\x01)$', "\\b\n", '"a'),
        (r'^[^"\p{Lu}]$', "\\a\n", '"A'),
        (r"^[\x00-\x1f\p{Lu}]$", "\nA", '"\\a'),
        (r"^.$", '"\\a\t', "\n"),
        (r"^[^a]$", '"\\b\n', "a"),
    ],
)
def test_a_class_without_quotes_lets_none_through(
    vocabulary: Vocabulary, pattern: str, allowed: str, barred: str
) -> None:
    compiler = GrammarCompiler(vocabulary, backends=["llguidance"], num_workers=0)
    compiled = compiler.compile(GrammarSpec.from_schema({"type": "string", "pattern": pattern}))
    for char in allowed + barred:
        text = json.dumps(char, ensure_ascii=False)
        assert accepts(compiled.matcher(), vocabulary, text) == (char in allowed), char
    names = {"type": "object", "patternProperties": {pattern: True}, "additionalProperties": False}
    compiled = compiler.compile(GrammarSpec.from_schema(names))
    for char in allowed + barred:
        text = json.dumps({char: 1}, ensure_ascii=False)
        assert accepts(compiled.matcher(), vocabulary, text) == (char in allowed), char
    compiler.close()
