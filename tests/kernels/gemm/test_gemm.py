from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels import ops
from kernels.gemm import UNMEASURED, Choice, Gemm, Gemms, Kind

KIND = Kind(torch.Size((32, 64)), torch.float32, gated=False)
LIBRARY, SKINNY, WIDE = Gemm("library"), Gemm("skinny"), Gemm("wide", 224)


@pytest.mark.parametrize("rows", [1, 16, 17, 300])
def test_without_measurements_the_library_serves(rows: int) -> None:
    gen = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, 64, generator=gen), torch.randn(32, 64, generator=gen)
    bias = torch.randn(32, generator=gen)
    assert torch.equal(UNMEASURED.linear(x, weight, bias), F.linear(x, weight, bias))
    gated = UNMEASURED.gated_linear(x, weight, bias)
    assert torch.equal(gated, ops.silu_mul(F.linear(x, weight, bias)))


def test_rows_between_two_measured_sizes_go_by_the_larger() -> None:
    choice = Choice([1, 4, 8, 64, 256], [SKINNY, LIBRARY, SKINNY, LIBRARY, WIDE])
    measured = Gemms({KIND: choice})
    weight = torch.randn(KIND.shape)

    def chosen(rows: int, *, gated: bool = False) -> Gemm:
        return measured._gemm(rows, weight, gated=gated)

    served = {rows: chosen(rows) for rows in range(1, 400)}
    assert [rows for rows in served if served[rows] == SKINNY] == [1, 5, 6, 7, 8]
    assert [rows for rows in served if served[rows] == WIDE] == list(range(65, 257))
    assert served[257] == LIBRARY, "not measured"
    assert chosen(1, gated=True) == LIBRARY, "measured for the other"
    assert measured._gemm(1, torch.zeros(16, 32), gated=False) == LIBRARY
    assert [measured.code(rows, weight) for rows in (1, 4, 65, 257)] == [1024, 0, 2048 + 224, 0]
    assert measured.code(1, weight, gated=True) == 0


def test_of_many_rows_what_fills_its_tiles_is_gated_in_them() -> None:
    weight = torch.empty(28672, 4096, dtype=torch.bfloat16, device="meta")
    choice = Choice([1024], [WIDE])
    kinds = [Kind(weight.shape, weight.dtype, gated) for gated in (False, True)]
    measured = Gemms(dict.fromkeys(kinds, choice), num_wide_sms=132)
    square = Gemm("wide", 192)
    chosen = {rows: measured._gemm(rows, weight, gated=True) for rows in (1024, 1280, 8192)}
    assert chosen == {1024: WIDE, 1280: LIBRARY, 8192: LIBRARY}
    assert measured._gemm(8448, weight, gated=True) == square, "22 x 150 pairs of tiles"
    assert measured.code(8448, weight, gated=True) == 2048 + 192
    assert measured._gemm(8448, weight, gated=False) == LIBRARY
    other = Gemms(dict.fromkeys(kinds, choice))
    assert other._gemm(8448, weight, gated=True) == LIBRARY, "of another GPU"
    assert measured._gemm(8448, weight[:16384], gated=True) == LIBRARY, "not measured"


def test_rows_the_copy_engine_cannot_read_are_left_to_the_library() -> None:
    gen = torch.Generator().manual_seed(0)
    x, weight = torch.randn(80, 128, generator=gen), torch.randn(32, 64, generator=gen)
    x = x[:, 1:65]
    assert torch.equal(WIDE(x, weight, None, gated=False), F.linear(x, weight))
    assert torch.equal(WIDE(x, weight, None, gated=True), ops.silu_mul(F.linear(x, weight)))
