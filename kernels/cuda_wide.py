"""The CUDA product of many tokens with a weight, on Hopper."""

from __future__ import annotations

import torch

WIDTHS = (192, 224, 256)
"""Features of a tile. With narrower tiles, fewer SMs are left without work in the last wave."""
SQUARE = 192
"""Tokens and features of the square tiles for more than 1,024 tokens. Of all tiles that fit, these
load the fewest operands, and so take the least power."""


def has_wide(device: torch.device) -> bool:
    """Whether ``wide_linear`` serves this GPU."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def takes(x: torch.Tensor) -> bool:
    """Whether TMA, the copy engine, can read these rows."""
    whole = x.dim() == 2 and x.stride(1) == 1 and x.stride(0) % 8 == 0
    return whole and x.data_ptr() % 16 == 0


def square_tiles_filled(tokens: int, features: int, num_sms: int) -> float:
    """The useful part of what all SMs compute, in [0, 1], for more than 1,024 tokens in tiles of
    ``SQUARE``: the rest is padding of tiles, and SMs without a tile in the last wave. A pair of SMs
    takes two tiles at a time."""
    pairs = num_sms // 2
    tiles = -(-tokens // (2 * SQUARE)) * -(-features // SQUARE)
    return tokens * features / (-(-tiles // pairs) * pairs * 2 * SQUARE**2)


def wide_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
    width: int = 256,
) -> torch.Tensor:
    """``x @ weight.T + bias``; gated: the features are [gate | up], the result silu(gate) * up.

    x: [tokens, k] bfloat16 or float16 that ``takes`` accepts; weight: [features, k] of the same
    dtype, k a multiple of 64, features of 16; width: of ``WIDTHS``. ``cuda.load`` comes before.
    """
    outputs = weight.shape[0] // 2 if gated else weight.shape[0]
    out = x.new_empty(x.shape[0], outputs)
    torch.ops.sluice_cuda.wide_linear(out, x, weight, bias, gated, width)
    return out
