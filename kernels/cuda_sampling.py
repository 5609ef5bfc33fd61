"""Python bindings of the CUDA kernels for sampling. ``cuda.load`` must run before."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch

from kernels import reference

MAX_TOP_LOGPROBS = 512
"""Most top tokens that the kernel of ``token_logprobs`` reports."""
PENALTY_CTAS = 64
"""Rows that ``apply_penalties`` processes at the same time; each has counters of its own."""

SAMPLING_ROW = np.dtype(
    [
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("top_k", np.int32),
        ("seed", np.uint64),
        ("unused", np.uint64),
    ]
)
"""The sampling parameters of a request, see sampling.cuh: temperature 0 takes the best token; top_p
1, min_p 0, and top_k of the vocabulary's size or more keep all tokens."""


def apply_token_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor) -> None:
    """See ``reference.apply_token_bitmask``; no two masks may belong to the same row."""
    torch.ops.sluice_cuda.apply_token_bitmask(logits, bitmask, rows)


def apply_penalties(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    where: torch.Tensor,
    strengths: torch.Tensor,
    *,
    max_len: int,
) -> None:
    """See ``reference.apply_penalties``; only on one stream at a time."""
    counts = _penalty_counts(logits.device, logits.shape[1])
    torch.ops.sluice_cuda.apply_penalties(logits, tokens, where, strengths, counts)


@functools.cache
def _penalty_counts(device: torch.device, vocab_size: int) -> torch.Tensor:
    """The counters of ``apply_penalties``: zero between launches."""
    return torch.zeros(PENALTY_CTAS, vocab_size, dtype=torch.int32, device=device)


def token_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> reference.Logprobs:
    """See ``reference.token_logprobs``."""
    if num_top > MAX_TOP_LOGPROBS:
        return reference.token_logprobs(logits, token_ids, num_top)
    num_rows, device = len(token_ids), logits.device
    logprobs = torch.empty(num_rows, dtype=torch.float32, device=device)
    ranks = torch.empty(num_rows, dtype=torch.int64, device=device)
    top_ids = torch.empty(num_rows, num_top, dtype=torch.int64, device=device)
    top_logprobs = torch.empty(num_rows, num_top, dtype=torch.float32, device=device)
    found = logprobs, ranks, top_ids, top_logprobs
    torch.ops.sluice_cuda.token_logprobs(*found, logits, token_ids)
    return found


def sample_rows(
    logits: torch.Tensor,
    table: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor | None = None,
    host: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draw a token for each row of logits as its entry of ``table`` says: int64 [num_rows].

    logits: [num_rows, vocab], any float dtype; table: [max_rows, 32] uint8, ``SAMPLING_ROW`` each;
    rows, positions: [num_rows] int32. With ``tokens`` [max_rows, max_len] the token is also stored
    at ``tokens[row, position]``, and with ``host``, at least ``num_rows`` of pinned int64 memory,
    in that; it must stay allocated until the stream has passed this point. Nothing is stored for
    row -1.
    """
    out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    torch.ops.sluice_cuda.sample(out, logits, table, rows, positions, tokens, host)
    return out


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """See ``reference.sample``."""
    how = np.zeros(logits.shape[0], SAMPLING_ROW)
    how["temperature"] = temperature.cpu().numpy()
    how["top_k"] = logits.shape[1] if top_k is None else top_k.cpu().numpy()
    how["top_p"] = 1 if top_p is None else top_p.cpu().numpy()
    how["min_p"] = 0 if min_p is None else min_p.cpu().numpy()
    how["seed"] = seeds.cpu().numpy().view(np.uint64)
    table = torch.from_numpy(sampling_bytes(how)).to(logits.device)
    rows = torch.arange(len(how), dtype=torch.int32, device=logits.device)
    return sample_rows(logits, table, rows, positions.to(logits.device, torch.int32))


def sampling_bytes(rows: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
    """``SAMPLING_ROW`` entries as ``sample_rows`` takes them: [num_rows, 32]."""
    return rows.view(np.uint8).reshape(len(rows), SAMPLING_ROW.itemsize)
