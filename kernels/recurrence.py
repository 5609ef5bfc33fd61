"""Recurrences of layers that keep a state in place of keys and values, in torch: one step of many
sequences at once, and many tokens of one sequence in chunks.

A head's state is a matrix S of keys by values. Each token decays it and adds an outer product to
it, and reads it::

    S = exp(g) * S + k u^T          y = S^T q

where u is the token's value (Mamba 2, arXiv 2405.21060), or what it adds by the delta rule (gated
delta networks, arXiv 2412.06464): u = beta * (v - exp(g) * S^T k). Within a chunk all but the state
before it is known, so its outputs are products of matrices; by the delta rule, its u follow from
one triangular system.

All of it is computed in float32.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

CHUNK = 64


def step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
    beta: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of each sequence: the outputs [batch, heads, values], and the states after it.

    q, k: [batch, heads, keys]; v: [batch, heads, values]; g, beta: [batch, heads], beta for the
    delta rule; state: [batch, heads, keys, values].
    """
    state = state * g.exp()[..., None, None]
    if beta is not None:
        v = (v - torch.einsum("bhkv,bhk->bhv", state, k)) * beta[..., None]
    state = state + k[..., None] * v[..., None, :]
    return torch.einsum("bhkv,bhk->bhv", state, q), state


def scan(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
    beta: torch.Tensor | None = None,
    *,
    chunk: int = CHUNK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``step`` for each token of one sequence in turn: the outputs [tokens, heads, values], and
    the state after the last.

    Shapes are those of ``step`` with tokens in place of the batch; state: [heads, keys, values].
    """
    num_tokens = q.shape[0]
    chunk = min(chunk, num_tokens)
    # [heads, chunks, tokens of a chunk, ...]; tokens of zeros at the end change nothing.
    q, k, v = (_in_chunks(x, chunk) for x in (q, k, v))
    decayed = _in_chunks(g[..., None], chunk).squeeze(-1).cumsum(-1)
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril_()
    between = decayed[..., :, None] - decayed[..., None, :]
    between = between.masked_fill_(~causal, float("-inf")).exp_()
    from_start = decayed.exp()[..., None]
    to_end = (decayed[..., -1:] - decayed).exp()[..., None]
    erased = None
    if beta is not None:
        weight = _in_chunks(beta[..., None], chunk)
        system = (k * weight) @ k.transpose(-1, -2) * between  # The diagonal is taken as 1.
        wanted = torch.cat((v * weight, k * (weight * from_start)), -1)
        solved = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        v, erased = solved.split((v.shape[-1], k.shape[-1]), -1)
    within = q @ k.transpose(-1, -2) * between
    q, k = q * from_start, k * to_end
    whole = decayed[..., -1].exp()[..., None, None]
    out = torch.empty_like(v)
    for i in range(q.shape[1]):
        added = v[:, i] if erased is None else v[:, i] - erased[:, i] @ state
        out[:, i] = q[:, i] @ state + within[:, i] @ added
        state = whole[:, i] * state + k[:, i].transpose(-1, -2) @ added
    return out.flatten(1, 2)[:, :num_tokens].transpose(0, 1), state


def _in_chunks(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """[tokens, heads, width] to [heads, chunks, chunk, width], filled up with zeros."""
    x = F.pad(x, (0, 0, 0, 0, 0, -len(x) % chunk))
    return x.transpose(0, 1).reshape(x.shape[1], -1, chunk, x.shape[2])


def convolve_step(
    x: torch.Tensor, state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A causal convolution of each channel by itself, for one token of each sequence.

    x: [batch, channels]; state: the inputs before, [batch, channels, kernel - 1]; weight:
    [channels, kernel]. Returns outputs like ``x`` and the states after.
    """
    seen = torch.cat((state, x[..., None]), -1)
    out = (seen.float() * weight.float()).sum(-1)
    return (out if bias is None else out + bias).to(x.dtype), seen[..., 1:]


def convolve(
    x: torch.Tensor, state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``convolve_step`` for each token of one sequence in turn. x: [tokens, channels]; state:
    [channels, kernel - 1]."""
    # Not by ``conv1d``, which on GPUs may round float32.
    seen, kernel = torch.cat((state.transpose(0, 1), x)), weight.float().unbind(1)
    wide, num_tokens = seen.float(), len(x)
    out = wide[:num_tokens] * kernel[0]
    for i, factors in enumerate(kernel[1:], 1):
        out.addcmul_(wide[i : i + num_tokens], factors)
    out = out if bias is None else out + bias
    return out.to(x.dtype), seen[num_tokens:].transpose(0, 1)
