from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernels import ops


@pytest.fixture
def triton_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Triton's products with quantized weights, as an engine on a GPU has them."""
    pytest.importorskip("triton")
    from kernels.triton import fp8_linear, quantize

    monkeypatch.setattr(ops, "_registry", dict(ops._registry))
    fp8_linear.register()
    quantize.register()
    yield
    ops.resolve.cache_clear()
