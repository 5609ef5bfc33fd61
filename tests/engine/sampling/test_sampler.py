from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.sampling.sampler import RowMask, Sampler
from engine.sampling.seeds import request_seed
from engine.sampling_params import SamplingParams
from kernels.sampling_row import sampling_table

VOCAB = 101
EOS = 100


def sampler(engine_seed: int = 0) -> Sampler:
    return Sampler(16, VOCAB, frozenset([EOS]), seed=engine_seed, device=torch.device("cpu"))


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def draw(
    s: Sampler,
    rows: list[int],
    positions: list[int],
    scores: torch.Tensor,
    mask: RowMask | None = None,
) -> list[int]:
    token_ids = s.sample(no_tokens(), scores.clone(), np.array(rows), np.array(positions), mask)
    result: list[int] = token_ids.tolist()
    return result


def no_tokens() -> torch.Tensor:
    """A token table for requests that do not look at it."""
    return torch.zeros(16, 64, dtype=torch.int64)


def mask_of(indices: list[int], allowed: list[list[int]]) -> RowMask:
    bits = np.zeros((len(indices), 128), bool)
    for row, tokens in enumerate(allowed):
        bits[row, tokens] = True
    packed = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    return RowMask(np.array(indices), packed)


MIX = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.7, top_k=5, seed=4),
    SamplingParams(temperature=1.5, top_p=0.3, seed=4),
    SamplingParams(temperature=2.0, min_p=0.2, seed=2**64 - 1),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=3.0, top_n_sigma=1.0, seed=9),
]


def test_each_row_of_a_mixed_batch_draws_as_if_alone() -> None:
    s = sampler()
    for row, params in enumerate(MIX):
        s.admit(row, f"request-{row}", params, 4)
    scores = logits(len(MIX))
    for position in range(4, 40):
        together = draw(s, list(range(len(MIX))), [position] * len(MIX), scores)
        alone = [draw(s, [row], [position], scores[row : row + 1])[0] for row in range(len(MIX))]
        assert together == alone
        shuffled = [3, 0, 5, 1]
        assert draw(s, shuffled, [position] * 4, scores[shuffled]) == [
            together[row] for row in shuffled
        ]


def test_what_is_drawn_goes_to_the_token_table_and_to_the_host() -> None:
    s = sampler()
    for row, params in enumerate(MIX):
        s.admit(row, f"request-{row}", params, 4)
    rows, positions = [4, 1, 0], [9, 7, 63]
    scores = logits(3)
    tokens, host = no_tokens(), torch.full((3,), -9)
    where = np.array(rows), np.array(positions)
    drawn = s.sample_into(tokens, scores.clone(), *where, None, host=host)
    assert drawn.tolist() == host.tolist() == draw(s, rows, positions, scores)
    assert tokens[rows, positions].tolist() == drawn.tolist()
    assert tokens.count_nonzero() <= 3


def test_the_row_does_not_matter_the_seed_and_position_do() -> None:
    s = sampler()
    scores = logits(1)
    s.admit(2, "a", SamplingParams(seed=9), 1)
    s.admit(7, "b", SamplingParams(seed=9), 1)
    s.admit(8, "c", SamplingParams(seed=10), 1)

    def stream(row: int) -> list[int]:
        return [draw(s, [row], [position], scores)[0] for position in range(30)]

    assert stream(2) == stream(7)
    assert stream(2) != stream(8)
    assert len(set(stream(2))) > 10


def test_without_a_seed_the_request_id_and_the_engines_seed_decide() -> None:
    def stream(engine_seed: int, request_id: str) -> list[int]:
        s = sampler(engine_seed)
        s.admit(0, request_id, SamplingParams(), 1)
        return [draw(s, [0], [position], logits(1))[0] for position in range(20)]

    assert stream(0, "a") == stream(0, "a")
    assert stream(0, "a") != stream(0, "b")
    assert stream(0, "a") != stream(1, "a")
    assert request_seed(0, "a") < 2**64


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masks_bind_their_rows(temperature: float) -> None:
    s = sampler()
    for row in range(3):
        s.admit(row, str(row), SamplingParams(temperature=temperature, seed=row), 1)
    scores = logits(3)
    free = draw(s, [0, 1, 2], [5] * 3, scores)
    mask = mask_of([0, 2], [[17], [EOS, 2]])
    masked = draw(s, [0, 1, 2], [5] * 3, scores, mask)
    assert masked[0] == 17
    assert masked[1] == free[1]
    assert masked[2] in (EOS, 2)


def test_min_tokens_gives_way_where_the_grammar_allows_only_the_end() -> None:
    s = sampler()
    s.admit(0, "a", SamplingParams(min_tokens=3, seed=1), 0)
    assert draw(s, [0], [0], logits(1), mask_of([0], [[EOS]])) == [EOS]
    assert draw(s, [0], [0], logits(1), mask_of([0], [[EOS, 5]])) == [5]


def test_nothing_is_kept_of_a_row_that_was_released() -> None:
    s = sampler()
    everything = SamplingParams(
        min_tokens=9,
        logit_bias={1: 1.0},
        presence_penalty=1.0,
        bad_words_token_ids=((1,),),
        allowed_token_ids=(1,),
        top_n_sigma=1.0,
    )
    for row in (0, 3):
        s.admit(row, str(row), everything, 1)
        s.release(row)
    assert not any(p.concerns(np.arange(16)) for p in (*s._processors, *s._behind_mask))


def test_parameters_are_sent_once_after_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def noted(rows: np.ndarray[Any, Any]) -> torch.Tensor:
        sent.append(len(rows))
        return sampling_table(rows)

    monkeypatch.setattr("engine.sampling.sampler.sampling_table", noted)
    s = sampler()
    for number in (1, 2):
        s.admit(0, str(number), SamplingParams(), 1)
        sent.clear()
        for position in range(3):
            draw(s, [0], [position], logits(1))
        assert len(sent) == 1


def test_the_best_of_one_is_the_best_and_no_limit_leaves_all() -> None:
    s = sampler()
    for row, top_k in enumerate((1, -1, VOCAB + 5)):
        s.admit(row, "r", SamplingParams(temperature=5.0, top_k=top_k, seed=1), 4)
    scores = logits(1).repeat(3, 1)
    of_one, of_all, of_more = zip(
        *(draw(s, [0, 1, 2], [position] * 3, scores) for position in range(4, 60)), strict=True
    )
    assert set(of_one) == {int(scores[0].argmax())}
    assert of_all == of_more
    assert len(set(of_all)) > VOCAB / 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_of_two_bytes_are_changed_in_four(dtype: torch.dtype) -> None:
    """A bias that two bytes would lose decides, and tokens are held back as they are in float32."""
    s = sampler()
    s.admit(0, "biased", SamplingParams(temperature=0.0, logit_bias={7: 1e-3}), 4)
    s.admit(1, "long", SamplingParams(temperature=0.0, min_tokens=9), 4)
    s.admit(2, "plain", SamplingParams(temperature=1.0, seed=3), 4)
    scores = logits(3).to(dtype)
    scores[0, [5, 7]] = 60.0
    scores[1, EOS] = 60.0
    drawn = draw(s, [0, 1, 2], [5] * 3, scores)
    assert drawn[:2] == [7, int(scores[1, :EOS].argmax())]
    assert drawn == draw(s, [0, 1, 2], [5] * 3, scores.float())
    assert draw(s, [2], [5], scores[2:]) == drawn[2:]
    held_back = scores[1:2]
    assert draw(s, [1], [5], held_back, mask_of([0], [[EOS]])) == [EOS], (
        "where nothing else is left"
    )
