from __future__ import annotations

import pytest
import torch

from kernels import cublas_lt


def test_without_a_library_nothing_is_listed_or_taken() -> None:
    x, weight = torch.zeros(4, 64), torch.zeros(32, 64)
    assert cublas_lt.algorithms(4, weight, 8) == []
    assert not cublas_lt.takes(x, weight, bytes(64))
    assert not cublas_lt.knows(4, weight, bytes(64))
    assert cublas_lt.version(weight.device) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("features", "k"), [(6144, 4096), (512, 1024), (128, 4096)])
@pytest.mark.parametrize("rows", [1, 17, 64, 250])
class TestEveryAlgorithm:
    def test_multiplies(self, rows: int, features: int, k: int, dtype: torch.dtype) -> None:
        gen = torch.Generator(device="cuda").manual_seed(rows)
        x = torch.randn(rows, k, generator=gen, device="cuda").to(dtype)
        weight = torch.randn(features, k, generator=gen, device="cuda").to(dtype)
        listed = cublas_lt.algorithms(rows, weight, 16)
        assert 0 < len(listed) <= 16
        exact = x.double() @ weight.double().T
        for algorithm in listed:
            assert cublas_lt.takes(x, weight, algorithm)
            out = cublas_lt.linear(x, weight, algorithm)
            assert out.dtype == dtype
            # Half an ulp of the output, and the sum of float32 roundings.
            error = (out.double() - exact).abs().max() / exact.abs().max()
            assert error < (2**-8 if dtype == torch.bfloat16 else 2**-10)

    def test_serves_fewer_rows_or_says_that_it_does_not(
        self, rows: int, features: int, k: int, dtype: torch.dtype
    ) -> None:
        """It is chosen for a number of rows, and used for somewhat fewer, too."""
        gen = torch.Generator(device="cuda").manual_seed(rows)
        x = torch.randn(rows, k, generator=gen, device="cuda").to(dtype)
        weight = torch.randn(features, k, generator=gen, device="cuda").to(dtype)
        fewer = x[: max(1, rows - 9)]
        for algorithm in cublas_lt.algorithms(rows, weight, 4):
            if cublas_lt.takes(fewer, weight, algorithm):
                out = cublas_lt.linear(fewer, weight, algorithm)
                exact = fewer.double() @ weight.double().T
                assert (out.double() - exact).abs().max() < 2**-7 * exact.abs().max()


@pytest.mark.gpu
def test_a_graph_replays_it() -> None:
    gen = torch.Generator(device="cuda").manual_seed(0)
    x = torch.randn(64, 4096, generator=gen, device="cuda").bfloat16()
    weight = torch.randn(4096, 4096, generator=gen, device="cuda").bfloat16()
    for algorithm in cublas_lt.algorithms(64, weight, 8):
        eager = cublas_lt.linear(x, weight, algorithm)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = cublas_lt.linear(x, weight, algorithm)
        out.zero_()
        graph.replay()
        assert torch.equal(out, eager)


@pytest.mark.gpu
def test_rows_that_are_not_aligned_are_not_taken() -> None:
    x, weight = (torch.zeros(n, 64, device="cuda").bfloat16() for n in (9, 32))
    algorithm = cublas_lt.algorithms(8, weight, 1)[0]
    assert cublas_lt.takes(x[:8], weight, algorithm)
    assert not cublas_lt.takes(x[1:], weight, algorithm), "128 bytes further on"
    assert not cublas_lt.takes(x[:8, :32], weight[:, :32], algorithm)
    assert not cublas_lt.takes(x[:8].half(), weight, algorithm)


@pytest.mark.gpu
def test_what_it_lists_it_knows_later() -> None:
    """As it is kept on disk, from which anything might come."""
    weight = torch.zeros(512, 1024, device="cuda").bfloat16()
    assert cublas_lt.version(weight.device) > 110000
    for algorithm in cublas_lt.algorithms(40, weight, 8):
        assert cublas_lt.knows(40, weight, algorithm)
    assert not cublas_lt.knows(40, weight, b"")
    assert not cublas_lt.knows(40, weight, bytes(63))
