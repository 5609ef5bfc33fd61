"""Python bindings of the CUDA kernels for sampling. ``cuda.load`` must run before."""

from __future__ import annotations

import functools

import torch

from kernels import reference

MAX_TOP_LOGPROBS = 512
"""Most top tokens that the kernel of ``token_logprobs`` reports."""
PENALTY_CTAS = 64
"""Rows that ``apply_penalties`` processes at the same time; each has counters of its own."""


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
    """See ``reference.sample_rows``; logits of any float dtype."""
    out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    torch.ops.sluice_cuda.sample(out, logits, table, rows, positions, tokens, host)
    return out
