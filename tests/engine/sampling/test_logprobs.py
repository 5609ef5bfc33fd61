from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import TokenLogprobs
from engine.sampling.logprobs import TokenScores

# Few values, so that there are ties, zeros of both signs and tokens that cannot be.
VALUES = [-math.inf, -3.5, -0.0, 0.0, 0.25, 2.0, 11.0]
rows = st.lists(st.sampled_from(VALUES), min_size=6, max_size=6).filter(lambda r: max(r) > -9)


def expected(row: list[float], token_id: int, num_top: int) -> TokenLogprobs:
    total = math.log(math.fsum(map(math.exp, row)))
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    top = [(i, row[i] - total) for i in order[:num_top]]
    rank = 1 + sum(value > row[token_id] for value in row)
    return TokenLogprobs(token_id, row[token_id] - total, rank, top)


def assert_equal(ours: TokenLogprobs, theirs: TokenLogprobs) -> None:
    def flat(record: TokenLogprobs) -> list[float]:
        return [record.logprob, *(logprob for _, logprob in record.top)]

    assert (ours.token_id, ours.rank) == (theirs.token_id, theirs.rank)
    assert [i for i, _ in ours.top] == [i for i, _ in theirs.top]
    assert all(
        a == b or math.isclose(a, b, abs_tol=1e-5)
        for a, b in zip(flat(ours), flat(theirs), strict=True)
    )


@settings(deadline=None)
@given(st.lists(st.tuples(rows, st.integers(0, 5), st.integers(0, 6)), min_size=1, max_size=5))
def test_logprobs_ranks_and_the_likeliest(wanted: list[tuple[list[float], int, int]]) -> None:
    logits = torch.tensor([row for row, _, _ in wanted])
    token_ids = torch.tensor([token_id for _, token_id, _ in wanted])
    num_top = [number for _, _, number in wanted]
    records = TokenScores.of(logits, token_ids, max(num_top)).read(num_top)
    for record, (row, token_id, number) in zip(records, wanted, strict=True):
        assert_equal(record, expected(row, token_id, number))


@settings(deadline=None)
@given(st.lists(rows, min_size=2, max_size=6), st.integers(1, 5))
def test_a_record_does_not_depend_on_the_others(values: list[list[float]], cut: int) -> None:
    logits = torch.tensor(values)
    token_ids = torch.arange(len(values)) % 6
    whole = TokenScores.of(logits, token_ids, 6)
    parts = [
        TokenScores.of(logits[at], token_ids[at], 6)
        for at in (slice(0, cut), slice(cut, None))
        if len(logits[at])
    ]
    num_top = [2] * len(values)
    assert TokenScores.join(parts).read(num_top) == whole.read(num_top)
    alone = TokenScores.of(logits[:1], token_ids[:1], 2)
    assert alone.read([2]) == whole.read(num_top)[:1]
