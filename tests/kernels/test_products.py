from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels import cublas_lt, cuda, cuda_wide, ops, products
from kernels.products import UNMEASURED, Products, Use, _Choice, _Kind, _Product

KIND = _Kind(torch.Size((32, 64)), torch.float32, gated=False)
LIBRARY, SKINNY, WIDE = _Product("library"), _Product("skinny"), _Product("wide", width=224)


@pytest.mark.parametrize("rows", [1, 16, 17, 300])
def test_without_measurements_the_library_serves(rows: int) -> None:
    gen = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, 64, generator=gen), torch.randn(32, 64, generator=gen)
    bias = torch.randn(32, generator=gen)
    assert torch.equal(UNMEASURED.linear(x, weight, bias), F.linear(x, weight, bias))
    gated = UNMEASURED.gated_linear(x, weight, bias)
    assert torch.equal(gated, ops.silu_mul(F.linear(x, weight, bias)))


def test_rows_between_two_measured_sizes_go_by_the_larger() -> None:
    choice = _Choice([1, 4, 8, 64, 256], [SKINNY, LIBRARY, SKINNY, LIBRARY, WIDE])
    measured = Products({KIND: choice})
    weight = torch.randn(KIND.shape)

    def chosen(rows: int, *, gated: bool = False) -> _Product:
        return measured._product(rows, weight, gated=gated)

    served = {rows: chosen(rows) for rows in range(1, 400)}
    assert [rows for rows in served if served[rows] == SKINNY] == [1, 5, 6, 7, 8]
    assert [rows for rows in served if served[rows] == WIDE] == list(range(65, 257))
    assert served[257] == LIBRARY, "not measured"
    assert chosen(1, gated=True) == LIBRARY, "measured for the other"
    assert measured._product(1, torch.zeros(16, 32), gated=False) == LIBRARY
    assert [measured.code(rows, weight) for rows in (1, 4, 65, 257)] == [8, 0, 224, 0]
    assert measured.code(1, weight, gated=True) == 0


def test_of_many_rows_what_fills_its_tiles_is_gated_in_them() -> None:
    weight = torch.empty(28672, 4096, dtype=torch.bfloat16, device="meta")
    choice = _Choice([1024], [_Product("listed")])
    kinds = [_Kind(weight.shape, weight.dtype, gated) for gated in (False, True)]
    measured = Products(dict.fromkeys(kinds, choice), num_wide_sms=132)
    square = _Product("wide", width=192)
    chosen = {rows: measured._product(rows, weight, gated=True) for rows in (1024, 1280, 8192)}
    assert chosen == {1024: _Product("listed"), 1280: LIBRARY, 8192: LIBRARY}
    assert measured._product(8448, weight, gated=True) == square, "22 x 150 pairs of tiles"
    assert measured.code(8448, weight, gated=True) == 192
    assert measured._product(8448, weight, gated=False) == LIBRARY
    other = Products(dict.fromkeys(kinds, choice))
    assert other._product(8448, weight, gated=True) == LIBRARY, "of another GPU"
    assert measured._product(8448, weight[:16384], gated=True) == LIBRARY, "not measured"


