from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.hopper import copy_plan


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=12).flatmap(
        lambda blocks: st.tuples(
            st.just(blocks), st.sets(st.integers(0, len(blocks) - 1), min_size=1)
        )
    )
)
def test_every_block_of_the_chosen_sequences_has_one_copy(
    batch: tuple[list[int], set[int]],
) -> None:
    blocks, chosen = batch
    sequences = np.array(sorted(chosen))
    source, table = copy_plan(sequences, np.array(blocks)[sequences], len(blocks))
    found = set()
    for sequence in chosen:
        for place in range(blocks[sequence]):
            copy = int(table[sequence, place])
            assert source[:, copy].tolist() == [sequence, place]
            found.add(copy)
    assert found == set(range(source.shape[1]))
