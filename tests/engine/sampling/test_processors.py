from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.processors import HELD_BACK
from engine.sampling.sampler import Sampler
from engine.sampling_params import SamplingParams, StructuredOutputs
from tests.engine.sampling import naive

VOCAB = 40
EOS = frozenset({7})
MAX_LEN = 24
CPU = torch.device("cpu")

token_ids = st.integers(0, VOCAB - 1)
# Few ids, so that tokens repeat and bad words are met.
history = st.lists(st.integers(0, 4), max_size=10)
prompts = st.lists(token_ids, min_size=1, max_size=10)
words = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    options: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "repetition_penalty": st.floats(0.25, 4),
                "frequency_penalty": st.floats(-2, 2),
                "presence_penalty": st.floats(-2, 2),
                "logit_bias": st.dictionaries(token_ids, st.floats(-100, 100), max_size=5),
                "allowed_token_ids": st.sets(token_ids, min_size=1, max_size=9).map(tuple),
                "bad_words_token_ids": st.lists(words, max_size=4).map(tuple),
                "min_tokens": st.integers(0, 12),
                "stop_token_ids": st.just((11, 12)),
            },
        )
    )
    return SamplingParams(**options)


def sampler(max_num_rows: int = 8) -> Sampler:
    return Sampler(max_num_rows, VOCAB, EOS, seed=0, device=CPU)


def table(*rows: list[int]) -> torch.Tensor:
    """Tokens as a runner knows them; behind them is what an earlier request left."""
    tokens = torch.full((8, MAX_LEN), 3)
    for row, known in enumerate(rows):
        tokens[row, : len(known)] = torch.tensor(known)
    return tokens


def logits(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4


def run(
    s: Sampler, tokens: torch.Tensor, scores: torch.Tensor, rows: list[int], positions: list[int]
) -> torch.Tensor:
    return s.process(tokens, scores.clone(), np.array(rows), np.array(positions), None)


def assert_close(ours: torch.Tensor, expected: list[float]) -> None:
    # What is forbidden may be held back only, but must be out of reach.
    shown = ours.masked_fill(ours <= HELD_BACK / 2, -torch.inf)
    torch.testing.assert_close(shown, torch.tensor(expected), rtol=1e-5, atol=1e-5)


@settings(deadline=None)
@given(params(), prompts, history, st.integers(0, 99))
def test_each_option_does_what_vllm_says(
    how: SamplingParams, prompt: list[int], output: list[int], seed: int
) -> None:
    s = sampler()
    s.admit(2, "a", how, len(prompt))
    tokens = table([], [], [*prompt, *output])
    scores = logits(seed)
    ours = run(s, tokens, scores, [2], [len(prompt) + len(output)])
    expected = naive.processed(scores[0].tolist(), prompt, output, how, EOS)
    if max(expected) > -torch.inf:
        assert_close(ours[0], expected)


@settings(deadline=None)
@given(st.lists(st.tuples(params(), prompts, history), min_size=1, max_size=4), st.data())
def test_rows_do_not_see_each_other(
    requests: list[tuple[SamplingParams, list[int], list[int]]], data: st.DataObject
) -> None:
    """Alone, together and several times in one call, as the drafts of a request are."""
    s = sampler()
    for row, (how, prompt, _) in enumerate(requests):
        s.admit(row, str(row), how, len(prompt))
    tokens = table(*(prompt + output for _, prompt, output in requests))
    pairs = [
        (row, len(prompt) + seen)
        for row, (_, prompt, output) in enumerate(requests)
        for seen in range(len(output) + 1)
    ]
    pairs = data.draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=9))
    rows, positions = [row for row, _ in pairs], [position for _, position in pairs]
    scores = logits(1, len(pairs))
    together = run(s, tokens, scores, rows, positions)
    for i, (row, position) in enumerate(pairs):
        alone = run(s, tokens, scores[i : i + 1], [row], [position])
        assert torch.equal(together[i], alone[0])


@pytest.mark.parametrize(
    "options",
    [
        {"frequency_penalty": 1.0},
        {"repetition_penalty": 3.0},
        {"logit_bias": {3: 2.0}},
        {"allowed_token_ids": [3, 4]},
        {"bad_words_token_ids": [[3]]},
        {"min_tokens": 9},
    ],
    ids=str,
)
@pytest.mark.parametrize("release", [False, True])
def test_a_row_forgets_its_last_request(options: dict[str, Any], release: bool) -> None:
    s = sampler()
    tokens, scores = table([3, 3]), logits(0)
    s.admit(0, "a", SamplingParams(**options), 1)
    assert not torch.equal(run(s, tokens, scores, [0], [2]), scores)
    if release:
        s.release(0)
        s.release(0)
    s.admit(0, "b", SamplingParams(), 1)
    assert torch.equal(run(s, tokens, scores, [0], [2]), scores)


