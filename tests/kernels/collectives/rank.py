"""One rank of an all-reduce whose kernel a CPU computes; run by ``test_all_reduce.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from kernels import reference
from tests.kernels import emulated

CONTROL, CTAS, SLOT = 16384, 264, 16384 + 32768
ROUNDS = 8
SOURCES = ["collectives/all_reduce.cu"]
THREADS = 64


def summands(turn: int, size: int) -> tuple[torch.Tensor, torch.dtype]:
    """What each rank has: the same for all who ask."""
    generator = torch.Generator().manual_seed(turn)
    dtype = (torch.bfloat16, torch.float32, torch.float16)[turn % 3]
    rows = (1, 3, CTAS + 7)[turn % 3]  # more than there are CTAs
    width = 8 * int(torch.randint(1, THREADS // 2, (1,), generator=generator))
    return torch.randn(size, rows, width, generator=generator).to(dtype), dtype


def main(rank: int, size: int, folder: Path) -> None:
    native = emulated.native(SOURCES, threads=THREADS)
    num_bytes = CONTROL + CTAS * 2 * size * SLOT
    memory = [
        torch.from_file(str(folder / f"rank{i}"), shared=True, size=num_bytes, dtype=torch.uint8)
        for i in range(size)
    ]
    buffers = torch.tensor([one.data_ptr() for one in memory])
    for turn in range(ROUNDS):
        parts, dtype = summands(turn, size)
        total = sum(part.float() for part in parts).to(dtype)
        own = parts[rank].contiguous()
        most = (0, 1 << 20)[turn // 2 % 2]
        if turn % 2:
            got = native.all_reduce(own, buffers, rank=rank, most_flagged=most)
            assert torch.equal(got, total), turn
            continue
        residual, weight = torch.ones_like(own), torch.full((own.shape[1],), 0.5, dtype=dtype)
        after = residual.clone()
        want = reference.rms_norm(total, weight, 1e-5, after)
        norm = {"residual": residual, "weight": weight, "eps": 1e-5}
        got = native.all_reduce(own, buffers, rank=rank, most_flagged=most, **norm)
        assert torch.equal(residual, after), turn
        torch.testing.assert_close(got, want, atol=0.02, rtol=0.02)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
