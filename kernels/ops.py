"""The public ops. Each call runs the best implementation registered for its device and dtype.

Contracts (shapes, dtypes, sources) are those of the functions of the same name in ``reference`` and
``reference_experts``.
A backend joins with ``register``; the reference serves every device and dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import torch

from kernels import reference, reference_experts
from kernels.experts import ExpertMatrices, PairTiles
from kernels.low_rank import AdapterTiles, LowRankMatrices

# Ops have many signatures; the typed functions below are the only way in.
Implementation = Callable[..., Any]

_PREFERENCE: dict[str, tuple[str, ...]] = {
    "cuda": ("cuda", "triton", "reference"),
    "cpu": ("cpu", "reference"),
}
OPS = (
    "rms_norm",
    "silu_mul",
    "gelu_tanh_mul",
    "rope_and_cache",
    "store_latents",
    "route_experts",
    "group_pairs",
    "apply_experts",
    "combine_experts",
    "shrink_low_rank",
    "expand_low_rank",
    "quantize_rows",
    "linear_int4",
    "linear_fp8",
    "apply_token_bitmask",
    "apply_penalties",
    "token_logprobs",
    "process_logits",
    "sample",
)


@dataclass(frozen=True, slots=True)
class _Registered:
    implementation: Implementation
    dtypes: Set[torch.dtype] | None
    """None: all."""


_ORACLES = {**vars(reference), **vars(reference_experts)}
_registry: dict[tuple[str, str], _Registered] = {
    (op, "reference"): _Registered(_ORACLES[op], None) for op in OPS
}


def register(
    op: str,
    backend: str,
    implementation: Implementation,
    *,
    dtypes: Set[torch.dtype] | None = None,
) -> None:
    """Offer ``implementation`` of ``op`` wherever ``backend`` is preferred, for these dtypes."""
    assert op in OPS, f"unknown op {op!r}"
    assert any(backend in order for order in _PREFERENCE.values()), f"unknown backend {backend!r}"
    _registry[op, backend] = _Registered(implementation, dtypes)
    resolve.cache_clear()


@functools.cache
def resolve(
    op: str, device_type: str, dtype: torch.dtype, behind: str | None = None
) -> Implementation:
    """The implementation of ``op`` that tensors of this device and dtype run; ``behind``: the one
    that serves what this backend does not."""
    backends = _PREFERENCE.get(device_type, ("reference",))
    for backend in backends[0 if behind is None else backends.index(behind) + 1 :]:
        found = _registry.get((op, backend))
        if found is not None and (found.dtypes is None or dtype in found.dtypes):
            return found.implementation
    raise AssertionError(f"{op} has no reference")


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    inner: torch.Tensor | None = None,
) -> torch.Tensor:
    made = resolve("rms_norm", x.device.type, x.dtype)
    out: torch.Tensor = made(x, weight, eps, residual, inner)
    return out


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = resolve("silu_mul", gate_up.device.type, gate_up.dtype)(gate_up)
    return out


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = resolve("gelu_tanh_mul", gate_up.device.type, gate_up.dtype)(gate_up)
    return out


def rope_and_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    resolve("rope_and_cache", q.device.type, q.dtype)(
        q,
        k,
        v,
        k_cache,
        v_cache,
        cos_sin,
        positions,
        slots,
        q_norm=q_norm,
        k_norm=k_norm,
        eps=eps,
        k_scale=k_scale,
        v_scale=v_scale,
    )


def store_latents(
    q: torch.Tensor,
    q_turned: torch.Tensor,
    kv: torch.Tensor,
    norm: torch.Tensor,
    cache: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    *,
    eps: float,
    interleaved: bool,
    scale: torch.Tensor | None = None,
) -> None:
    resolve("store_latents", q.device.type, q.dtype)(
        q,
        q_turned,
        kv,
        norm,
        cache,
        cos_sin,
        positions,
        slots,
        eps=eps,
        interleaved=interleaved,
        scale=scale,
    )


def route_experts(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    top_k: int,
    sigmoid: bool = False,
    renormalize: bool = False,
    scale: float = 1.0,
    num_groups: int = 1,
    top_k_groups: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    out: tuple[torch.Tensor, torch.Tensor] = resolve(
        "route_experts", logits.device.type, logits.dtype
    )(
        logits,
        bias,
        top_k=top_k,
        sigmoid=sigmoid,
        renormalize=renormalize,
        scale=scale,
        num_groups=num_groups,
        top_k_groups=top_k_groups,
    )
    return out


def group_pairs(experts: torch.Tensor, num_experts: int, rows: int) -> PairTiles:
    out: PairTiles = resolve("group_pairs", experts.device.type, experts.dtype)(
        experts, num_experts, rows
    )
    return out


def apply_experts(
    x: torch.Tensor,
    gate_up: ExpertMatrices,
    down: ExpertMatrices,
    experts: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    out: torch.Tensor = resolve("apply_experts", x.device.type, x.dtype)(
        x, gate_up, down, experts, weights
    )
    return out


def combine_experts(each: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = resolve("combine_experts", each.device.type, each.dtype)(each, weights)
    return out


def shrink_low_rank(
    x: torch.Tensor, matrices: LowRankMatrices, tiles: AdapterTiles
) -> torch.Tensor:
    low: torch.Tensor = resolve("shrink_low_rank", x.device.type, x.dtype)(x, matrices, tiles)
    return low


def expand_low_rank(
    out: torch.Tensor, low: torch.Tensor, matrices: LowRankMatrices, tiles: AdapterTiles
) -> None:
    resolve("expand_low_rank", out.device.type, out.dtype)(out, low, matrices, tiles)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out: tuple[torch.Tensor, torch.Tensor] = resolve("quantize_rows", x.device.type, x.dtype)(x)
    return out


def linear_int4(x: torch.Tensor, packed: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = resolve("linear_int4", x.device.type, x.dtype)(x, packed, groups)
    return out


def linear_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    block: tuple[int, int] | None = None,
    *,
    round_x: bool = True,
) -> torch.Tensor:
    out: torch.Tensor = resolve("linear_fp8", x.device.type, x.dtype)(
        x, weight, scale, block, round_x=round_x
    )
    return out


def apply_token_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor) -> None:
    resolve("apply_token_bitmask", logits.device.type, logits.dtype)(logits, bitmask, rows)


def apply_penalties(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    where: torch.Tensor,
    strengths: torch.Tensor,
    *,
    max_len: int,
) -> None:
    resolve("apply_penalties", logits.device.type, logits.dtype)(
        logits, tokens, where, strengths, max_len=max_len
    )


def token_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> reference.Logprobs:
    found: reference.Logprobs = resolve("token_logprobs", logits.device.type, logits.dtype)(
        logits, token_ids, num_top
    )
    return found


def process_logits(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
) -> torch.Tensor:
    out: torch.Tensor = resolve("process_logits", logits.device.type, logits.dtype)(
        logits, temperature, top_k, top_p, min_p
    )
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
    out: torch.Tensor = resolve("sample", logits.device.type, logits.dtype)(
        logits, temperature, top_k, top_p, min_p, seeds, positions
    )
    return out
