"""``python -m kernels.bench``: measures attention at an 8B model's shapes, and its decoder for few
tokens, on a GPU.

32 query heads, 8 KV heads, head_dim 128, bfloat16, scattered blocks of 16. Every run starts with a
flushed L2; times are medians. ``do_bench`` of Triton flushes by writing 256 MB, and what of it is
still in the L2, up to 50 MB, must be written back while a kernel reads. So decode attention, which
does nothing but read, is timed twice: ``us`` after these lines are gone, ``do_bench_us`` with them.
One JSON line per case, on standard output.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import torch

from kernels import bench_all_reduce, cuda
from kernels.persistent_decoder import LayerWeights, PersistentDecoder
from kernels.tiles import tile_list

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16
DECODE_CASES = (
    (1, 128),
    (1, 1024),
    (1, 16384),
    (8, 1024),
    (16, 640),
    (8, 4096),
    (32, 4096),
    (64, 1024),
    (64, 4096),
    (256, 1024),
    (256, 2048),
    (4, 65536),
)

PREFILL_CASES = (
    (1, 2048, 0),
    (1, 8192, 0),
    (4, 2048, 0),
    (1, 2048, 8192),
    (1, 2048, 30720),
    (16, 512, 0),
)
"""(batch, chunk, tokens before it)"""


FLUSH_BYTES = 256 * 2**20


def after_reading_ms(step: Callable[[], None], runs: int = 100) -> float:
    """Median time of ``step``, each time with the L2 full of other data that is in memory, too."""
    written = torch.empty(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")
    read, total = torch.zeros_like(written), torch.zeros((), device="cuda")
    step()
    events = []
    for _ in range(runs):
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        written.zero_()  # long enough for the host to get ahead
        torch.sum(read, 0, out=total)
        begin.record()
        step()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    times: list[float] = [begin.elapsed_time(end) for begin, end in events]
    return statistics.median(times)


def decode_case(
    batch: int, context: int, queries: int, min_span: int = 1, *, fp8: bool = False
) -> dict[str, float | int | str]:
    """Time of one layer's decode attention in microseconds, and the KV bytes it read per second.

    fp8: whether the cache is in FP8, of which half as many bytes are read.
    """
    from triton.testing import do_bench

    blocks = batch * context // BLOCK_SIZE
    shape = (blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    k_cache = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    v_cache = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    ones = torch.ones(KV_HEADS, device="cuda") if fp8 else None
    if fp8:
        k_cache, v_cache = k_cache.to(torch.float8_e4m3fn), v_cache.to(torch.float8_e4m3fn)
    table = torch.randperm(blocks, device="cuda").to(torch.int32).view(batch, -1)
    q = torch.randn(batch * queries, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(q)
    lens = torch.full((batch,), context, dtype=torch.int32, device="cuda")
    cu = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * queries
    rows = queries * HEADS // KV_HEADS
    workspace = cuda.DecodeWorkspace.create(batch, HEADS, HEAD_DIM, q.device, rows=rows, fp8=fp8)
    cuda.decode_schedule(
        workspace,
        lens,
        cu,
        table,
        block_size=BLOCK_SIZE,
        num_q_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_queries=queries,
        min_span=min_span,
        clusters=not fp8,
    )

    def step() -> None:
        cuda.paged_decode(
            out,
            q,
            k_cache,
            v_cache,
            table,
            lens,
            cu,
            workspace=workspace,
            scale=HEAD_DIM**-0.5,
            max_queries=queries,
            k_scale=ones,
            v_scale=ones,
            clusters=not fp8,
        )

    ms = after_reading_ms(step)
    read = k_cache.nbytes + v_cache.nbytes
    return {
        "kernel": "paged_decode fp8" if fp8 else "paged_decode",
        "batch": batch,
        "context": context,
        "queries": queries,
        "us": round(ms * 1e3, 1),
        "TB_s": round(read / ms / 1e9, 2),
        "do_bench_us": round(do_bench(step, return_mode="median") * 1e3, 1),
    }


def prefill_case(
    batch: int, chunk: int, before: int, *, hopper: bool
) -> dict[str, float | int | str]:
    """Time of one layer's prefill attention in microseconds, and its matrix products per second."""
    from triton.testing import do_bench

    from kernels.triton import paged_prefill

    context = before + chunk
    blocks = batch * context // BLOCK_SIZE
    shape = (blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    k_cache = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    v_cache = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    table = torch.randperm(blocks, device="cuda").to(torch.int32).view(batch, -1)
    q = torch.randn(batch * chunk, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(q)
    lens = torch.full((batch,), context, dtype=torch.int32, device="cuda")
    cu = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * chunk
    group = HEADS // KV_HEADS
    how = paged_prefill.tiling(HEAD_DIM, q.dtype, chunk * group)
    rows = cuda.PREFILL_ROWS if hopper else how.rows
    tiles = torch.from_numpy(
        tile_list(np.full(batch, chunk), np.full(batch, context), group, rows)
    ).cuda()
    inputs = (out, q, k_cache, v_cache, table, lens, cu, tiles)

    def step() -> None:
        if hopper:
            cuda.native.paged_prefill(*inputs, scale=HEAD_DIM**-0.5)
        else:
            paged_prefill.paged_prefill(*inputs, how, scale=HEAD_DIM**-0.5)

    ms = do_bench(step, return_mode="median")
    products = 4 * batch * HEADS * HEAD_DIM * (chunk * before + chunk * (chunk + 1) / 2)
    return {
        "kernel": "cuda.native.paged_prefill" if hopper else "triton.paged_prefill",
        "batch": batch,
        "chunk": chunk,
        "before": before,
        "us": round(ms * 1e3, 1),
        "TFLOP_s": round(products / ms / 1e9, 1),
    }


DECODER_CASES = (
    (1, 128),
    (1, 384),
    (1, 1024),
    (1, 4096),
    (1, 16384),
    (4, 384),
    (8, 384),
    (16, 384),
)
"""(tokens, context of each)"""
HIDDEN, INTERMEDIATE, LAYERS = 4096, 14336, 8


def decoder_layers() -> list[LayerWeights]:
    """Layers of Llama-3-8B's shape with random weights."""

    def randn(*shape: int) -> torch.Tensor:
        scale = shape[-1] ** -0.5
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16).mul_(scale)

    return [
        LayerWeights(
            input_norm=torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16),
            qkv=randn((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
            qkv_bias=None,
            q_norm=None,
            k_norm=None,
            output=randn(HIDDEN, HEADS * HEAD_DIM),
            attended_norm=torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16),
            gate_up=randn(2 * INTERMEDIATE, HIDDEN),
            down=randn(HIDDEN, INTERMEDIATE),
        )
        for _ in range(LAYERS)
    ]


def decoder_case(
    layers: list[LayerWeights], tokens: int, context: int
) -> dict[str, float | int | str]:
    """Time of a layer of the persistent decoder in microseconds, and the weights and keys it read
    per second."""
    from triton.testing import do_bench

    blocks = tokens * context // BLOCK_SIZE
    shape = (blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    caches = [
        (
            torch.randn(shape, device="cuda", dtype=torch.bfloat16),
            torch.randn(shape, device="cuda", dtype=torch.bfloat16),
        )
        for _ in layers
    ]
    table = torch.randperm(blocks, device="cuda").to(torch.int32).view(tokens, -1)
    decoder = PersistentDecoder(
        layers,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        eps=1e-5,
        head_eps=1e-5,
        scale=HEAD_DIM**-0.5,
    )
    inputs = (
        torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16),
        caches,
        torch.randn(context, HEAD_DIM, device="cuda"),
        torch.full((tokens,), context - 1, device="cuda"),
        table[:, -1].long() * BLOCK_SIZE + BLOCK_SIZE - 1,
        table,
        torch.full((tokens,), context, dtype=torch.int32, device="cuda"),
    )
    ms = do_bench(lambda: decoder(*inputs), return_mode="median") / len(layers)
    layer = layers[0]
    weights = sum(w.nbytes for w in (layer.qkv, layer.output, layer.gate_up, layer.down))
    return {
        "kernel": "persistent_decoder",
        "tokens": tokens,
        "context": context,
        "us": round(ms * 1e3, 1),
        "TB_s": round((weights + 2 * caches[0][0].nbytes) / ms / 1e9, 2),
    }


KINDS = ("decode", "decode-fp8", "prefill", "decoder", "all-reduce")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m kernels.bench", description=__doc__)
    parser.add_argument(
        "kinds", nargs="*", metavar="KIND",
        help=f"of {', '.join(KINDS)}; by default decode and prefill",
    )  # fmt: skip
    kinds = parser.parse_args(argv).kinds or ["decode", "prefill"]
    for unknown in set(kinds) - set(KINDS):
        parser.error(f"{unknown} is none of {', '.join(KINDS)}")
    if not torch.cuda.is_available():
        parser.exit(1, "kernels.bench: there is no CUDA device\n")
    for kind in ("decode", "decode-fp8"):
        for batch, context in DECODE_CASES if kind in kinds else ():
            for queries in (1, 4):
                result = decode_case(batch, context, queries, fp8=kind == "decode-fp8")
                print(json.dumps(result), flush=True)
    cuda.load()
    if "all-reduce" in kinds:
        if torch.cuda.device_count() < 2:
            parser.exit(1, "kernels.bench: an all-reduce needs two GPUs\n")
        if bench_all_reduce.bench(torch.cuda.device_count()):
            parser.exit(1, "kernels.bench: a rank of the all-reduce failed\n")
    layers = decoder_layers() if "decoder" in kinds else []
    for tokens, context in DECODER_CASES if layers else ():
        print(json.dumps(decoder_case(layers, tokens, context)), flush=True)
    device = torch.device("cuda")
    for case in PREFILL_CASES if "prefill" in kinds else ():
        for hopper in (True, False):
            if not hopper or cuda.has_prefill(device, HEAD_DIM, torch.bfloat16):
                print(json.dumps(prefill_case(*case, hopper=hopper)), flush=True)


if __name__ == "__main__":
    main()
