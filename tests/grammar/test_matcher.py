from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from grammar.audit import BACKENDS
from grammar.backends.llguidance import LLGuidanceMatcher
from grammar.compiler import GrammarCompiler
from grammar.errors import DeadEnd, MatcherFailed
from grammar.matcher import MaskFiller, MaskJob, Matcher, TokenMatcher
from grammar.reasoning import ReasoningMatcher
from grammar.spec import GrammarSpec, Kind
from grammar.vocabulary import Mask, Vocabulary
from tests.grammar.vocabularies import MERGES, SPECIALS, byte_vocabulary
from tests.grammar.walks import accepts, allowed_ids

EOS = 256 + len(MERGES)
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


# outlines takes schemas only.
GENERAL_BACKENDS = [backend for backend in BACKENDS if backend != "outlines"]


@pytest.fixture(scope="module", params=GENERAL_BACKENDS)
def compiler(vocabulary: Vocabulary, request: pytest.FixtureRequest) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary, backends=[request.param], num_workers=0)
    yield compiler
    compiler.close()


@pytest.fixture(scope="module", params=BACKENDS)
def json_compiler(
    vocabulary: Vocabulary, request: pytest.FixtureRequest
) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary, backends=[request.param], num_workers=0)
    yield compiler
    compiler.close()


def matcher_of(compiler: GrammarCompiler, kind: Kind, source: str) -> Matcher:
    return compiler.compile(GrammarSpec(kind, source)).matcher()


@pytest.mark.parametrize(
    ("kind", "source", "good", "bad"),
    [
        ("json_object", "", ['{"a":[1,{"b":null}]}', "{}"], ["[]", "1", '{"a":}']),
        ("regex", "[a-c]+[0-9]{2}", ["abc12", "a00"], ["abc1", "12", "abc123"]),
        (
            "choice",
            '["yes", "no", "not sure", "q\\"\\n."]',
            ["no", "not sure", 'q"\n.'],
            ["not", ""],
        ),
        ("ebnf", 'root ::= "a" root | "b"', ["b", "aab"], ["a", "ba"]),
        ("ebnf", 'start: NAME "=" /[0-9]+/\nNAME: /[a-z]+/', ["x=1", "ab=20"], ["=1", "x="]),
    ],
)
def test_each_kind_accepts_its_language_and_nothing_else(
    compiler: GrammarCompiler,
    vocabulary: Vocabulary,
    kind: Kind,
    source: str,
    good: list[str],
    bad: list[str],
) -> None:
    for text in good:
        assert accepts(matcher_of(compiler, kind, source), vocabulary, text), text
    for text in bad:
        assert not accepts(matcher_of(compiler, kind, source), vocabulary, text), text


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ('{"name":"Al","age":3}', True),
        ('{ "name" : "é\\n" ,\n  "age": -1 }', True),
        ('{"name":"日","age":0}', True),
        ('{"name":"Al"}', False),
        ('{"name":"Al","age":3,"x":1}', False),
        ('{"name":"A', False),
        ("", False),
        ('{"name":"\n","age":1}', False),
    ],
)
def test_schemas(json_compiler: GrammarCompiler, text: str, good: bool) -> None:
    matcher = matcher_of(json_compiler, "json_schema", PERSON)
    assert accepts(matcher, json_compiler.vocabulary, text) == good


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
    assert matcher.num_tokens == 4


@pytest.mark.parametrize("backend", GENERAL_BACKENDS)
def test_every_eos_id_ends(backend: str) -> None:
    vocabulary = Vocabulary([b"a", b"b", b"", b"<e>"], [2, 3], [], 4)
    compiler = GrammarCompiler(vocabulary, backends=[backend], num_workers=0)
    for eos in (2, 3):
        matcher = matcher_of(compiler, "regex", "a")
        assert matcher.accept(0)
        assert allowed_ids(matcher, vocabulary) == [2, 3]
        assert matcher.accept(eos)
        assert matcher.is_terminated
    compiler.close()


