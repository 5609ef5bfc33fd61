"""What a forward pass reads of its tokens, looked up on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

UNTOUCHED = -9


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of ``cuda.native.step_inputs``, by name."""

    tokens: torch.Tensor
    block_table: torch.Tensor
    rows: torch.Tensor
    computed: torch.Tensor
    cu_queries: torch.Tensor
    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    seq_lens: torch.Tensor
    batch_table: torch.Tensor
    block_size: int
    sent_rows: torch.Tensor | None


def check(
    look_up: Callable[[Call], None],
    rows: list[int],
    computed: list[int],
    query_lens: list[int],
    block_size: int,
    *,
    device: str = "cpu",
    on_host: bool = False,
) -> None:
    """on_host: rows and what is computed are in the host's memory."""
    batch, num_rows, max_len = len(rows), max(rows) + 1, 900
    gen = torch.Generator().manual_seed(block_size)
    tokens = torch.randint(0, 1000, (num_rows, max_len), generator=gen)
    blocks = torch.randint(
        0, 99, (num_rows, -(-max_len // block_size)), generator=gen, dtype=torch.int32
    )
    cu = torch.tensor([0, *query_lens]).cumsum(0).int()
    out = torch.full((3, int(cu[-1])), UNTOUCHED, device=device)
    ints = torch.full((2, batch), UNTOUCHED, dtype=torch.int32, device=device)
    batch_table = torch.full((batch, blocks.shape[1]), UNTOUCHED, dtype=torch.int32, device=device)
    sent_to = "cpu" if on_host else device
    look_up(
        Call(
            tokens=tokens.to(device),
            block_table=blocks.to(device),
            rows=torch.tensor(rows, dtype=torch.int32, device=sent_to),
            computed=torch.tensor(computed, dtype=torch.int32, device=sent_to),
            cu_queries=cu.to(device),
            token_ids=out[0],
            positions=out[1],
            slots=out[2],
            seq_lens=ints[0],
            batch_table=batch_table,
            block_size=block_size,
            sent_rows=ints[1] if on_host else None,
        )
    )
    ids, positions, slots = out.cpu()
    seq_lens, sent_rows = ints.cpu()
    assert sent_rows.tolist() == (rows if on_host else [UNTOUCHED] * batch)
    for i, row in enumerate(rows):
        span = slice(int(cu[i]), int(cu[i + 1]))
        if row < 0:
            assert seq_lens[i] == 0
            assert (slots[span] == -1).all()
            assert (positions[span] == 0).all()
            assert (batch_table[i] == UNTOUCHED).all()
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


def on_gpu(call: Call) -> None:
    from kernels import cuda

    cuda.load()
    cuda.native.step_inputs(
        *(call.tokens, call.block_table, call.rows, call.computed),
        cu_queries=call.cu_queries,
        token_ids=call.token_ids,
        positions=call.positions,
        slots=call.slots,
        seq_lens=call.seq_lens,
        batch_table=call.batch_table,
        block_size=call.block_size,
        sent_rows=call.sent_rows,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_tokens_positions_and_slots(block_size: int, on_host: bool) -> None:
    rows, computed, query_lens = [3, -1, 0, 4], [7, 55, 0, 800], [1, 2, 600, 40]
    check(on_gpu, rows, computed, query_lens, block_size, device="cuda", on_host=on_host)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 32, 33, 480, 481, 1024])
def test_batches_of_all_sizes_are_sent(batch: int) -> None:
    rows = [i if i % 7 else -1 for i in range(1, batch + 1)]
    computed = [i * 37 % 899 for i in range(batch)]
    check(on_gpu, rows, computed, [1] * batch, 16, device="cuda", on_host=True)
