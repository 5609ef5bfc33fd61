from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.models.base import CacheLayout
from engine.models.transformers_trial import Calls, one_line


def call(calls: Calls, layer: int | None = 0, *, heads: int = 4, kv: int = 2, **how: Any) -> None:
    query, key = torch.zeros(1, heads, 3, 8), torch.zeros(1, kv, 3, 8)
    module = SimpleNamespace(layer_idx=layer, is_causal=True)
    calls.record(module, query, key, key, **{"attention_mask": None, **how})


def test_calls_tell_the_cache_and_what_attention_must_offer() -> None:
    calls = Calls()
    for layer in (1, 0, 2):
        window = 7 + layer if layer else None
        call(calls, layer, sliding_window=window, softcap=30.0, scaling=0.5, dropout=0.0)
    assert calls.cache_layout(3) == CacheLayout(3, 2, 8)
    assert calls.windows == {0: None, 1: 8, 2: 9}
    assert calls.softcap == 30.0


def test_layers_must_all_attend_and_all_alike() -> None:
    calls = Calls()
    call(calls, 0)
    with pytest.raises(ValueError, match="1 of its 2 layers attend"):
        calls.cache_layout(2)
    call(calls, 1, kv=4)
    with pytest.raises(ValueError, match="layers differ in heads or head size"):
        calls.cache_layout(2)


def test_query_heads_must_share_key_heads_evenly() -> None:
    calls = Calls()
    call(calls, heads=4, kv=3)
    with pytest.raises(ValueError, match="4 query heads share 3 key heads unevenly"):
        calls.cache_layout(1)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"attention_mask": torch.zeros(1)}, "a mask of its own making"),
        ({"is_causal": False}, "not causal"),
        ({"layer": None}, "no layer_idx"),
        ({"s_aux": torch.zeros(4)}, "needs 's_aux'"),
        ({"position_bias": torch.zeros(4)}, "needs 'position_bias'"),
    ],
)
def test_calls_that_ask_for_more_are_refused(how: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        call(Calls(), **how)


def test_what_is_switched_off_is_not_asked_for() -> None:
    calls = Calls()
    call(calls, s_aux=None, deterministic=False)
    assert calls.cache_layout(1) == CacheLayout(1, 2, 8)


def test_messages_fit_a_line() -> None:
    assert one_line(ValueError("a\n  b")) == "a b"
    assert len(one_line(ValueError("word " * 1000))) <= 400
