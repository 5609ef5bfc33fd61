"""Products of few rows against float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from kernels import products  # noqa: E402

pytestmark = pytest.mark.gpu
LIMIT = {torch.bfloat16: 4e-3, torch.float16: 5e-4}


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    from kernels import cuda

    cuda.load()


def randn(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    gen = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=gen, device="cuda").to(dtype)


def assert_close(got: torch.Tensor, want: torch.Tensor, limit: float) -> None:
    error = ((got.double() - want).norm() / want.norm()).item()
    assert error < limit, f"relative error {error:.2e}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 16])
@pytest.mark.parametrize(
    ("features", "k"), [(16, 64), (48, 192), (4096, 4096), (6144, 4096), (4096, 14336)]
)
def test_linear(features: int, k: int, tokens: int, dtype: torch.dtype) -> None:
    from kernels import cuda

    x = randn(tokens, k, dtype=dtype, seed=1)
    weight = randn(features, k, dtype=dtype, seed=2)
    bias = randn(features, dtype=dtype, seed=3)
    assert_close(cuda.skinny_linear(x, weight), x.double() @ weight.double().T, LIMIT[dtype])
    with_bias = x.double() @ weight.double().T + bias.double()
    assert_close(cuda.skinny_linear(x, weight, bias), with_bias, LIMIT[dtype])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 5, 16])
@pytest.mark.parametrize(("features", "k"), [(16, 64), (176, 256), (28672, 4096)])
def test_gated(features: int, k: int, tokens: int, dtype: torch.dtype) -> None:
    from kernels import cuda

    x = randn(tokens, k, dtype=dtype, seed=1)
    weight = randn(features, k, dtype=dtype, seed=2) * k**-0.5
    gate, up = (x.double() @ weight.double().T).chunk(2, -1)
    out = cuda.skinny_linear(x, weight, gated=True)
    assert_close(out, F.silu(gate) * up, 3 * LIMIT[dtype])


def test_strided_rows_and_what_lies_between_them() -> None:
    from kernels import cuda

    both = randn(8, 256, dtype=torch.bfloat16, seed=1)
    both[:, 128:] = float("nan")
    weight = randn(32, 128, dtype=torch.bfloat16, seed=2)
    want = both[:, :128].double() @ weight.double().T
    assert_close(cuda.skinny_linear(both[:, :128], weight), want, LIMIT[torch.bfloat16])


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    from kernels import cuda

    x = randn(16, 4096, dtype=torch.bfloat16, seed=1)
    weight = randn(4096, 4096, dtype=torch.bfloat16, seed=2)
    whole = cuda.skinny_linear(x, weight)
    for rows in (1, 3, 8, 11):
        assert torch.equal(cuda.skinny_linear(x[:rows], weight), whole[:rows])


def test_the_faster_of_two_products_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_faster", {})
    weight = randn(4096, 4096, dtype=torch.bfloat16, seed=2)
    x = randn(3, 4096, dtype=torch.bfloat16, seed=1)
    assert torch.equal(products.linear(x, weight, None), F.linear(x, weight))
    products.measure(weight, gated=False)
    kind = weight.shape, weight.dtype, False
    assert products._faster[kind] <= {1, 2, 4, 8, 16}
    products._faster[kind] = {4}
    from kernels import cuda

    assert torch.equal(products.linear(x, weight, None), cuda.skinny_linear(x, weight))
    assert torch.equal(products.linear(x[:2], weight, None), F.linear(x[:2], weight))


@pytest.mark.parametrize("tokens", [1, 5, 8, 9, 16])
@pytest.mark.parametrize(("features", "k", "gated"), [(48, 192, False), (28672, 4096, True)])
def test_normed(tokens: int, features: int, k: int, gated: bool) -> None:
    """In parts of any number; what the other rows of the sums hold is not read."""
    from kernels import cuda

    x = randn(tokens, k, dtype=torch.bfloat16, seed=1) * 30
    norm = randn(k, dtype=torch.bfloat16, seed=2) + 1
    weight = (randn(features, k, dtype=torch.bfloat16, seed=3) * k**-0.5).bfloat16()
    bias = randn(features, dtype=torch.bfloat16, seed=4)
    squares = x.double().square()
    for parts in (1, 3, 16, 256):
        sums = torch.full((parts, cuda.MAX_SKINNY_TOKENS), float("nan"), device="cuda")
        each = squares.tensor_split(parts, 1)
        sums[:, :tokens] = torch.stack([part.sum(1) for part in each]).float()
        out = cuda.skinny_normed_linear(x, sums, norm, 1e-5, weight, bias, gated=gated)
        scale = (squares.mean(1, keepdim=True) + 1e-5).rsqrt()
        want = (x.double() * scale * norm.double()) @ weight.double().T + bias.double()
        if gated:
            gate, up = want.chunk(2, -1)
            want = F.silu(gate) * up
        assert_close(out, want, 1e-2 if gated else 5e-3)


@pytest.mark.parametrize("tokens", [1, 5, 8, 9, 16])
@pytest.mark.parametrize(("features", "k"), [(48, 192), (4096, 4096), (4096, 14336)])
def test_added(tokens: int, features: int, k: int) -> None:
    from kernels import cuda

    x = randn(tokens, k, dtype=torch.bfloat16, seed=1)
    weight = (randn(features, k, dtype=torch.bfloat16, seed=2) * k**-0.5).bfloat16()
    bias = randn(features, dtype=torch.bfloat16, seed=3)
    residual = randn(tokens, features, dtype=torch.bfloat16, seed=4)
    want = residual.double() + x.double() @ weight.double().T + bias.double()
    sums = cuda.skinny_linear_add(residual, x, weight, bias)
    assert_close(residual, want, LIMIT[torch.bfloat16])
    found = sums.double().sum(0)[:tokens]
    assert_close(found, residual.double().square().sum(1), 1e-5)


def test_a_chain_of_both_equals_the_operations_one_by_one() -> None:
    """As in a layer, launched right after one another."""
    from kernels import cuda, ops

    cuda.register()
    hidden, inner = 1024, 2048
    residual = randn(3, hidden, dtype=torch.bfloat16, seed=1)
    down = (randn(hidden, inner, dtype=torch.bfloat16, seed=2) * inner**-0.5).bfloat16()
    up = (randn(2 * inner, hidden, dtype=torch.bfloat16, seed=3) * hidden**-0.5).bfloat16()
    norm = randn(hidden, dtype=torch.bfloat16, seed=4) + 1
    x = randn(3, inner, dtype=torch.bfloat16, seed=5)
    plain, other = residual.clone(), x
    for _ in range(20):
        sums = cuda.skinny_linear_add(residual, x, down)
        x = cuda.skinny_normed_linear(residual, sums, norm, 1e-5, up, gated=True)
        normed = ops.rms_norm(F.linear(other, down), norm, 1e-5, plain)
        other = ops.silu_mul(F.linear(normed, up))
    assert_close(residual, plain.double(), 2e-2)
    assert_close(x, other.double(), 5e-2)


def test_sums_of_another_shape_are_refused() -> None:
    from kernels import cuda

    x, weight = (
        randn(2, 64, dtype=torch.bfloat16, seed=1),
        randn(16, 64, dtype=torch.bfloat16, seed=2),
    )
    norm = randn(64, dtype=torch.bfloat16, seed=3)
    with pytest.raises(RuntimeError, match="sums must be contiguous float32"):
        cuda.skinny_normed_linear(x, torch.ones(2, 2, device="cuda"), norm, 1e-5, weight)
    sums = torch.ones(1, cuda.MAX_SKINNY_TOKENS, device="cuda")
    with pytest.raises(RuntimeError, match="norm must have 64 elements"):
        cuda.skinny_normed_linear(x, sums, norm[:32], 1e-5, weight)