def test_the_same_rows_may_ask_for_other_things_later() -> None:
    """What is kept on the device between steps is dropped with the request it came from."""
    s = sampler()
    tokens, scores = table([3, 3], [3, 3]), logits(0, 2)
    wishes = [
        {"logit_bias": {5: 1.0}},
        {"allowed_token_ids": (5, 6)},
        {"bad_words_token_ids": ((3,),)},
        {"logit_bias": {5: 2.0}, "allowed_token_ids": (5, 7), "bad_words_token_ids": ((3, 5),)},
    ]
    for first in wishes:
        for second in wishes:
            for row, wish in enumerate((first, second)):
                s.admit(row, str(row), SamplingParams(**wish), 1)  # type: ignore[arg-type]
            for rows in ([0, 1], [1, 0], [0, 1]):
                ours = run(s, tokens, scores, rows, [2, 2])
                for i, row in enumerate(rows):
                    how = SamplingParams(**(first, second)[row])  # type: ignore[arg-type]
                    assert_close(ours[i], naive.processed(scores[i].tolist(), [3], [3], how))


def test_bad_words_are_met_inside_the_output_only() -> None:
    """The prompt may end with the beginning of a bad word, as in vLLM."""
    s = sampler()
    s.admit(0, "a", SamplingParams(bad_words_token_ids=((5, 6, 9), (8,))), 3)
    scores = torch.zeros(1, VOCAB)

    def held(known: list[int]) -> list[int]:
        ours = run(s, table(known), scores, [0], [len(known)])
        return (ours[0] < 0).nonzero().flatten().tolist()

    assert held([1, 5, 6]) == [8]
    assert held([1, 5, 6, 6]) == [8]
    assert held([1, 2, 3, 5, 6]) == [8, 9]
    assert held([1, 2, 3, 5, 6, 6]) == [8]


def test_what_is_allowed_comes_before_what_is_bad() -> None:
    """Where both leave nothing, the bad word is generated, and never a token outside the list."""
    s = sampler()
    how = SamplingParams(
        temperature=0.0, allowed_token_ids=(5,), bad_words_token_ids=((5,),), logit_bias={6: 100}
    )
    s.admit(0, "a", how, 1)
    drawn = s.sample(table([0]), logits(0), np.array([0]), np.array([1]), None)
    assert drawn.tolist() == [5]


def test_a_grammar_may_end_although_eos_is_not_in_the_list() -> None:
    s = sampler()
    grammar = StructuredOutputs(regex="a")
    s.admit(0, "a", SamplingParams(allowed_token_ids=(3,)), 1)
    s.admit(1, "b", SamplingParams(allowed_token_ids=(3,), structured_outputs=grammar), 1)
    ours = run(s, table([0], [0]), torch.zeros(2, VOCAB), [0, 1], [1, 1])
    assert [row.isfinite().nonzero().flatten().tolist() for row in ours] == [[3], [3, 7]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_processed_in_float32(dtype: torch.dtype) -> None:
    s = sampler()
    s.admit(0, "a", SamplingParams(presence_penalty=0.001), 1)
    scores = logits(0).to(dtype)
    ours = run(s, table([0, 3]), scores, [0], [2])
    assert ours.dtype == torch.float32
    assert ours[0, 3] == scores[0, 3].float() - 0.001


def test_top_n_sigma_counts_only_what_may_be_generated() -> None:
    """Neither forbidden tokens nor a stop token that is held back; where nothing else is left, they
    stay."""
    s = sampler()
    s.admit(0, "", SamplingParams(top_n_sigma=1.0, min_tokens=5, stop_token_ids=(3,)), 1)
    scores = torch.full((1, VOCAB), -torch.inf)
    scores[0, :4] = torch.tensor([4.0, 2.0, 0.0, 9.0])  # of the first three sigma is 1.63
    left = run(s, table([1]), scores, [0], [1])
    assert left[0].isfinite().nonzero().view(-1).tolist() == [0]
    scores[0, :3] = -torch.inf
    left = run(s, table([1]), scores, [0], [1])
    assert left[0].isfinite().nonzero().view(-1).tolist() == [3]
