from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention import torch_ref
from engine.attention.torch_ref import TorchAttention
from tests.engine.attention.cases import SHAPES, attend

BACKEND = TorchAttention(torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("heads", [2, 6, 8])
@pytest.mark.parametrize("shapes", SHAPES)
def test_equals_the_oracle(shapes: list[tuple[int, int]], heads: int) -> None:
    out, expected = attend(BACKEND, shapes, heads)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shapes", SHAPES)
def test_a_cache_in_fp8_equals_the_oracle(shapes: list[tuple[int, int]]) -> None:
    out, expected = attend(BACKEND, shapes, 6, softcap=2.0, fp8=True)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("window", "softcap"), [(1, None), (3, None), (8, 2.0), (None, 0.7)])
@pytest.mark.parametrize("shapes", SHAPES)
def test_windows_and_soft_caps_equal_the_oracle(
    shapes: list[tuple[int, int]], window: int | None, softcap: float | None
) -> None:
    out, expected = attend(BACKEND, shapes, 6, window=window, softcap=softcap)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (3, None), (8, 2.0)])
@pytest.mark.parametrize("shapes", SHAPES)
def test_sinks_equal_the_oracle(
    shapes: list[tuple[int, int]], window: int | None, softcap: float | None
) -> None:
    sinks = torch.tensor([-3.0, 0.0, 1.0, 2.0, 5.0, 9.0])
    out, expected = attend(BACKEND, shapes, 6, window=window, softcap=softcap, sinks=sinks)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [1, 3, 8, 25])
@pytest.mark.parametrize("shapes", SHAPES)
def test_what_a_window_has_left_behind_is_not_read(
    shapes: list[tuple[int, int]], window: int
) -> None:
    out, expected = attend(BACKEND, shapes, 6, window=window, left_behind=True)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=120, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.sampled_from([1, 1, 1, 2, 5, 19]), st.integers(0, 60)), min_size=1, max_size=9
    ),
    group_cost=st.sampled_from([0, 300, torch_ref._GROUP_COST]),
    seed=st.integers(0, 100),
)
def test_any_batch_in_any_grouping_equals_the_oracle(
    shapes: list[tuple[int, int]], group_cost: int, seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_ref, "_GROUP_COST", group_cost)
        out, expected = attend(BACKEND, [(q, q + past) for q, past in shapes], 4, seed=seed)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3000)), min_size=1, max_size=40),
)
def test_every_sequence_is_in_exactly_one_group(shapes: list[tuple[int, int]]) -> None:
    query_lens = np.array([q for q, _ in shapes])
    seq_lens = query_lens + np.array([past for _, past in shapes])
    groups = torch_ref.partition(query_lens, seq_lens)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(shapes)))
    if len(groups) == 1:
        assert groups[0].tolist() == list(range(len(shapes)))


def test_a_long_prompt_is_not_padded_together_with_decodes() -> None:
    query_lens = np.array([1] * 20 + [500])
    seq_lens = np.array([100] * 20 + [500])
    groups = torch_ref.partition(query_lens, seq_lens)
    assert [len(group) for group in groups] == [20, 1]


def test_decodes_of_like_length_form_one_group() -> None:
    groups = torch_ref.partition(np.ones(64, np.int64), np.arange(200, 264))
    assert len(groups) == 1
