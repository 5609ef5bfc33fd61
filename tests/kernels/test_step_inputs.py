"""What a forward pass reads of its tokens, looked up on the device."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_tokens_positions_and_slots(block_size: int) -> None:
    from kernels import cuda

    gen = torch.Generator().manual_seed(block_size)
    tokens = torch.randint(0, 1000, (5, 900), generator=gen)
    blocks = torch.randint(0, 99, (5, -(-900 // block_size)), generator=gen, dtype=torch.int32)
    rows, computed, query_lens = [3, -1, 0, 4], [7, 55, 0, 800], [1, 2, 600, 40]
    cu = torch.tensor([0, *query_lens]).cumsum(0).int()
    out = torch.full((3, int(cu[-1])), -9, device="cuda")
    seq_lens = torch.full((4,), -9, dtype=torch.int32, device="cuda")
    batch_table = torch.full((4, blocks.shape[1]), -9, dtype=torch.int32, device="cuda")
    cuda.load()
    cuda.step_inputs(
        tokens.cuda(),
        blocks.cuda(),
        torch.tensor(rows).int().cuda(),
        torch.tensor(computed).int().cuda(),
        cu.cuda(),
        token_ids=out[0],
        positions=out[1],
        slots=out[2],
        seq_lens=seq_lens,
        batch_table=batch_table,
        block_size=block_size,
    )
    ids, positions, slots = out.cpu()
    for i, row in enumerate(rows):
        span = slice(int(cu[i]), int(cu[i + 1]))
        if row < 0:
            assert seq_lens[i] == 0
            assert (slots[span] == -1).all()
            assert (positions[span] == 0).all()
            assert (batch_table[i] == -9).all()
            continue
        end = computed[i] + query_lens[i]
        at = torch.arange(computed[i], end)
        assert seq_lens[i] == end
        assert torch.equal(ids[span], tokens[row, at])
        assert torch.equal(positions[span], at)
        expected = blocks[row].long()[at // block_size] * block_size + at % block_size
        assert torch.equal(slots[span], expected)
        used = -(-end // block_size)
        assert torch.equal(batch_table[i, :used].cpu(), blocks[row, :used])
