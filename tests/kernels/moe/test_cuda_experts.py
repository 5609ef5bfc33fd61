"""The CUDA kernels for mixtures of experts against the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import cuda, cuda_experts, ops
from kernels import reference_experts as reference
from kernels.experts import ExpertMatrices, Fp8Experts, Int4Experts
from kernels.reference import quantize_rows
from tests.kernels.gemm.test_quantized import draw_int4
from tests.kernels.moe.test_experts import check_tiles

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True, scope="module")
def kernels() -> None:
    cuda.load()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 7, 300])
@pytest.mark.parametrize(
    ("num_experts", "how"),
    [
        (8, {"top_k": 2, "renormalize": True}),
        (60, {"top_k": 4}),
        (128, {"top_k": 8, "renormalize": True}),
        (160, {"top_k": 6, "num_groups": 8, "top_k_groups": 3, "scale": 16.0}),
        (256, {"top_k": 8, "num_groups": 8, "top_k_groups": 4, "scale": 2.5, "sigmoid": True}),
        (100, {"top_k": 40}),
        (600, {"top_k": 2}),
        (512, {"top_k": 10, "renormalize": True, "sigmoid": True}),
    ],
)
def test_experts_are_chosen_like_the_reference_does(
    num_experts: int, how: dict[str, Any], num_tokens: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    rows = [torch.randperm(num_experts, generator=generator) for _ in range(num_tokens)]
    # No two scores are equal, in bfloat16 neither.
    logits = ((torch.stack(rows) - num_experts // 2) / 64).to(CUDA, dtype)
    bias = None
    if how.get("sigmoid"):
        bias = torch.rand(num_experts, generator=generator).to(CUDA) * 0.3
    experts, weights = cuda_experts.route_experts(logits, bias, **how)
    wanted, scores = reference.route_experts(logits, bias, **how)
    same = experts == wanted
    assert same.float().mean() > 0.99  # sums of a score and a bias may come close
    torch.testing.assert_close(weights[same], scores[same], rtol=1e-4, atol=1e-6)


def test_scores_that_are_no_numbers_choose_experts_that_exist() -> None:
    logits = torch.full((3, 60), float("nan"), device=CUDA)
    for groups in (1, 6):
        experts, _ = cuda_experts.route_experts(
            logits, None, top_k=8, num_groups=groups, top_k_groups=1
        )
        assert ((experts >= 0) & (experts < 60)).all()


@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "top_k"),
    [(1, 8, 2), (64, 128, 8), (40, 512, 3), (9, 600, 2), (9000, 8, 2)],
)
def test_pairs_are_cut_into_tiles(num_tokens: int, num_experts: int, top_k: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    experts = torch.randint(0, num_experts + 1, (num_tokens, top_k), generator=generator).to(CUDA)
    made = cuda_experts.group_pairs(experts, num_experts, rows)
    check_tiles(made, experts, num_experts)
    assert sorted(made.order.tolist()) == list(range(num_tokens * top_k))
    expected = reference.group_pairs(experts, num_experts, rows).tiles
    used = expected[0] < num_experts
    assert torch.equal(made.tiles[0], expected[0])
    assert torch.equal(made.tiles[:, used], expected[:, used])


def draw(
    num_tokens: int, num_experts: int, top_k: int, dtype: torch.dtype, hidden: int, inner: int
) -> tuple[Any, ...]:
    generator = torch.Generator(CUDA).manual_seed(num_tokens)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=CUDA).to(dtype)

    x = some(num_tokens, hidden)
    gate_up = some(num_experts, 2 * inner, hidden) * hidden**-0.5
    down = some(num_experts, hidden, inner) * inner**-0.5
    logits = torch.randn(num_tokens, num_experts, generator=generator, device=CUDA)
    experts, weights = reference.route_experts(logits, None, top_k=top_k, renormalize=True)
    return x, gate_up, down, experts, weights


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("hidden", "inner"), [(64, 64), (256, 192), (1088, 704)])
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "top_k"),
    [(1, 8, 2), (1, 64, 6), (2, 8, 2), (7, 100, 3), (8, 128, 8)],
)
def test_experts_equal_the_reference(
    num_tokens: int, num_experts: int, top_k: int, hidden: int, inner: int, dtype: torch.dtype
) -> None:
    case = draw(num_tokens, num_experts, top_k, dtype, hidden, inner)
    assert cuda_experts.serves(*case[:4])
    got, want = cuda_experts.apply_experts(*case), reference.apply_experts(*case)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def quantized(weight: torch.Tensor, kind: str) -> ExpertMatrices:
    """Of the shape of ``weight``, and for FP8 of its numbers."""
    num_experts, features, k = weight.shape
    if kind == "int4":
        each = [draw_int4(features, k, 64, weight.dtype, "cuda")[0] for _ in range(num_experts)]
        packed = torch.stack([matrix.packed for matrix in each])
        packed ^= torch.arange(num_experts, dtype=torch.int32, device=CUDA)[:, None, None] * 0x1357
        groups = torch.stack([matrix.groups for matrix in each])
        groups[..., 0] *= 0.2 * k**-0.5
        return Int4Experts(packed, groups)
    if kind == "fp8":
        rounded, scale = quantize_rows(weight.flatten(0, 1))
        return Fp8Experts(rounded.view(weight.shape), scale.view(num_experts, features, 1))
    scale = torch.rand(num_experts, -(-features // 128), -(-k // 128), device=CUDA) * k**-0.5
    return Fp8Experts((weight * k**0.5).to(torch.float8_e4m3fn), scale, (128, 128))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["fp8", "fp8 blocks", "int4"])
@pytest.mark.parametrize(("hidden", "inner"), [(128, 128), (256, 384), (2048, 768)])
@pytest.mark.parametrize(("num_tokens", "num_experts", "top_k"), [(1, 8, 2), (3, 40, 6)])
def test_quantized_experts_equal_the_reference(
    num_tokens: int,
    num_experts: int,
    top_k: int,
    hidden: int,
    inner: int,
    kind: str,
    dtype: torch.dtype,
) -> None:
    x, *plain, experts, weights = draw(num_tokens, num_experts, top_k, dtype, hidden, inner)
    gate_up, down = (quantized(matrices, kind) for matrices in plain)
    assert cuda_experts.serves(x, gate_up, down, experts)
    got = cuda_experts.apply_experts(x, gate_up, down, experts, weights)
    want = reference.apply_experts(x, gate_up, down, experts, weights)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_pairs_of_no_expert_are_left_alone() -> None:
    x, gate_up, _, experts, _ = draw(20, 6, 2, torch.bfloat16, 128, 64)
    experts[3] = 6
    made = cuda_experts.linear(x, gate_up, experts, pairs_per_row=2)
    for pair, expert in enumerate(experts.flatten().tolist()):
        if expert < 6:
            want = gate_up[expert] @ x[pair // 2]
            torch.testing.assert_close(made[pair], want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("num_tokens", "top_k", "width"), [(1, 2, 8), (9, 8, 2048), (300, 3, 72)])
def test_what_experts_made_is_summed_up_by_weight(num_tokens: int, top_k: int, width: int) -> None:
    each = torch.randn(num_tokens * top_k, width, device=CUDA).bfloat16()
    weights = torch.rand(num_tokens, top_k, device=CUDA)
    got, want = (one.combine_experts(each, weights) for one in (cuda.native, reference))
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("num_tokens", [200, 3])
def test_what_is_not_served_goes_to_the_backend_behind(
    num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, gate_up, down, experts, weights = draw(num_tokens, 4, 2, torch.bfloat16, 64, 64)
    if num_tokens == 3:
        gate_up, down = gate_up[:, :120], down[..., :60].contiguous()
    called: list[int] = []

    def behind(*arguments: torch.Tensor) -> torch.Tensor:
        called.append(len(arguments[0]))
        return arguments[0]

    def resolve(*_arguments: object, **options: object) -> object:
        assert options == {"behind": "cuda"}
        return behind

    monkeypatch.setattr(ops, "resolve", resolve)
    assert cuda_experts.apply_experts(x, gate_up, down, experts, weights) is x
    assert called == [num_tokens]


def test_a_cuda_graph_holds_all_of_it() -> None:
    """Tokens of one shape that go to other experts than those of the recording."""
    x, gate_up, down, _, _ = draw(5, 40, 3, torch.bfloat16, 128, 64)
    logits = torch.randn(5, 40, device=CUDA)

    def compute() -> torch.Tensor:
        experts, weights = cuda_experts.route_experts(logits, None, top_k=3)
        return cuda_experts.apply_experts(x, gate_up, down, experts, weights)

    compute()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compute()
    for seed in range(3):
        logits.copy_(torch.randn(5, 40, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        chosen = reference.route_experts(logits, None, top_k=3)
        want = reference.apply_experts(x, gate_up, down, *chosen)
        torch.testing.assert_close(out, want, rtol=2e-2, atol=2e-2)
