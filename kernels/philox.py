"""Philox4x32-10 (Salmon et al., SC 2011) in torch: random numbers as a function of a counter.

What a request draws for a token depends on (seed, position, token id) and on nothing else: neither
the batch it runs in, nor how its prompt was chunked, nor a preemption can change it.
"""

from __future__ import annotations

import torch

_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_WORD = 0xFFFFFFFF

# 32 random bits, read as (bits + 1/2) / 2**32, are an exponential variate in [2**-33, 17).
GUMBEL_MIN, GUMBEL_MAX = -2.9, 22.9
"""Bounds of ``gumbel``: a token that trails the best score by more than their gap never wins."""

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox4x32(counter: Words, key: tuple[torch.Tensor, torch.Tensor]) -> Words:
    """Four words of 32 random bits for each counter; int64 tensors below 2**32 that broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # The product of two words fits 64 bits; int64 wraps to the same bits.
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c2 = (
            (product_1 >> 32).bitwise_and_(_WORD) ^ (c1 ^ k0),
            (product_0 >> 32).bitwise_and_(_WORD) ^ (c3 ^ k1),
        )
        c1, c3 = product_1 & _WORD, product_0 & _WORD
        k0, k1 = (k0 + _WEYL_0) & _WORD, (k1 + _WEYL_1) & _WORD
    return c0, c1, c2, c3


def random_words(
    seeds: torch.Tensor, positions: torch.Tensor, groups: torch.Tensor
) -> torch.Tensor:
    """Words of the tokens ``4 * group + (0, 1, 2, 3)``: int64 [..., 4].

    seeds: int64, the 64 bits of an unsigned seed; positions: int64, the index in the request of the
    token being drawn; the three broadcast.
    """
    key = seeds & _WORD, (seeds >> 32) & _WORD
    zero = torch.zeros_like(positions)
    words = philox4x32((groups, positions, zero, zero), key)
    shape = torch.broadcast_shapes(*(word.shape for word in words))  # type: ignore[no-untyped-call]
    return torch.stack([word.expand(shape) for word in words], -1)


def gumbel(words: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel variates, float32, of 32-bit words; fine-grained where they are large.

    The logarithms are rounded once, from float64, so that every library gives the same bits.
    """
    uniform = words.float().add_(0.5).mul_(2.0**-32).clamp_(max=1 - 2.0**-24)
    return uniform.double().neg_().log1p_().neg_().log_().neg_().float()
