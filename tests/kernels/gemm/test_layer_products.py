"""The products of layers in one launch each, against float32."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels import cuda
from kernels.layer_products import MAX_TOKENS, SIZES, LayerProducts, refusal
from kernels.persistent_decoder import LayerWeights
from kernels.reference_products import ReferenceProducts
from tests.kernels.gpu_share import few_sms

EPS = 1e-5
LIMIT = {torch.bfloat16: 8e-3, torch.float16: 1e-3}
LLAMA = (4096, 14336, 6144)


def make_layers(
    hidden: int,
    intermediate: int,
    features: int,
    *,
    num_layers: int = 2,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
) -> list[LayerWeights]:
    """Random weights, whose rows keep the size of what they multiply."""
    gen = torch.Generator(device=device).manual_seed(hidden + intermediate)

    def matrix(rows: int, k: int) -> torch.Tensor:
        made = torch.randn(rows, k, generator=gen, device=device)
        return made.mul_(float(k**-0.5)).to(dtype)

    def norm() -> torch.Tensor:
        return (1 + 0.2 * torch.randn(hidden, generator=gen, device=device)).to(dtype)

    return [
        LayerWeights(
            input_norm=norm(),
            qkv=matrix(features, hidden),
            qkv_bias=None,
            q_norm=None,
            k_norm=None,
            output=matrix(hidden, hidden),
            attended_norm=norm(),
            gate_up=matrix(2 * intermediate, hidden),
            down=matrix(hidden, intermediate),
        )
        for _ in range(num_layers)
    ]


def make_rows(layers: list[LayerWeights], tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What attention makes, and the residual."""
    weight = layers[0].qkv
    gen = torch.Generator(device=weight.device).manual_seed(tokens)
    shape = 2, tokens, weight.shape[1]
    rows = torch.randn(shape, generator=gen, device=weight.device).to(weight.dtype)
    return rows[0], rows[1]


def assert_close(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    """Row by row."""
    error = (got.double() - want.double()).norm(dim=-1) / want.double().norm(dim=-1)
    assert (error < LIMIT[got.dtype]).all(), f"relative errors of {what}: {error}"


def test_what_cannot_be_served_is_named() -> None:
    assert refusal([]) == "there are no layers"
    layers = make_layers(64, 128, 96, device="cpu")
    assert "compute capability 9.0" in str(refusal(layers))
    with pytest.raises(ValueError, match="products of these layers: it needs a GPU"):
        LayerProducts(layers, eps=EPS)


@pytest.mark.gpu
class TestOnGpu:
    @pytest.fixture(autouse=True)
    def library(self) -> None:
        if torch.cuda.get_device_capability() != (9, 0):
            pytest.skip("not for this GPU")
        cuda.load()

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("sizes", sorted(SIZES))
    @pytest.mark.parametrize("tokens", [1, 17, 31, 32, 33, 48, 63, 64])
    def test_equals_the_reference(
        self, tokens: int, sizes: tuple[int, int, int], dtype: torch.dtype
    ) -> None:
        layers = make_layers(*sizes, dtype=dtype)
        products, wanted = LayerProducts(layers, eps=EPS), ReferenceProducts(layers, eps=EPS)
        assert products.refused() is None
        for workspace in products._workspace[:2]:
            workspace.fill_(float("nan"))
        attended, ours = make_rows(layers, tokens)
        theirs = ours.clone()
        for layer in range(len(layers)):
            theirs.copy_(ours)
            got, want = products(layer, attended, ours), wanted(layer, attended, theirs)
            assert_close(ours, theirs, f"the residual behind layer {layer}")
            if got is None or want is None:
                assert got is want is None
                assert layer == len(layers) - 1
            else:
                assert_close(got, want, "qkv")
        assert not products._workspace[3].any(), "counts must be zero again"

    def test_every_replay_has_the_same_bits(self) -> None:
        """And many launches follow each other, of other numbers of tokens, too."""
        layers = make_layers(*LLAMA)
        products = LayerProducts(layers, eps=EPS)
        steps = {tokens: make_rows(layers, tokens) for tokens in (64, 24)}
        first = {tokens: self.outputs(products, *rows) for tokens, rows in steps.items()}
        for _ in range(50):
            for tokens, rows in steps.items():
                for got, want in zip(self.outputs(products, *rows), first[tokens], strict=True):
                    assert torch.equal(got, want)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_a_row_without_numbers_keeps_to_itself(self, dtype: torch.dtype) -> None:
        """Also where its bits are all ones, as those of a place where nothing is yet."""
        layers = make_layers(*LLAMA, dtype=dtype)
        products = LayerProducts(layers, eps=EPS)
        attended, residual = make_rows(layers, 40)
        clean = self.outputs(products, attended, residual)
        attended[3] = float("nan")
        attended[9].view(torch.int16).fill_(-1)
        residual[21].view(torch.int16).fill_(-1)
        attended[39] = float("inf")
        spoiled = torch.zeros(40, dtype=torch.bool, device="cuda")
        spoiled[[3, 9, 21, 39]] = True
        for got, want in zip(self.outputs(products, attended, residual), clean, strict=True):
            assert torch.equal(got[~spoiled], want[~spoiled])
            assert not got[spoiled].isfinite().all(dim=-1).any()

    def test_a_gpu_without_room_for_all_ctas_is_refused(self) -> None:
        products = LayerProducts(make_layers(*LLAMA), eps=EPS)
        with few_sms():
            assert str(products.refused()).startswith("has no room for all CTAs")
            assert torch.ones(3, device="cuda").sum() == 3, "torch's launches hear nothing of it"
        assert products.refused() is None

    def test_a_graph_is_replayed_for_other_tokens(self) -> None:
        layers = make_layers(*LLAMA)
        products, wanted = LayerProducts(layers, eps=EPS), ReferenceProducts(layers, eps=EPS)
        attended, residual = make_rows(layers, 40)
        start = residual.clone()
        products(0, attended, residual)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            qkv = products(0, attended, residual)
        attended.neg_()
        residual.copy_(start)
        graph.replay()
        want = wanted(0, attended, start)
        assert qkv is not None
        assert want is not None
        assert_close(residual, start, "the residual")
        assert_close(qkv, want, "qkv")

    def test_other_layers_are_refused(self) -> None:
        layers = make_layers(*LLAMA)
        for change, words in (
            ({"down": layers[1].down[:, :-64]}, r"down of layer 1 must be \[4096, 14336\]"),
            ({"qkv_bias": layers[1].input_norm}, "qkv of layer 1 has a bias"),
            ({"output": layers[1].output.T}, "output of layer 1 must be contiguous"),
            ({"gate_up": layers[1].gate_up.half()}, "gate_up of layer 1 must be contiguous"),
        ):
            with pytest.raises(ValueError, match=words):
                LayerProducts([layers[0], replace(layers[1], **change)], eps=EPS)
        small = make_layers(256, 512, 384)
        with pytest.raises(ValueError, match=r"not \(256, 512, 384\)"):
            LayerProducts(small, eps=EPS)

    def test_more_tokens_are_refused(self) -> None:
        layers = make_layers(*LLAMA)
        products = LayerProducts(layers, eps=EPS)
        attended, residual = make_rows(layers, MAX_TOKENS + 1)
        with pytest.raises(RuntimeError, match="at most 64 tokens, got 65"):
            products(0, attended, residual)

    @staticmethod
    def outputs(
        products: LayerProducts, attended: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        between, behind = residual.clone(), residual.clone()
        qkv = products(0, attended, between)
        assert products(1, attended, behind) is None
        assert qkv is not None
        return between, qkv, behind
