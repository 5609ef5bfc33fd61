"""The one launch for a layer's products without a GPU (``emulated``): its own source, all CTAs of
its grid at a time, against float32."""

from __future__ import annotations

import ctypes

import pytest
import torch

from kernels.layer_products import _COUNTS, MAX_TOKENS
from kernels.persistent_decoder import LayerWeights
from kernels.reference_products import ReferenceProducts
from tests.kernels import emulated
from tests.kernels.gemm.test_layer_products import EPS, assert_close, make_layers, make_rows
from tests.pairs import each_value

MOST_CTAS = 32
SMALL, LARGER = (512, 1536, 768), (1024, 3584, 1536)
POINTERS = (
    *("residual", "qkv", "attended", "output", "mid_norm", "gate_up", "down", "next_norm"),
    *("qkv_weight", "mid", "activated", "next", "squares", "parts", "counts"),
)


class Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_int) for name in ("tokens", "hidden", "intermediate", "features")),
        ("eps", ctypes.c_float),
    )


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    found = emulated.library("layer_products", (), threads=384, ctas=MOST_CTAS)
    for size in (found.squares_size, found.parts_size):
        size.restype = ctypes.c_int64
    return found


class EmulatedProducts:
    """As ``LayerProducts``. Aborts if a wait does not end, or if something is handed over where
    something is already."""

    def __init__(self, library: ctypes.CDLL, layers: list[LayerWeights]) -> None:
        self._library = library
        self._layers = layers
        first = layers[0]
        self._sizes = first.hidden, first.intermediate, len(first.qkv)
        nan = float("nan")
        rows = {
            name: torch.full((MAX_TOKENS, width), nan).to(first.qkv.dtype)
            for name, width in (("mid", first.hidden), ("next", first.hidden))
        }
        rows["activated"] = torch.full((MAX_TOKENS, first.intermediate), nan).to(first.qkv.dtype)
        self.counts = torch.zeros(_COUNTS, dtype=torch.int32)
        num_parts = library.parts_size(*self._sizes[:2])
        self.parts = torch.full((num_parts,), -1, dtype=torch.int32)
        self._workspace = {
            **rows,
            "squares": torch.full((library.squares_size(*self._sizes[:2]),), nan),
            "parts": self.parts,
            "counts": self.counts,
        }

    def __call__(
        self, layer: int, attended: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor | None:
        """Rows around the results, which nobody may write, are checked."""
        hidden, intermediate, features = self._sizes
        tokens = len(attended)
        own = self._layers[layer]
        tensors = {
            "attended": attended,
            "residual": residual,
            "output": own.output,
            "mid_norm": own.attended_norm,
            "gate_up": own.gate_up,
            "down": own.down,
            **self._workspace,
        }
        around = torch.full((tokens + 2, features), float("nan")).to(attended.dtype)
        is_last = layer + 1 == len(self._layers)
        if not is_last:
            following = self._layers[layer + 1]
            tensors |= {"next_norm": following.input_norm, "qkv_weight": following.qkv}
            tensors["qkv"] = around[1:-1]
        call = Call(
            **{name: tensor.data_ptr() for name, tensor in tensors.items()},
            tokens=tokens,
            hidden=hidden,
            intermediate=intermediate,
            features=features,
            eps=EPS,
        )
        bf16 = ctypes.c_bool(attended.dtype == torch.bfloat16)
        assert self._library.products(ctypes.byref(call), bf16) == 0
        assert not self.counts.any(), "counts must be zero again"
        assert around[0].isnan().all()
        assert around[-1].isnan().all()
        return None if is_last else around[1:-1]


def check(
    library: ctypes.CDLL,
    sizes: tuple[int, int, int],
    *steps: int,
    dtype: torch.dtype = torch.bfloat16,
    num_layers: int = 2,
) -> None:
    """steps: numbers of tokens, each of which goes through all layers."""
    layers = make_layers(*sizes, num_layers=num_layers, dtype=dtype, device="cpu")
    products, wanted = EmulatedProducts(library, layers), ReferenceProducts(layers, eps=EPS)
    for tokens in steps:
        attended, below = make_rows(layers, tokens)
        ours = torch.full((tokens + 1, sizes[0]), float("nan")).to(dtype)
        ours[:tokens] = below
        for layer in range(num_layers):
            theirs = ours[:tokens].clone()
            got, want = products(layer, attended, ours[:tokens]), wanted(layer, attended, theirs)
            assert_close(ours[:tokens], theirs, f"the residual behind layer {layer}")
            assert ours[tokens:].isnan().all()
            assert (got is None) == (want is None)
            if got is not None and want is not None:
                assert_close(got, want, "qkv")


@pytest.mark.parametrize(
    ("steps", "dtype"), each_value([(17, 1), (64,)], [torch.bfloat16, torch.float16])
)
def test_layers(library: ctypes.CDLL, steps: tuple[int, ...], dtype: torch.dtype) -> None:
    """One that the next follows, and the last."""
    check(library, SMALL, *steps, dtype=dtype)


@pytest.mark.nightly
def test_larger_sizes(library: ctypes.CDLL) -> None:
    """Rings that go round, and gates that leave partly one by one."""
    check(library, LARGER, 40)


@pytest.mark.nightly
def test_launches_of_other_sizes_follow_each_other(library: ctypes.CDLL) -> None:
    """What one has handed over is gone when the next needs the place."""
    check(library, SMALL, 64, 1, 33, num_layers=3)


def test_a_lone_layer(library: ctypes.CDLL) -> None:
    check(library, SMALL, 24, num_layers=1)