def test_specials_and_padding_never_satisfy_a_rule(
    json_compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    specials = range(EOS, EOS + len(SPECIALS))
    matcher = matcher_of(json_compiler, "json_schema", '{"type":"string"}')
    assert matcher.accept(ord('"'))
    allowed = allowed_ids(matcher, vocabulary)
    assert not set(allowed) & set(specials)
    assert max(allowed) < EOS
    for token_id in (*specials, vocabulary.size - 1, vocabulary.size, -1):
        assert not matcher.accept(token_id)
    boolean = matcher_of(json_compiler, "json_schema", '{"const":true}')
    assert allowed_ids(boolean, vocabulary) == [ord("t"), 256 + MERGES.index(b"true")]


def test_a_mask_row_is_overwritten_whole(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    matcher = matcher_of(compiler, "regex", "a")
    for before in (-1, 0, 0x55555555):
        rows = np.full((3, vocabulary.mask_words), before, dtype=np.int32)
        matcher.fill_mask(rows[1])
        assert (rows[0] == before).all()
        assert (rows[2] == before).all()
        assert np.bitwise_count(rows[1].view(np.uint32)).sum() == 1


def test_rollback_restores_every_mask(
    json_compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    matcher = matcher_of(json_compiler, "json_schema", PERSON)
    tokens = [*vocabulary.tokenize(b'{"name": "ab", "age": 12}'), EOS]
    masks = []
    for token_id in tokens:
        masks.append(allowed_ids(matcher, vocabulary))
        assert matcher.accept(token_id)
    for back in range(1, len(tokens) + 1):
        matcher.rollback(back)
        assert matcher.num_tokens == len(tokens) - back
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
    matcher.rollback(0)
    matcher.rollback(1)
    assert matcher.num_tokens == 0


def test_forced_tokens_are_legal_and_do_not_advance(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    matcher = matcher_of(compiler, "regex", "(xbc|xbd)y")
    forced = matcher.forced_tokens()
    assert b"".join(vocabulary.tokens[i] for i in forced) == b"xb"
    assert matcher.num_tokens == 0
    assert all(matcher.accept(token_id) for token_id in forced)
    assert matcher.forced_tokens() == []
    done = matcher_of(compiler, "regex", "x?")
    assert done.accept(EOS)
    assert done.forced_tokens() == []


def test_of_long_forced_texts_only_the_beginning_is_looked_at(compiler: GrammarCompiler) -> None:
    forced = matcher_of(compiler, "choice", json.dumps(["q" * 5_000])).forced_tokens()
    assert forced == [ord("q")] * 256


def test_legal_prefix_stops_at_the_first_illegal_draft(compiler: GrammarCompiler) -> None:
    matcher = matcher_of(compiler, "regex", "abc")
    assert matcher.legal_prefix([97, 98, 98, 99]) == [97, 98]
    assert matcher.legal_prefix([97, 98, 99, EOS, 97]) == [97, 98, 99, EOS]
    assert matcher.legal_prefix([-1, 97]) == []
    assert matcher.num_tokens == 0
    assert not matcher.is_terminated


def test_draft_masks_are_those_met_on_the_way(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    matcher = matcher_of(compiler, "regex", "ax?bc*")
    drafts = [97, ord("x"), 98, 99, EOS]
    rows = np.full((len(drafts) + 1, vocabulary.mask_words), 7, dtype=np.int32)
    assert matcher.fill_draft_masks(drafts, rows) == 5
    assert matcher.num_tokens == 0
    row = np.zeros(vocabulary.mask_words, dtype=np.int32)
    for index, token_id in enumerate(drafts):
        matcher.fill_mask(row)
        assert (row == rows[index]).all()
        assert matcher.accept(token_id)
    assert not rows[5].any()
    matcher.rollback(3)
    rows.fill(7)
    assert matcher.fill_draft_masks([98, 98, 98], rows[:4]) == 1
    assert (rows[2] == 7).all()
    assert matcher.num_tokens == 2


def test_matchers_of_one_grammar_are_independent(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    compiled = compiler.compile(GrammarSpec("regex", "ax"))
    first, second = compiled.matcher(), compiled.matcher()
    assert first.accept(97)
    assert allowed_ids(second, vocabulary) == [97]


def test_blanks_are_bounded(json_compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    matcher = matcher_of(json_compiler, "json_schema", PERSON)
    assert matcher.accept(ord("{"))
    assert matcher.accept(ord("\n"))
    run = 0
    while matcher.accept(ord(" ")):
        run += 1
        assert run < 1000
    assert run >= 60
    assert set(allowed_ids(matcher, vocabulary)) <= {ord('"')}


@pytest.mark.parametrize("text", ["é", "日本語", "😀", "aé\u0301日😀"])
def test_characters_split_anywhere_between_tokens(
    compiler: GrammarCompiler, vocabulary: Vocabulary, text: str
) -> None:
    data = text.encode()
    assert accepts(matcher_of(compiler, "regex", text), vocabulary, data)
    by_bytes = matcher_of(compiler, "json_schema", '{"type":"string"}')
    for byte in b'"' + data + b'"':
        assert by_bytes.accept(byte)
    cut = matcher_of(compiler, "json_schema", '{"type":"string"}')
    for byte in b'"' + data[:-1]:
        assert cut.accept(byte)
    if data[-1] & 0xC0 == 0x80:  # in the middle of a character
        assert not cut.accept(ord('"'))
        assert EOS not in allowed_ids(cut, vocabulary)


def test_invalid_utf8_is_not_a_string(json_compiler: GrammarCompiler) -> None:
    for data in (b"\x80", b"\xc3a", b"\xff", b"\xf5\x80\x80\x80"):
        matcher = matcher_of(json_compiler, "json_schema", '{"type":"string"}')
        assert matcher.accept(ord('"'))
        assert not all(matcher.accept(byte) for byte in (*data, ord('"'))), data


@pytest.mark.parametrize("size", [280, 288, 289, 320, 1000])
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_width_of_the_logits(size: int, backend: str) -> None:
    vocabulary = byte_vocabulary(size)
    compiler = GrammarCompiler(vocabulary, backends=[backend], num_workers=0)
    matcher = matcher_of(compiler, "json_schema", PERSON)
    assert accepts(matcher, vocabulary, '{"name": "日本", "age": 1}')
    compiler.close()


def test_a_vocabulary_that_cannot_go_on_fails_the_matcher() -> None:
    vocabulary = Vocabulary([b"a", b""], [1], [], 2)
    compiler = GrammarCompiler(vocabulary, backends=["llguidance"], num_workers=0)
    matcher = matcher_of(compiler, "regex", "ab?|ac")
    assert matcher.accept(0)
    assert allowed_ids(matcher, vocabulary) == [1]
    stuck = compiler.compile(GrammarSpec("regex", "a|aab")).matcher()
    assert stuck.accept(0)
    assert stuck.accept(0)
    with pytest.raises(DeadEnd):
        allowed_ids(stuck, vocabulary)
    compiler.close()


def jobs_of(matchers: list[Matcher]) -> list[MaskJob]:
    return [MaskJob(matcher, (), i) for i, matcher in enumerate(matchers)]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_windows_of_drafts_are_filled_beside_single_places(
    compiler: GrammarCompiler, vocabulary: Vocabulary, num_threads: int
) -> None:
    compiled = compiler.compile(GrammarSpec("regex", "[xy]{40}"))
    windows = [[ord(c) for c in "xy" * (i % 4)] for i in range(30)]
    rows = np.full((sum(len(w) + 1 for w in windows), vocabulary.mask_words), 5, dtype=np.int32)
    jobs, start = [], 0
    for window in windows:
        jobs.append(MaskJob(compiled.matcher(), window, start))
        start += len(window) + 1
    assert MaskFiller(num_threads).fill(jobs, rows) == {}
    assert (rows == vocabulary.mask(b"xy")).all()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_many_masks_at_once(
    compiler: GrammarCompiler, vocabulary: Vocabulary, num_threads: int
) -> None:
    compiled = compiler.compile(GrammarSpec("regex", "x{50}y"))
    matchers = [compiled.matcher() for _ in range(51)]
    for count, matcher in enumerate(matchers):
        for _ in range(count):
            assert matcher.accept(ord("x"))
    rows = np.full((60, vocabulary.mask_words), 5, dtype=np.int32)
    filler = MaskFiller(num_threads)
    assert filler.fill(jobs_of(matchers), rows) == {}
    assert filler.fill([], rows) == {}
    for index, row in enumerate(rows[:51]):
        bits = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        assert list(bits) == [ord("y" if index == 50 else "x")]
    assert (rows[51:] == 5).all()


def test_a_batch_has_the_masks_that_come_one_by_one(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    """Of outputs in every state: free reasoning, after it, at the end, and in the middle."""
    compiled = compiler.compile(GrammarSpec("regex", "ab?c*"))

    def outputs() -> list[TokenMatcher]:
        found: list[TokenMatcher] = [
            ReasoningMatcher(compiled.matcher(), vocabulary, [ord("!")]) for _ in range(3)
        ]
        found += [compiled.matcher() for _ in range(5)]
        for matcher, ids in zip(
            found, ["", "x!", "!a", "", "a", "ab", "acc", f"a{chr(EOS)}"], strict=True
        ):
            assert all(matcher.accept(ord(c)) for c in ids)
        return found

    expected = np.full((8, vocabulary.mask_words), 5, dtype=np.int32)
    for matcher, row in zip(outputs(), expected, strict=True):
        matcher.fill_mask(row)
    rows = np.full((8, vocabulary.mask_words), 7, dtype=np.int32)
    jobs = [MaskJob(matcher, (), place) for place, matcher in enumerate(outputs())]
    assert MaskFiller(2).fill(jobs, rows) == {}
    assert (rows == expected).all()


def test_only_the_single_places_of_several_outputs_are_filled_by_threads(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = GrammarCompiler(vocabulary, backends=["llguidance"], num_workers=0)
    compiled = compiler.compile(GrammarSpec("regex", "x+"))
    filled: list[tuple[int, int]] = []
    fill_many = LLGuidanceMatcher.fill_many

    def counting(
        matchers: Sequence[tuple[LLGuidanceMatcher, int]], rows: Mask, num_threads: int
    ) -> None:
        filled.append((len(matchers), num_threads))
        fill_many(matchers, rows, num_threads)

    monkeypatch.setattr(LLGuidanceMatcher, "fill_many", staticmethod(counting))
    ended = compiled.matcher()
    assert ended.accept(ord("x"))
    assert ended.accept(EOS)
    jobs = [
        *jobs_of([*(compiled.matcher() for _ in range(5)), ended]),
        MaskJob(compiled.matcher(), [ord("x")], 6),
    ]
    rows = np.full((8, vocabulary.mask_words), 5, dtype=np.int32)
    for num_threads, num_jobs in ((1, 7), (2, 3), (2, 4), (3, 7)):
        assert MaskFiller(num_threads).fill(jobs[:num_jobs], rows) == {}
    assert filled == [(4, 2), (5, 3)]
    compiler.close()


def test_a_grammar_may_be_held_to_some_tokens(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    backend = matcher_of(compiler, "regex", "[ab]+").backend
    assert backend is not None
    matcher = Matcher(backend, vocabulary, vocabulary.mask(b"a"))
    assert allowed_ids(matcher, vocabulary) == [ord("a")]
    assert not matcher.accept(ord("b"))
    assert matcher.accept(ord("a"))
    assert allowed_ids(matcher, vocabulary) == [ord("a"), EOS]


class FailingMatcher(Matcher):
    def fill_mask(self, row: object) -> None:
        raise MatcherFailed("too complex")


def test_one_failure_does_not_touch_the_other_rows(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary, backends=["llguidance"], num_workers=0)
    good = [matcher_of(compiler, "regex", "x") for _ in range(20)]
    bad = FailingMatcher(None, vocabulary)  # type: ignore[arg-type]
    rows = np.zeros((21, vocabulary.mask_words), dtype=np.int32)
    filler = MaskFiller(2)
    failures = filler.fill(jobs_of([*good[:7], bad, *good[7:]]), rows)
    assert list(failures) == [7]
    assert "too complex" in str(failures[7])
    assert (rows[7] == -1).all()
    assert (np.bitwise_count(rows[8].view(np.uint32)).sum()) == 1
    compiler.close()
