from __future__ import annotations

import numpy as np
import pytest

from grammar.compiler import GrammarCompiler
from grammar.reasoning import ReasoningMatcher
from grammar.spec import GrammarSpec
from grammar.vocabulary import Vocabulary
from tests.grammar.vocabularies import MERGES
from tests.grammar.walks import allowed_ids

EOS = 256 + len(MERGES)
END_SPECIAL = EOS + 1


@pytest.fixture
def compiler(vocabulary: Vocabulary) -> GrammarCompiler:
    return GrammarCompiler(vocabulary, num_workers=0)


def reasoning(compiler: GrammarCompiler, end: list[int]) -> ReasoningMatcher:
    matcher = compiler.compile(GrammarSpec("regex", "xy")).matcher()
    return ReasoningMatcher(matcher, compiler.vocabulary, end)


def test_free_until_the_tag_then_bound(compiler: GrammarCompiler) -> None:
    matcher = reasoning(compiler, [END_SPECIAL])
    allowed = allowed_ids(matcher, compiler.vocabulary)
    assert set(range(256)) <= set(allowed)
    assert END_SPECIAL in allowed
    assert EOS not in allowed
    assert max(allowed) < EOS + 4
    for token_id in b"\x00thinking: xy":
        assert matcher.accept(token_id)
    assert matcher.forced_tokens() == []
    assert not matcher.accept(EOS)
    for no_token in (-1, compiler.vocabulary.size - 1, compiler.vocabulary.size, 10**9):
        assert matcher.accept(no_token) is False
    assert matcher.is_reasoning
    assert matcher.accept(END_SPECIAL)
    assert not matcher.is_reasoning
    assert allowed_ids(matcher, compiler.vocabulary) == [ord("x")]
    assert not matcher.accept(ord("a"))
    assert matcher.forced_tokens() == [ord("x"), ord("y")]
    assert all(matcher.accept(token_id) for token_id in (*b"xy", EOS))
    assert matcher.is_terminated


def test_the_boundary_inside_a_draft_window(compiler: GrammarCompiler) -> None:
    matcher = reasoning(compiler, [ord("<"), ord(">")])
    drafts = [*b"a<<>xz"]
    rows = np.zeros((len(drafts) + 1, compiler.vocabulary.mask_words), dtype=np.int32)
    assert matcher.fill_draft_masks(drafts, rows) == 5  # up to the z
    counts = np.bitwise_count(rows.view(np.uint32)).sum(axis=1)
    assert (counts[:4] > 256).all()
    assert list(counts[4:6]) == [1, 1]
    assert matcher.num_tokens == 0
    assert matcher.legal_prefix(drafts) == drafts[:5]
    assert matcher.is_reasoning


def test_rollback_across_the_boundary(compiler: GrammarCompiler) -> None:
    matcher = reasoning(compiler, [ord(">")])
    for token_id in (*b"ab>xy", EOS):
        assert matcher.accept(token_id)
    assert matcher.is_terminated
    matcher.rollback(4)
    assert matcher.is_reasoning
    assert matcher.num_tokens == 2
    assert matcher.accept(ord(">"))
    assert allowed_ids(matcher, compiler.vocabulary) == [ord("x")]
    matcher.rollback(3)
    assert matcher.num_tokens == 0


def test_the_backend_fills_masks_from_the_answer_on(compiler: GrammarCompiler) -> None:
    matcher = reasoning(compiler, [ord(">")])
    row = np.zeros(compiler.vocabulary.mask_words, dtype=np.int32)
    assert matcher.backend is None
    assert matcher.accept(ord(">"))
    for byte in (*b"xy", None):
        assert matcher.backend is not None
        matcher.backend.fill(row)
        matcher.finish_mask(row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        assert list(np.flatnonzero(bits)) == allowed_ids(matcher, compiler.vocabulary)
        assert byte is None or matcher.accept(byte)
