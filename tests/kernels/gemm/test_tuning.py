from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from kernels import cuda, gemm, ops, tuning
from kernels.gemm import UNMEASURED, Gemm, Kind
from kernels.kept_choices import KeptChoices
from kernels.tuning import Use

KIND = Kind(torch.Size((32, 64)), torch.float32, gated=False)
LIBRARY, SKINNY, WIDE = Gemm("library"), Gemm("skinny"), Gemm("wide", 224)


@pytest.fixture
def kept(tmp_path: Path) -> KeptChoices:
    return KeptChoices(tmp_path / "gemms")


def test_each_kind_of_weight_is_measured_for_its_largest_use(
    monkeypatch: pytest.MonkeyPatch, kept: KeptChoices
) -> None:
    """And what is found serves whoever has it: another model is measured by itself."""
    seen: list[tuple[int, Kind, int]] = []

    def found(
        _candidates: object, rows: int, kind: Kind, weights: list[torch.Tensor], _flushed: object
    ) -> Gemm:
        seen.append((rows, kind, len(weights)))
        return SKINNY

    monkeypatch.setattr(tuning, "_fastest", found)
    loaded: list[tuple[int, int, bool]] = []
    monkeypatch.setattr(
        tuning,
        "_load_library",
        lambda weight, bias, rows: loaded.append((len(weight), rows, bias is not None)),
    )
    monkeypatch.setattr(tuning, "_load_chosen", lambda *_: None)
    monkeypatch.setattr(tuning, "_candidates", lambda rows, device: [LIBRARY, SKINNY])
    plain, head = (torch.zeros(n, 64, dtype=torch.bfloat16) for n in (32, 48))
    bias = torch.zeros(32)
    uses = [
        Use(plain, False, 3),
        Use(plain, False, 2, bias),
        Use(plain, True, 2),
        Use(head, False, 1),
    ]
    measured = tuning.measure(uses, kept)
    assert loaded == [(32, 3, False), (32, 3, True), (32, 2, False), (48, 1, False)]
    assert [(rows, kind.shape[0], kind.gated, num) for rows, kind, num in seen] == [
        *((rows, 32, False, 2) for rows in (1, 2, 3)),
        *((rows, 32, True, 1) for rows in (1, 2)),
        (1, 48, False, 1),
    ]
    assert measured._gemm(3, plain, gated=False) == SKINNY
    assert measured._gemm(3, plain, gated=True) == LIBRARY, "more rows than measured"
    assert UNMEASURED._gemm(3, plain, gated=False) == LIBRARY


@pytest.mark.parametrize(
    ("max_rows", "last"),
    [(1, [1]), (5, [2, 4, 5]), (64, [32, 48, 64]), (65, [48, 64, 65]), (9999, [768, 896, 1024])],
)
def test_what_is_measured_ends_with_the_largest_step(max_rows: int, last: list[int]) -> None:
    sizes = tuning._up_to(max_rows, [])
    assert list(sizes[-len(last) :]) == last
    assert list(sizes) == sorted(set(sizes))
    batches = [1, 24, 40, max_rows + 1]
    more = tuning._up_to(max_rows, batches)
    assert list(more) == sorted({*sizes, *(size for size in batches if size < sizes[-1])})


def test_what_no_gemm_of_ours_takes_is_not_measured(kept: KeptChoices) -> None:
    odd = torch.randn(24, 64).bfloat16(), torch.randn(32, 48).bfloat16(), torch.randn(32, 64)
    uses = (Use(weight, gated=False, max_rows=100) for weight in odd)
    assert tuning.measure(uses, kept) is UNMEASURED