def test_each_kind_of_weight_is_measured_for_its_largest_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what is found serves whoever has it: another model is measured by itself."""
    seen: list[tuple[int, _Kind, int]] = []

    def found(
        _candidates: object, rows: int, kind: _Kind, weights: list[torch.Tensor], _flushed: object
    ) -> _Product:
        seen.append((rows, kind, len(weights)))
        return SKINNY

    monkeypatch.setattr(products, "_fastest", found)
    loaded: list[tuple[int, int, bool]] = []
    monkeypatch.setattr(
        products,
        "_load_library",
        lambda weight, bias, rows: loaded.append((len(weight), rows, bias is not None)),
    )
    monkeypatch.setattr(products, "_candidates", lambda rows, device: [LIBRARY, SKINNY])
    asked: list[tuple[int, _Kind]] = []

    def listed(rows: int, kind: _Kind, *_: object) -> list[_Product]:
        asked.append((rows, kind))
        return []

    monkeypatch.setattr(products, "_listed", listed)
    plain, head = (torch.zeros(n, 64, dtype=torch.bfloat16) for n in (32, 48))
    bias = torch.zeros(32)
    uses = [
        Use(plain, False, 3),
        Use(plain, False, 2, bias),
        Use(plain, True, 2),
        Use(head, False, 1),
    ]
    measured = products.measure(uses)
    assert loaded == [(32, 3, False), (32, 3, True), (32, 2, False), (48, 1, False)]
    without_bias = [(rows, kind) for rows, kind, _ in seen if kind.gated or kind.shape[0] == 48]
    assert asked == without_bias, "a bias is nothing for what cuBLASLt lists"
    assert [(rows, kind.shape[0], kind.gated, num) for rows, kind, num in seen] == [
        *((rows, 32, False, 2) for rows in (1, 2, 3)),
        *((rows, 32, True, 1) for rows in (1, 2)),
        (1, 48, False, 1),
    ]
    assert measured._product(3, plain, gated=False) == SKINNY
    assert measured._product(3, plain, gated=True) == LIBRARY, "more rows than measured"
    assert UNMEASURED._product(3, plain, gated=False) == LIBRARY


@pytest.mark.parametrize(
    ("max_rows", "last"),
    [(1, [1]), (5, [2, 4, 5]), (64, [32, 48, 64]), (65, [48, 64, 65]), (9999, [768, 896, 1024])],
)
def test_what_is_measured_ends_with_the_largest_step(max_rows: int, last: list[int]) -> None:
    sizes = products._up_to(max_rows)
    assert list(sizes[-len(last) :]) == last
    assert list(sizes) == sorted(set(sizes))


def test_rows_the_copy_engine_cannot_read_are_left_to_the_library() -> None:
    gen = torch.Generator().manual_seed(0)
    x, weight = torch.randn(80, 128, generator=gen), torch.randn(32, 64, generator=gen)
    x = x[:, 1:65]
    assert torch.equal(WIDE(x, weight, None, gated=False), F.linear(x, weight))
    assert torch.equal(WIDE(x, weight, None, gated=True), ops.silu_mul(F.linear(x, weight)))


def test_what_no_product_of_ours_takes_is_not_measured() -> None:
    odd = torch.randn(24, 64).bfloat16(), torch.randn(32, 48).bfloat16(), torch.randn(32, 64)
    assert products.measure(Use(weight, gated=False, max_rows=100) for weight in odd) is UNMEASURED


@pytest.mark.parametrize(("wide", "best"), [([4.0] * 3, WIDE), ([4.95] * 3, LIBRARY)])
def test_what_is_faster_by_the_median_and_not_by_noise_is_chosen(
    monkeypatch: pytest.MonkeyPatch, wide: list[float], best: _Product
) -> None:
    times = {LIBRARY: [5.0] * 5, SKINNY: [1.0, 1.0, 9.0, 9.0, 9.0], WIDE: [*wide, 9.0, 9.0]}

    def took(product: _Product, *_: object, **__: object) -> float:
        return times[product].pop()

    monkeypatch.setattr(products, "_microseconds", took)
    monkeypatch.setattr(_Product, "__call__", lambda *_, **__: torch.empty(0))
    weight, flushed = torch.randn(KIND.shape), torch.empty(1)
    candidates = [LIBRARY, SKINNY, WIDE]
    assert products._fastest(candidates, 64, KIND, [weight], flushed) == best
    assert not any(times.values()), "every candidate has its rounds"
    assert products._fastest([LIBRARY], 64, KIND, [weight], flushed) == LIBRARY


def test_the_library_multiplies_all_small_numbers_of_rows_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, ...]] = []
    biases: list[torch.Tensor | None] = []

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        seen.append((*x.shape, len(weight)))
        biases.append(bias)

    monkeypatch.setattr(F, "linear", linear)
    for bias in (None, torch.randn(32)):
        products._load_library(torch.randn(KIND.shape), bias, 30)
        assert seen == [(rows, 64, 32) for rows in range(1, 31)]
        assert all(given is bias for given in biases)
        seen.clear()
        biases.clear()


def test_and_whole_and_ragged_tiles_of_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps with prompts beside running streams have from some hundred to some thousand tokens."""
    seen: list[int] = []
    monkeypatch.setattr(F, "linear", lambda x, weight, bias: seen.append(len(x)))
    products._load_library(torch.zeros(16, 8), None, 100_000)
    assert seen == sorted(set(seen))
    assert seen[:512] == list(range(1, 513))
    assert set(range(8, 1025, 8)) | set(range(1088, 8449, 64)) <= set(seen)
    assert {rows % 8 for rows in seen[512:]} == {0, 7}
    assert seen[-1] == 8448


