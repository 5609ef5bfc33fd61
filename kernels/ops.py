"""The public ops. Each call runs the best implementation registered for its device and dtype.

Shapes, dtypes and sources are described at the functions of the same name in ``reference`` and
``reference_experts``, which serve every device and dtype. Backends add implementations with
``register``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import torch

from kernels import reference, reference_experts

P = ParamSpec("P")
R = TypeVar("R")
Implementation = Callable[..., Any]
"""A function with the op's arguments. Calls are type-checked against the op's reference."""

_PREFERENCE: dict[str, tuple[str, ...]] = {
    "cuda": ("cuda", "triton", "reference"),
    "cpu": ("cpu", "reference"),
}


@dataclass(frozen=True, slots=True)
class _Registered:
    implementation: Implementation
    dtypes: Set[torch.dtype] | None
    """The dtypes that it serves; None for all."""


_registry: dict[tuple[str, str], _Registered] = {}


def register(
    op: str,
    backend: str,
    implementation: Implementation,
    *,
    dtypes: Set[torch.dtype] | None = None,
) -> None:
    """Add an implementation of ``op`` for these dtypes, on devices where ``backend`` is used."""
    assert (op, "reference") in _registry, f"unknown op {op!r}"
    assert any(backend in order for order in _PREFERENCE.values()), f"unknown backend {backend!r}"
    _registry[op, backend] = _Registered(implementation, dtypes)
    resolve.cache_clear()


@functools.cache
def resolve(
    op: str, device_type: str, dtype: torch.dtype, behind: str | None = None
) -> Implementation:
    """The implementation of ``op`` for tensors of this device and dtype. behind: a backend; returns
    the next implementation after its own, for arguments that it does not serve."""
    backends = _PREFERENCE.get(device_type, ("reference",))
    for backend in backends[0 if behind is None else backends.index(behind) + 1 :]:
        found = _registry.get((op, backend))
        if found is not None and (found.dtypes is None or dtype in found.dtypes):
            return found.implementation
    raise AssertionError(f"{op} has no reference")


def _op(reference: Callable[P, R]) -> Callable[P, R]:
    """The op whose reference this is. The device and dtype of its first argument, a tensor, select
    the implementation."""
    name = reference.__name__
    _registry[name, "reference"] = _Registered(reference, None)

    @functools.wraps(reference)
    def op(*args: P.args, **kwargs: P.kwargs) -> R:
        x = cast(torch.Tensor, args[0])
        out: R = resolve(name, x.device.type, x.dtype)(*args, **kwargs)
        return out

    return op


rms_norm = _op(reference.rms_norm)
silu_mul = _op(reference.silu_mul)
gelu_tanh_mul = _op(reference.gelu_tanh_mul)
rope_and_cache = _op(reference.rope_and_cache)
store_latents = _op(reference.store_latents)

route_experts = _op(reference_experts.route_experts)
group_pairs = _op(reference_experts.group_pairs)
apply_experts = _op(reference_experts.apply_experts)
combine_experts = _op(reference_experts.combine_experts)

shrink_lora = _op(reference.shrink_lora)
expand_lora = _op(reference.expand_lora)

quantize_rows = _op(reference.quantize_rows)
linear_int4 = _op(reference.linear_int4)
linear_fp8 = _op(reference.linear_fp8)

apply_token_bitmask = _op(reference.apply_token_bitmask)
apply_penalties = _op(reference.apply_penalties)
token_logprobs = _op(reference.token_logprobs)
process_logits = _op(reference.process_logits)
sample_rows = _op(reference.sample_rows)

OPS = tuple(name for name, _ in _registry)
