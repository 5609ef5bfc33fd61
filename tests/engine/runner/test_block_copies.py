"""Leading slots of blocks that go to other blocks, in everything that is stored by block."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from engine.runner.block_copies import BlockCopies, as_stack
from kernels import cuda

NUM_BLOCKS, BLOCK_SIZE = 40, 5


def stacks(device: str, widths: Sequence[int] = (16, 48)) -> list[torch.Tensor]:
    """Three layers of keys and values, and one tensor of another dtype; random bytes."""
    found = []
    for num_tensors, width in zip((6, 1), widths, strict=True):
        shape = num_tensors, NUM_BLOCKS, BLOCK_SIZE, width
        found.append(torch.randint(0, 256, shape, device=device).to(torch.uint8))
    return found


def draw_copies(rng: random.Random, count: int) -> list[tuple[int, int, int]]:
    """No target is a source; a source may have several targets."""
    blocks = rng.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    sources, targets = blocks[: NUM_BLOCKS // 4], blocks[NUM_BLOCKS // 4 :]
    return [(rng.choice(sources), target, rng.randint(1, BLOCK_SIZE)) for target in targets[:count]]


def check(copies: BlockCopies, memory: Sequence[torch.Tensor]) -> None:
    rng = random.Random(1)
    for count in (0, 1, 2, 30):
        asked = draw_copies(rng, count)
        expected = [stack.clone() for stack in memory]
        for source, target, num_slots in asked:
            for stack in expected:
                stack[:, target, :num_slots] = stack[:, source, :num_slots]
        copies.copy(asked)
        for stack, wanted in zip(memory, expected, strict=True):
            assert torch.equal(stack, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32])
def test_a_stack_is_the_same_memory(dtype: torch.dtype) -> None:
    tensors = torch.zeros(6, 4, BLOCK_SIZE, 2, 8, dtype=dtype)
    stack = as_stack(tensors)
    assert stack.shape == (6, 4, BLOCK_SIZE, 16 * dtype.itemsize)
    stack[3, 2, 1] = 1
    assert tensors[3, 2, 1].view(torch.uint8).all()
    assert int(tensors.view(torch.uint8).sum()) == 16 * dtype.itemsize


def test_only_leading_slots_are_copied_in_all_tensors() -> None:
    memory = stacks("cpu")
    check(BlockCopies(memory), memory)


def test_on_a_gpu_all_copies_are_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel is told, as no GPU is needed for that."""
    launches: list[tuple[list[list[int]], list[list[int]], int]] = []

    def launch(places: torch.Tensor, copies: torch.Tensor, *, block_size: int) -> None:
        assert (places.dtype, copies.dtype) == (torch.int64, torch.int32)
        launches.append((places.tolist(), copies.tolist(), block_size))

    monkeypatch.setattr(cuda, "load", lambda: None)
    monkeypatch.setattr(cuda.native, "copy_leading_slots", launch, raising=False)
    memory = stacks("cpu")
    asked = draw_copies(random.Random(2), 20)
    copies = BlockCopies(memory, in_one=True)
    copies.copy([])
    copies.copy(asked)
    ((places, sent, block_size),) = launches
    assert places == [[tensor.data_ptr(), s.shape[3]] for s in memory for tensor in s]
    assert sent == [list(copy) for copy in asked]
    assert block_size == BLOCK_SIZE


@pytest.mark.gpu
def test_the_kernel_copies_the_same_slots() -> None:
    memory = stacks("cuda", widths=(16, 4096 + 16))
    assert BlockCopies.serves(memory)
    check(BlockCopies(memory), memory)


@pytest.mark.gpu
def test_slots_that_are_no_multiple_of_what_a_thread_copies() -> None:
    memory = stacks("cuda", widths=(24, 16))
    assert not BlockCopies.serves(memory)
    check(BlockCopies(memory), memory)