def test_of_what_the_library_lists_the_fastest_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def listed(rows: int, weight: torch.Tensor, most: int) -> list[bytes]:
        asked.append((rows, most))
        return [b"a", b"b", b"c"]

    times = {b"a": 3.0, b"b": 1.0, b"c": 2.0}
    monkeypatch.setattr(cublas_lt, "algorithms", listed)
    monkeypatch.setattr(
        products, "_microseconds", lambda product, *_, **__: times[product.algorithm]
    )
    found = products._listed(40, KIND, [torch.randn(KIND.shape)], torch.empty(1))
    assert found == [_Product("listed", algorithm=b"b"), _Product("listed", algorithm=b"c")]
    assert asked == [(40, products._MOST_LISTED)]
    assert products._listed(16, KIND, [torch.randn(KIND.shape)], torch.empty(1)) == []


def test_what_a_listed_algorithm_does_not_take_is_left_to_the_library() -> None:
    """As everything is where there is no cuBLASLt, and a bias is."""
    gen = torch.Generator().manual_seed(0)
    x, weight = torch.randn(5, 64, generator=gen), torch.randn(32, 64, generator=gen)
    bias = torch.randn(32, generator=gen)
    product = _Product("listed", algorithm=b"a")
    for added in (None, bias):
        assert torch.equal(product(x, weight, added, gated=False), F.linear(x, weight, added))
    assert torch.equal(product(x, weight, None, gated=True), ops.silu_mul(F.linear(x, weight)))
    assert product.code == 0


def test_few_rows_may_be_skinny_and_more_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    few, more = (list(products._candidates(rows, torch.device("cuda"))) for rows in (16, 17))
    assert few == [LIBRARY, *(_Product("skinny", warps=warps) for warps in cuda.SKINNY_WARPS)]
    assert more == [LIBRARY, *(_Product("wide", width=width) for width in cuda_wide.WIDTHS)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert list(products._candidates(17, torch.device("cuda"))) == [LIBRARY]


@pytest.mark.gpu
def test_each_number_of_rows_gets_the_product_that_was_measured() -> None:
    cuda.register()
    gen = torch.Generator(device="cuda").manual_seed(0)
    up = torch.randn(2048, 512, generator=gen, device="cuda").bfloat16()
    down = torch.randn(512, 1024, generator=gen, device="cuda").bfloat16()
    measured = products.measure([Use(up, True, 500), Use(down, False, 40)])
    assert [choice.rows[-1] for choice in measured._chosen.values()] == [500, 40]
    for rows in (1, 3, 16, 17, 40, 64, 100, 256, 700, 1100, 8448):
        x = torch.randn(rows, 512, generator=gen, device="cuda").bfloat16()
        inner = measured.gated_linear(x, up, None)
        exact = ops.silu_mul((x.double() @ up.double().T).float())
        assert (inner - exact).norm() / exact.norm() < 2e-2
        out = measured.linear(inner, down, None).double()
        exact = inner.double() @ down.double().T
        assert (out - exact).norm() / exact.norm() < 5e-3
