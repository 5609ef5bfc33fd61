from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels import ops

_NOBODY = 65534


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder with ``kept/nvcc/sluice_kernels.so`` that this process may read and not write: as
    root, who may write anywhere, the test runs as another user. Not pytest's own, which is below
    one for root alone."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(prefix="sluice-test-") as name:
        folder = Path(name)
        (folder / "kept" / "nvcc").mkdir(parents=True)
        (folder / "kept" / "nvcc" / "sluice_kernels.so").touch()
        folder.chmod(0o555)
        if root:
            os.seteuid(_NOBODY)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)
            folder.chmod(0o755)


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
