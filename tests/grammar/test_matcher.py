from __future__ import annotations

import json
import random
from collections.abc import Iterator

import jsonschema
import numpy as np
import pytest

from grammar.compiler import GrammarCompiler
from grammar.matcher import Matcher
from grammar.spec import GrammarSpec
from grammar.vocabulary import Vocabulary
from tests.grammar.vocabularies import MERGES, SPECIALS, byte_vocabulary
from tests.grammar.walks import accepts, allowed_ids, random_walk

EOS = 256 + len(MERGES)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary)
    yield compiler
    compiler.close()


def matcher_of(compiler: GrammarCompiler, kind: str, source: str) -> Matcher:
    return compiler.compile(GrammarSpec(kind, source)).matcher()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "source", "good", "bad"),
    [
        (
            "json_schema",
            json.dumps(PERSON),
            ['{"name":"Al","age":3}', '{ "name" : "é\\n" ,\n  "age": -1 }'],
            ['{"name":"Al"}', '{"name":"Albert","age":3}', '{"age":3,"name":"Al","x":1}', ""],
        ),
        ("json_object", "", ['{"a":[1,{"b":null}]}', "{}"], ["[]", "1", '{"a":}']),
        ("regex", r"[a-c]+\d{2}", ["abc12", "a00"], ["abc1", "12", "abc123"]),
        ("choice", '["yes", "no", "not sure", "q\\"\\n"]', ["no", "not sure", 'q"\n'], ["not", ""]),
        ("ebnf", 'root ::= "a" root | "b"', ["b", "aab"], ["a", "ba"]),
        ("ebnf", 'start: NAME "=" /[0-9]+/\nNAME: /[a-z]+/', ["x=1", "ab=20"], ["=1", "x="]),
    ],
)
def test_each_kind_accepts_its_language_and_nothing_else(
    compiler: GrammarCompiler,
    vocabulary: Vocabulary,
    kind: str,
    source: str,
    good: list[str],
    bad: list[str],
) -> None:
    for text in good:
        assert accepts(matcher_of(compiler, kind, source), vocabulary, text), text
    for text in bad:
        assert not accepts(matcher_of(compiler, kind, source), vocabulary, text), text


