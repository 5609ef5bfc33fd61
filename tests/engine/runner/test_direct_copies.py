"""Blocks that go to host memory and back in one launch come back as they went."""

from __future__ import annotations

import random

import pytest
import torch

from engine.runner.direct_copies import DirectCopies, places
from engine.runner.swap import HostBlocks


def test_pieces_of_a_row_stand_side_by_side() -> None:
    tensors = [torch.zeros(3, size, dtype=torch.uint8) for size in (32, 16, 64)]
    found = places(tensors)
    assert found[:, 0].tolist() == [tensor.data_ptr() for tensor in tensors]
    assert found[:, 1:].tolist() == [[32, 0], [16, 32], [64, 48]]


def test_pieces_that_are_no_multiple_of_what_a_thread_copies() -> None:
    assert not DirectCopies.serves([torch.zeros(3, 24, dtype=torch.uint8)])


def kv_cache(num_blocks: int, dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two layers of unequal width, and one whose keys are its values."""
    memory = []
    for width in (16, 80):
        shape = (num_blocks, 4, 2, width)
        bits = [torch.randint(0, 256, (*shape, dtype.itemsize), device="cuda") for _ in range(2)]
        k, v = (x.to(torch.uint8).view(dtype).squeeze(-1) for x in bits)
        memory.append((k, v))
    latent = torch.randint(0, 256, (num_blocks, 4, 1, 48), device="cuda").to(torch.uint8)
    return [*memory, (latent, latent)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("direct", [True, False])
def test_blocks_come_back_as_they_went(dtype: torch.dtype, direct: bool) -> None:
    cache = kv_cache(60, dtype)
    flat = [
        t.view(torch.uint8).view(60, -1) for k, v in cache for t in {id(k): k, id(v): v}.values()
    ]
    before = [tensor.clone() for tensor in flat]
    host = HostBlocks(cache, 45, direct=direct)
    assert (host._direct is not None) is direct
    rng = random.Random(0)
    for count in (1, 40, 45):
        blocks, rows = rng.sample(range(60), count), rng.sample(range(45), count)
        event = host.copy_out(list(zip(blocks, rows, strict=True)))
        assert event is not None
        event.synchronize()
        for tensor in flat:
            tensor.zero_()
        torch.cuda.synchronize()  # blocks that are copied in are in no step's use
        targets = rng.sample(range(60), count)
        host.copy_in(list(zip(targets, rows, strict=True)))
        torch.cuda.synchronize()
        for then, now in zip(before, flat, strict=True):
            assert torch.equal(then[blocks], now[targets])
            others = [i for i in range(60) if i not in targets]
            assert not now[others].any(), "a block was written that nobody asked for"
            now.copy_(then)


@pytest.mark.gpu
def test_they_are_the_default_where_they_serve_the_cache() -> None:
    host = HostBlocks(kv_cache(8, torch.bfloat16), 4)
    assert host._direct is not None
    odd = torch.zeros(8, 3, 1, 1, dtype=torch.bfloat16, device="cuda")  # 6 bytes a block
    fallback = HostBlocks([(odd, odd)], 4)
    assert fallback._direct is None


def test_without_a_gpu_blocks_are_copied_one_by_one() -> None:
    memory = torch.arange(8 * 16).view(8, 4, 2, 2).float()
    cache = memory.clone()
    host = HostBlocks([(cache, cache)], 4)
    assert host._direct is None
    host.copy_out([(5, 2)])
    cache.zero_()
    host.copy_in([(1, 2)])
    assert torch.equal(cache[1], memory[5])


@pytest.mark.gpu
def test_how_long_a_block_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """Of Llama-3-8B's shape; the faster of the two ways is the default."""
    memory = torch.zeros(32, 2, 64, 16, 8, 128, dtype=torch.bfloat16, device="cuda")
    cache = [(layer[0], layer[1]) for layer in memory]
    seconds = {direct: HostBlocks(cache, 32, direct=direct).s_per_block for direct in (False, True)}
    with capsys.disabled():
        print(
            f"\nseconds a block of 2 MiB: staged {seconds[False]:.2e}, direct {seconds[True]:.2e}"
        )
    assert all(0 < taken < 0.01 for taken in seconds.values())