class Measurer:
    """In place of a GPU: of any kind of weight a wide gemm is chosen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.measured: list[tuple[int, int]] = []
        """Features and rows."""
        self.loaded: list[int] = []
        """Rows."""
        self.chosen = WIDE
        monkeypatch.setattr(tuning, "_load_library", lambda *_: None)
        monkeypatch.setattr(tuning, "_FLUSHED_BYTES", 1)
        monkeypatch.setattr(tuning, "_fastest", self._fastest)
        monkeypatch.setattr(Gemm, "__call__", lambda _, x, *__, **___: self.loaded.append(len(x)))

    def _fastest(self, _: object, rows: int, kind: Kind, *__: object) -> Gemm:
        self.measured.append((kind.shape[0], rows))
        return self.chosen


@pytest.fixture
def measurer(monkeypatch: pytest.MonkeyPatch) -> Measurer:
    return Measurer(monkeypatch)


WEIGHT = torch.zeros(32, 64, dtype=torch.bfloat16)
PLAIN = Kind(WEIGHT.shape, WEIGHT.dtype, gated=False)


def test_where_nothing_can_be_kept_it_is_measured_at_each_start(
    measurer: Measurer, read_only: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a folder that is missing, and cannot be made, as in one that is there."""
    for folder in (read_only, read_only / "gemms"):
        for _ in range(2):
            measurer.measured.clear()
            found = tuning.measure([Use(WEIGHT, False, 2)], KeptChoices(folder))
            assert measurer.measured == [(32, 1), (32, 2)]
            assert list(found._chosen[PLAIN].gemms) == [WIDE, WIDE]
    assert caplog.text.count("the next start measures anew") == 4
    assert caplog.text.count("set SLUICE_KERNEL_CACHE") == 4


def test_what_was_kept_is_not_measured_again(measurer: Measurer, kept: KeptChoices) -> None:
    head = torch.zeros(48, 64, dtype=torch.bfloat16)
    told: list[int] = []

    def tell() -> None:
        told.append(len(measurer.measured))

    first = tuning.measure([Use(WEIGHT, False, 4)], kept, [3], tell)
    assert measurer.measured == [(32, 1), (32, 2), (32, 3), (32, 4)]
    assert told == [0], "before it is"
    measurer.measured.clear()
    measurer.loaded.clear()
    again = tuning.measure([Use(WEIGHT, False, 4)], kept, [3], tell)
    assert not measurer.measured
    assert told == [0], "nothing takes long now"
    assert again._chosen == first._chosen
    assert measurer.loaded == [1, 2, 3, 4], "not by having been measured"
    measurer.chosen = LIBRARY
    more = tuning.measure([Use(WEIGHT, False, 8), Use(WEIGHT, True, 1), Use(head, False, 1)], kept)
    assert measurer.measured == [(32, 8), (32, 1), (48, 1)], "what is new of it"
    assert list(more._chosen[PLAIN].gemms) == [WIDE, WIDE, WIDE, LIBRARY]
    fewer = tuning.measure([Use(WEIGHT, False, 2)], kept)
    assert list(fewer._chosen[PLAIN].rows) == [1, 2], "as if nothing else had been kept"


