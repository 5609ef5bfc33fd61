"""What graphs read is what was sent last, whatever their size."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.lora.static_tiles import StaticTiles
from kernels.lora import AdapterTiles

CPU = torch.device("cpu")
MAX_TOKENS, NUM_SLOTS = 300, 5


def by_token(tiles: AdapterTiles) -> dict[int, int]:
    return {
        token: slot
        for slot, tokens in zip(tiles.slots.tolist(), tiles.tokens.tolist(), strict=True)
        for token in tokens
        if token >= 0
    }


def test_before_anything_was_sent_there_is_nothing() -> None:
    static = StaticTiles(MAX_TOKENS, NUM_SLOTS, CPU)
    for size in (1, 16, MAX_TOKENS):
        tiles = static.of(size)
        assert len(tiles.slots) >= 1
        assert (tiles.slots == -1).all()


@given(st.data())
def test_every_size_finds_what_was_sent_for_it(data: st.DataObject) -> None:
    static = StaticTiles(MAX_TOKENS, NUM_SLOTS, CPU)
    for size in data.draw(st.lists(st.sampled_from([1, 4, 32, 256, 300]), min_size=1, max_size=4)):
        batch = data.draw(st.integers(1, size))
        some = st.lists(st.integers(-1, NUM_SLOTS - 1), min_size=batch, max_size=batch)
        slots = data.draw(some)
        tiles = static.of(size)
        static.send(np.array(slots), size)
        assert by_token(tiles) == {i: slot for i, slot in enumerate(slots) if slot >= 0}


def test_graphs_of_as_many_rows_as_slots_have_room() -> None:
    for size in (1, 7, 256):
        static = StaticTiles(size, 64, CPU)
        slots = np.arange(size) % 64
        static.send(slots, size)
        assert by_token(static.of(size)) == dict(enumerate(slots.tolist()))
