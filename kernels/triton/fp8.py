# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""FP8 (e4m3) inside of kernels, also on GPUs that do not know it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def from_fp8(stored, dtype: tl.constexpr):
    """Bytes of e4m3 as floats: the bits of a float16 that is 256 times too small."""
    bits = stored.to(tl.uint16)
    small = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return (small * 256.0).to(dtype)