def test_another_process_may_measure_while_this_one_waits(
    measurer: Measurer, kept: KeptChoices, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = KeptChoices.locked

    @contextmanager
    def locked(self: KeptChoices) -> Iterator[None]:
        with held(self):
            self.write(PLAIN, {1: SKINNY, 2: SKINNY})
            yield

    monkeypatch.setattr(KeptChoices, "locked", locked)
    gemms = tuning.measure([Use(WEIGHT, False, 2)], kept)
    assert not measurer.measured
    assert list(gemms._chosen[PLAIN].gemms) == [SKINNY, SKINNY]


@pytest.mark.parametrize(("wide", "best"), [([4.0] * 3, WIDE), ([4.96] * 3, LIBRARY)])
def test_what_is_faster_by_the_median_and_not_by_noise_is_chosen(
    monkeypatch: pytest.MonkeyPatch, wide: list[float], best: Gemm
) -> None:
    far = Gemm("wide", 192)
    times = {
        LIBRARY: [5.0] * 5,
        SKINNY: [1.0, 1.0, 5.5, 5.5, 5.5],
        WIDE: [*wide, 5.5, 5.5],
        far: [6.0],
    }

    def took(gemm: Gemm, *_: object, **__: object) -> float:
        return times[gemm].pop()

    monkeypatch.setattr(tuning, "_microseconds", took)
    monkeypatch.setattr(Gemm, "__call__", lambda *_, **__: torch.empty(0))
    weight, flushed = torch.randn(KIND.shape), torch.empty(1)
    assert tuning._fastest([*times], 64, KIND, [weight], flushed) == best
    assert not any(times.values()), "whoever is not far behind has all rounds"
    assert tuning._fastest([LIBRARY], 64, KIND, [weight], flushed) == LIBRARY


@pytest.mark.parametrize(("time", "best"), [(1.0, WIDE), (50.0, LIBRARY)])
def test_what_is_far_faster_or_slower_than_the_library_is_compared_with_it(
    monkeypatch: pytest.MonkeyPatch, time: float, best: Gemm
) -> None:
    times = {LIBRARY: 5.0, WIDE: time}
    monkeypatch.setattr(tuning, "_microseconds", lambda gemm, *_, **__: times[gemm])
    monkeypatch.setattr(Gemm, "__call__", lambda *_, **__: torch.empty(0))
    weights, flushed = [torch.randn(KIND.shape)], torch.empty(1)
    assert tuning._fastest([*times], 64, KIND, weights, flushed) == best


def test_few_large_weights_or_some_small_ones_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough that none is in the cache, and no more."""
    weights = [torch.randn(KIND.shape) for _ in range(20)]
    _, used = tuning._operands(3, KIND, weights)
    assert len(used) == 8
    monkeypatch.setattr(tuning, "_DISTINCT_BYTES", 3 * weights[0].nbytes - 1)
    halves, used = tuning._operands(3, KIND._replace(dtype=torch.bfloat16), weights)
    assert len(used) == 3
    assert (halves.shape, halves.dtype) == ((3, 128), torch.bfloat16)


@pytest.mark.parametrize(
    ("gated", "gemm", "time", "best"),
    [
        (True, SKINNY, 5.1, SKINNY),
        (True, SKINNY, 5.2, LIBRARY),
        (True, WIDE, 5.0, LIBRARY),
        (False, SKINNY, 5.0, LIBRARY),
    ],
)
def test_gating_in_a_gemm_of_few_rows_may_take_longer_by_itself(
    monkeypatch: pytest.MonkeyPatch, gated: bool, gemm: Gemm, time: float, best: Gemm
) -> None:
    times = {LIBRARY: 5.0, gemm: time}
    monkeypatch.setattr(tuning, "_microseconds", lambda gemm, *_, **__: times[gemm])
    monkeypatch.setattr(Gemm, "__call__", lambda *_, **__: torch.empty(0))
    kind = KIND._replace(gated=gated)
    found = tuning._fastest([*times], 16, kind, [torch.randn(KIND.shape)], torch.empty(1))
    assert found == best


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
        tuning._load_library(torch.randn(KIND.shape), bias, 30)
        assert seen == [(rows, 64, 32) for rows in range(1, 31)]
        assert all(given is bias for given in biases)
        seen.clear()
        biases.clear()


def test_and_whole_and_ragged_tiles_of_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps with prompts beside running streams have from some hundred to some thousand tokens."""
    seen: list[int] = []
    monkeypatch.setattr(F, "linear", lambda x, weight, bias: seen.append(len(x)))
    tuning._load_library(torch.zeros(16, 8), None, 100_000)
    assert seen == sorted(set(seen))
    assert seen[:512] == list(range(1, 513))
    assert set(range(8, 1025, 8)) | set(range(1088, 8449, 64)) <= set(seen)
    assert {rows % 8 for rows in seen[512:]} == {0, 7}
    assert seen[-1] == 8448


def test_few_rows_may_be_skinny_and_more_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    few, more = (list(tuning._candidates(rows, torch.device("cuda"))) for rows in (16, 17))
    assert few == [LIBRARY, *(Gemm("skinny", warps) for warps in cuda.SKINNY_WARPS)]
    assert more == [LIBRARY, *(Gemm("wide", width) for width in gemm.WIDE_WIDTHS)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert list(tuning._candidates(17, torch.device("cuda"))) == [LIBRARY]


@pytest.mark.gpu
def test_each_number_of_rows_gets_the_gemm_that_was_measured(kept: KeptChoices) -> None:
    cuda.register()
    gen = torch.Generator(device="cuda").manual_seed(0)
    up = torch.randn(2048, 512, generator=gen, device="cuda").bfloat16()
    down = torch.randn(512, 1024, generator=gen, device="cuda").bfloat16()
    uses = [Use(up, True, 500), Use(down, False, 40)]
    measured = tuning.measure(uses, kept)
    assert tuning.measure(uses, kept)._chosen == measured._chosen
    assert [choice.rows[-1] for choice in measured._chosen.values()] == [500, 40]
    for rows in (1, 3, 16, 17, 40, 64, 100, 256, 700, 1100, 8448):
        x = torch.randn(rows, 512, generator=gen, device="cuda").bfloat16()
        inner = measured.gated_linear(x, up, None)
        exact = ops.silu_mul((x.double() @ up.double().T).float())
        assert (inner - exact).norm() / exact.norm() < 2e-2
        out = measured.linear(inner, down, None).double()
        exact = inner.double() @ down.double().T
        assert (out - exact).norm() / exact.norm() < 5e-3
