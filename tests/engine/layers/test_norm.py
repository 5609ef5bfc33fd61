from __future__ import annotations

import pytest
import torch

from engine.layers.norm import OffsetRMSNorm

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_offset_norm_multiplies_by_one_more_than_its_weight(dtype: torch.dtype) -> None:
    norm = OffsetRMSNorm(32, 1e-5, dtype=dtype, device=CPU)
    # Too small to survive in 1 + w at 16 bits.
    norm.weight.data.copy_(torch.linspace(-0.003, 0.003, 32))
    offset = norm.weight.data.float().clone()
    x, residual = torch.randn(2, 5, 32).to(dtype).unbind()
    total = (x + residual).float()
    norm.pack()
    out = norm(x, residual)
    normed = total * (total.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    expected = (normed.to(dtype).float() * (1 + offset)).to(dtype)
    torch.testing.assert_close(out, expected, rtol=1e-6 if dtype == torch.float32 else 8e-3, atol=0)
    torch.testing.assert_close(residual.float(), total, rtol=8e-3, atol=1e-6)
