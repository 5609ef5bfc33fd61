"""The public ops. Each call runs the best implementation registered for its device.

Contracts (shapes, dtypes, sources) are those of the functions of the same name in ``reference``.
A backend joins with ``register("rms_norm", "cuda", function)``; the reference serves every device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernels import reference

# Ops have many signatures; the typed functions below are the only way in.
Implementation = Callable[..., Any]

_PREFERENCE: dict[str, tuple[str, ...]] = {
    "cuda": ("cuda", "triton", "reference"),
    "cpu": ("reference",),
}
OPS = (
    "rms_norm",
    "fused_add_rms_norm",
    "rope",
    "silu_mul",
    "write_kv",
    "apply_token_bitmask",
    "process_logits",
    "sample",
)
_implementations: dict[tuple[str, str], Implementation] = {
    (op, "reference"): getattr(reference, op) for op in OPS
}


def register(op: str, backend: str, implementation: Implementation) -> None:
    """Offer ``implementation`` of ``op`` wherever ``backend`` is preferred."""
    assert op in OPS, f"unknown op {op!r}"
    assert any(backend in order for order in _PREFERENCE.values()), f"unknown backend {backend!r}"
    _implementations[op, backend] = implementation
    resolve.cache_clear()


@functools.cache
def resolve(op: str, device_type: str) -> Implementation:
    """The implementation of ``op`` that a device of this type runs."""
    backends = _PREFERENCE.get(device_type, ("reference",))
    return next(
        _implementations[op, backend] for backend in backends if (op, backend) in _implementations
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out: torch.Tensor = resolve("rms_norm", x.device.type)(x, weight, eps)
    return out


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    out: tuple[torch.Tensor, torch.Tensor] = resolve("fused_add_rms_norm", x.device.type)(
        x, residual, weight, eps
    )
    return out


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = resolve("rope", x.device.type)(x, cos, sin)
    return out


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = resolve("silu_mul", gate_up.device.type)(gate_up)
    return out


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    resolve("write_kv", k.device.type)(k, v, k_cache, v_cache, slot_mapping)


def apply_token_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor) -> None:
    resolve("apply_token_bitmask", logits.device.type)(logits, bitmask, rows)


def process_logits(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
) -> torch.Tensor:
    out: torch.Tensor = resolve("process_logits", logits.device.type)(
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
    out: torch.Tensor = resolve("sample", logits.device.type)(
        logits, temperature, top_k, top_p, min_p, seeds, positions
    )
    return out
