"""The all-reduce of few bytes beside NCCL's, in CUDA graphs: a process for each GPU."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable

import torch
import torch.distributed

from kernels import cuda
from kernels.nccl import Communicator, Exchange
from kernels.peer_memory import PeerSums

SIZES = (8 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20)
_CALLS = 64  # in a graph
_ROUNDS = 20
_NUM_CHECKED = 200
_MOST_CHECKED = 1 << 22  # elements
_NUM_REPEATED = 1_000_000
_HIDDEN = 4096


def bench(size: int) -> int:
    """Start a process for each of ``size`` GPUs; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "kernels.bench_all_reduce", str(rank), str(size), folder]
            )
            for rank in range(size)
        ]
        return max(rank.wait() for rank in ranks)


def _run(rank: int, size: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=size
    )

    def exchange(data: bytes) -> list[bytes]:
        found: list[bytes] = [b""] * size
        torch.distributed.all_gather_object(found, data)
        return found

    nccl, sums = Communicator(rank, size, exchange), PeerSums(rank, size, exchange)
    _check(nccl, sums, rank, size)
    for num_bytes in SIZES:
        _measure(nccl, sums, num_bytes, rank, exchange)


def _check(nccl: Communicator, sums: PeerSums, rank: int, size: int) -> None:
    """Random sizes, against the sum in float32 of what all ranks have."""
    sizes = torch.Generator().manual_seed(0)
    for turn in range(_NUM_CHECKED):
        wide = torch.randint(0, 22, (1,), generator=sizes).item()
        most = min(_MOST_CHECKED, 8 << int(wide))
        numel = 8 * int(torch.randint(1, most // 8 + 1, (1,), generator=sizes).item())
        generator = torch.Generator("cuda").manual_seed(turn)
        parts = torch.randn(size, numel, device="cuda", generator=generator).bfloat16()
        want = parts.float().sum(0).bfloat16()
        assert torch.equal(sums.all_reduce(parts[rank]), want), (turn, numel)
    parts = torch.randn(size, 64, _HIDDEN, device="cuda", generator=generator).bfloat16()
    residual = torch.ones(64, _HIDDEN, device="cuda", dtype=torch.bfloat16)
    weight = torch.full((_HIDDEN,), 0.5, device="cuda", dtype=torch.bfloat16)
    total = parts.float().sum(0).bfloat16() + residual
    want = (total.float() * (total.float().square().mean(1, True) + 1e-5).rsqrt()) * 0.5
    got = sums.add_and_norm(parts[rank], residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert (got.float() - want).abs().max() < 0.05
    num_wrong = _repeat(sums, parts, rank)
    assert num_wrong == 0, num_wrong
    if rank == 0:
        print(json.dumps({"checked": _NUM_CHECKED, "repeated": _NUM_REPEATED}), flush=True)


def _repeat(sums: PeerSums, parts: torch.Tensor, rank: int) -> int:
    """How many of a million small sums, in graphs, are not followed by the right one."""
    rows = parts[:, :8].contiguous()
    want = rows.float().sum(0).bfloat16()
    num_wrong = torch.zeros((), device="cuda", dtype=torch.int64)

    def several() -> None:
        for index in range(_CALLS):
            out = sums.all_reduce(rows[rank])
            if index % 16 == 0:
                num_wrong.add_((out != want).any())

    graph = _recorded(several)
    for _ in range(_NUM_REPEATED // _CALLS):
        graph.replay()
    return int(num_wrong.item())


def _measure(
    nccl: Communicator, sums: PeerSums, num_bytes: int, rank: int, exchange: Exchange
) -> None:
    x = torch.zeros(num_bytes // 2, device="cuda", dtype=torch.bfloat16)
    rows = x.view(-1, _HIDDEN)
    residual = torch.zeros_like(rows)
    weight = torch.ones(_HIDDEN, device="cuda", dtype=torch.bfloat16)
    ways: dict[str, Callable[[], object]] = {
        "own": lambda: sums.all_reduce(x),
        "nccl": lambda: nccl.all_reduce(x),
        "own and norm": lambda: sums.add_and_norm(rows, residual, weight, 1e-5),
    }
    for name, call in ways.items():
        us = _microseconds(call, exchange)
        if rank == 0:
            found = {"kernel": "all_reduce", "by": name, "bytes": num_bytes, "us": round(us, 2)}
            print(json.dumps({**found, "GB_s": round(num_bytes / us / 1e3, 1)}), flush=True)


def _recorded(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def _microseconds(call: Callable[[], object], exchange: Exchange) -> float:
    """Of one call, in a graph of many; the median of some rounds."""

    def several() -> None:
        for _ in range(_CALLS):
            call()

    graph = _recorded(several)
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    taken: list[float] = []
    for _ in range(_ROUNDS):
        exchange(b"")
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) * 1e3 / _CALLS)
    return statistics.median(taken)


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    cuda.load()
    _run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
