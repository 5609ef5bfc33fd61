"""Python bindings of the CUDA products with quantized weights, and of kernels that round to FP8.

out is [tokens, features]; or, gated, where the features are [gate | up], ``silu(gate) * up`` of
half the width. features must be a multiple of 16. ``cuda.available`` must run before.
"""

from __future__ import annotations

import torch

from kernels.cuda import product_output

MAX_ROW_BYTES = 65536
"""The longest row that can be rounded."""


def has_tiled(device: torch.device) -> bool:
    """Whether the tiled products support this GPU."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def skinny_fp8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
    block: tuple[int, int] | None = None,
) -> torch.Tensor:
    """As ``cuda.skinny_linear``, with the weight of ``reference.dequantize_fp8``.

    weight: [features, k] float8_e4m3fn; scale: [features, 1] float32. block: as there, columns a
    multiple of 64; any number of rows.
    """
    out = product_output(x, weight, gated)
    rows, columns = block or (0, 0)
    torch.ops.sluice_cuda.skinny_fp8_linear(out, x, weight, scale, bias, gated, rows, columns)
    return out


def skinny_int4_linear(
    x: torch.Tensor,
    packed: torch.Tensor,
    groups: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
) -> torch.Tensor:
    """As ``cuda.skinny_linear``, with the weight of ``reference.dequantize_int4``.

    k is a multiple of 128, a group has a multiple of 32 elements.
    """
    out = product_output(x, packed, gated)
    torch.ops.sluice_cuda.skinny_int4_linear(out, x, packed, groups, bias, gated)
    return out


def tiled_int4_linear(
    x: torch.Tensor,
    packed: torch.Tensor,
    groups: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
    split: int = 0,
) -> torch.Tensor:
    """As ``skinny_int4_linear`` on Hopper, for any number of rows; fastest for some dozens.

    A group has 32, 64 or a multiple of 128 elements. split: CTAs that share the sum over k, at most
    8 and k / 128; 0: as many as seem best.
    """
    out = product_output(x, packed, gated)
    torch.ops.sluice_cuda.tiled_int4_linear(out, x, packed, groups, bias, gated, split)
    return out


def tiled_fp8_linear(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    dtype: torch.dtype,
    gated: bool = False,
    block_rows: int = 0,
    split: int = 0,
) -> torch.Tensor:
    """``(x * x_scale) @ (weight * scale).T + bias`` in ``dtype``, as ``tiled_int4_linear``.

    x: [tokens, k] and weight: [features, k], float8_e4m3fn, k a multiple of 128; x_scale: [tokens,
    1], scale: [features, 1], float32. With blocks of ``block_rows`` features and 128 inputs, scale
    is [features / block_rows, k / 128], rounded up, and x_scale [k / 128, tokens] in rows of a
    multiple of 64 elements.
    """
    features = weight.shape[0] // 2 if gated else weight.shape[0]
    out = torch.empty(x.shape[0], features, dtype=dtype, device=x.device)
    torch.ops.sluice_cuda.tiled_fp8_linear(
        out, x, x_scale, weight, scale, bias, gated, block_rows, split
    )
    return out


def round_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``reference.quantize_rows`` of rows of a multiple of 16 bytes, at most ``MAX_ROW_BYTES``."""
    x = x if x.stride(1) == 1 else x.contiguous()
    out, scales = _rounded(x.shape[0], x.shape[1], x.device)
    torch.ops.sluice_cuda.round_rows(out, scales, x)
    return out, scales


def rms_norm_rounded(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``round_rows(cuda.rms_norm(...))``, without writing the unrounded rows."""
    out, scales = _rounded(x.shape[0], x.shape[1], x.device)
    torch.ops.sluice_cuda.rms_norm_rounded(out, scales, x, residual, weight, eps)
    return out, scales


def silu_mul_rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``round_rows(cuda.silu_mul(x))``, without writing the unrounded rows."""
    out, scales = _rounded(x.shape[0], x.shape[1] // 2, x.device)
    torch.ops.sluice_cuda.silu_mul_rounded(out, scales, x)
    return out, scales


def _rounded(rows: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=device)
    return out, torch.empty(rows, 1, dtype=torch.float32, device=device)