def test_random_walks_end_in_valid_documents(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    rng = random.Random(1)
    ended = 0
    for _ in range(20):
        text = random_walk(matcher_of(compiler, "json_schema", json.dumps(PERSON)), vocabulary, rng)
        if text is not None:
            jsonschema.validate(json.loads(text), PERSON)
            ended += 1
    assert ended > 10


def test_eos_is_allowed_exactly_where_the_grammar_may_end(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    matcher = matcher_of(compiler, "regex", "a(xc)?")
    assert allowed_ids(matcher, vocabulary) == [97]
    assert not matcher.accept(EOS)
    assert matcher.accept(97)
    assert allowed_ids(matcher, vocabulary) == [ord("x"), EOS]
    assert matcher.accept(ord("x"))
    assert EOS not in allowed_ids(matcher, vocabulary)
    assert matcher.accept(99)
    assert allowed_ids(matcher, vocabulary) == [EOS]
    assert matcher.accept(EOS)
    assert matcher.is_terminated
    assert allowed_ids(matcher, vocabulary) == []
    assert not matcher.accept(EOS)
    assert not matcher.accept(97)


def test_every_eos_id_ends() -> None:
    vocabulary = Vocabulary([b"a", b"b", b"", b"<e>"], [2, 3], [], 4)
    with_two = GrammarCompiler(vocabulary)
    for eos in (2, 3):
        matcher = matcher_of(with_two, "regex", "a")
        assert matcher.accept(0)
        assert allowed_ids(matcher, vocabulary) == [2, 3]
        assert matcher.accept(eos)
        assert matcher.is_terminated
    with_two.close()


def test_specials_and_padding_never_satisfy_a_rule(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    specials = range(EOS, EOS + len(SPECIALS))
    matcher = matcher_of(compiler, "json_schema", '{"type":"string"}')
    assert matcher.accept(ord('"'))
    allowed = allowed_ids(matcher, vocabulary)
    assert not set(allowed) & set(specials)
    assert max(allowed) < EOS
    for token_id in (*specials, vocabulary.size - 1, vocabulary.size, -1):
        assert not matcher.accept(token_id)
    boolean = matcher_of(compiler, "json_schema", '{"const":true}')
    assert allowed_ids(boolean, vocabulary) == [ord("t"), 256 + MERGES.index(b"true")]


def test_a_mask_row_is_overwritten_whole(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    matcher = matcher_of(compiler, "regex", "a")
    rows = np.full((3, vocabulary.mask_words), -1, dtype=np.int32)
    matcher.fill_mask(rows[1])
    assert (rows[0] == -1).all()
    assert (rows[2] == -1).all()
    assert np.bitwise_count(rows[1].view(np.uint32)).sum() == 1


def test_rollback_restores_every_mask(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    matcher = matcher_of(compiler, "json_schema", json.dumps(PERSON))
    tokens = [*vocabulary.tokenize(b'{"name": "ab", "age": 12}'), EOS]
    masks = []
    for token_id in tokens:
        masks.append(allowed_ids(matcher, vocabulary))
        assert matcher.accept(token_id)
    for back in range(1, len(tokens) + 1):
        matcher.rollback(back)
        assert allowed_ids(matcher, vocabulary) == masks[len(tokens) - back]
        assert not matcher.is_terminated
        for token_id in tokens[len(tokens) - back :]:
            assert matcher.accept(token_id)


def test_an_illegal_token_changes_nothing(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    matcher = matcher_of(compiler, "regex", "ab")
    assert matcher.accept(97)
    before = allowed_ids(matcher, vocabulary)
    assert not matcher.accept(99)
    assert matcher.num_tokens == 1
    assert allowed_ids(matcher, vocabulary) == before


def test_forced_tokens_are_legal_and_do_not_advance(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    matcher = matcher_of(compiler, "json_schema", json.dumps(PERSON))
    assert matcher.accept(ord("{"))
    matcher = matcher_of(compiler, "regex", "(abc|abd)x")
    forced = matcher.forced_tokens()
    assert b"".join(vocabulary.tokens[i] for i in forced) == b"ab"
    assert matcher.num_tokens == 0
    for token_id in forced:
        assert matcher.accept(token_id)
    assert matcher.forced_tokens() == []


def test_legal_prefix_stops_at_the_first_illegal_draft(compiler: GrammarCompiler) -> None:
    matcher = matcher_of(compiler, "regex", "abc")
    assert matcher.legal_prefix([97, 98, 98, 99]) == [97, 98]
    assert matcher.legal_prefix([97, 98, 99, EOS, 97]) == [97, 98, 99, EOS]
    assert matcher.num_tokens == 0
    assert not matcher.is_terminated


def test_matchers_of_one_grammar_are_independent(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    compiled = compiler.compile(GrammarSpec("regex", "ax"))
    first, second = compiled.matcher(), compiled.matcher()
    assert first.accept(97)
    assert allowed_ids(second, vocabulary) == [97]


def test_blanks_are_bounded(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    matcher = matcher_of(compiler, "json_schema", json.dumps(PERSON))
    assert matcher.accept(ord("{"))
    run = 0
    while matcher.accept(ord(" ")):
        run += 1
        assert run < 1000
    assert allowed_ids(matcher, vocabulary) == [ord('"')]


@pytest.mark.parametrize("size", [280, 288, 289, 320, 1000])
def test_any_width_of_the_logits(size: int) -> None:
    vocabulary = byte_vocabulary(size)
    compiler = GrammarCompiler(vocabulary)
    assert accepts(matcher_of(compiler, "json_object", ""), vocabulary, '{"a": "日本"}')
    compiler.close()
