from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kernels import cpu, cuda, cuda_experts, ops, reference, reference_experts
from tests.kernels.test_arguments import OPS


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ops, "_registry", dict(ops._registry))
    yield
    ops.resolve.cache_clear()


F32, BF16 = torch.float32, torch.bfloat16


def test_every_op_has_a_public_function_and_a_reference() -> None:
    for op in ops.OPS:
        assert callable(getattr(ops, op))
        oracle = ops.resolve(op, "cpu", torch.float64)
        assert oracle in (getattr(reference, op, None), getattr(reference_experts, op, None))
        assert ops.resolve(op, "xpu", F32) is oracle


@pytest.mark.usefixtures("registry")
def test_the_best_backend_of_a_device_and_dtype_serves_it() -> None:
    def triton() -> None: ...

    def cuda() -> None: ...

    ops.register("silu_mul", "triton", triton)
    assert ops.resolve("silu_mul", "cuda", F32) is triton
    ops.register("silu_mul", "cuda", cuda, dtypes={BF16})
    assert ops.resolve("silu_mul", "cuda", BF16) is cuda
    assert ops.resolve("silu_mul", "cuda", F32) is triton
    assert ops.resolve("silu_mul", "cpu", BF16) is reference.silu_mul
    assert ops.resolve("rms_norm", "cuda", BF16) is reference.rms_norm


@pytest.mark.usefixtures("registry")
def test_unknown_names_cannot_be_registered() -> None:
    with pytest.raises(AssertionError, match="unknown op"):
        ops.register("gelu", "cuda", reference.silu_mul)
    with pytest.raises(AssertionError, match="unknown backend"):
        ops.register("silu_mul", "tpu", reference.silu_mul)


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """All but the first, which is never passed by name."""
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default) for one in found][1:]


def check_stated(op: str, oracle: Callable[..., Any]) -> None:
    """The struct of a CUDA kernel has the arguments of the reference, in the same order."""
    by_position = [name for name, kind in OPS[op].items() if kind != "OUT"]
    for i, one in enumerate(inspect.signature(oracle).parameters.values()):
        if one.kind is not one.KEYWORD_ONLY:
            assert i == 0 or by_position[i] == one.name, (op, one.name)
        is_optional = OPS[op][by_position[0] if i == 0 else one.name] in ("OPTIONAL", "ARG_OR")
        assert is_optional or one.default is one.empty, (op, one.name)
    assert len(by_position) == i + 1, op


@pytest.mark.usefixtures("registry")
def test_every_implementation_takes_what_its_reference_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Defaults too: an op passes on what it was given, and no more."""
    monkeypatch.setattr(cuda, "load", lambda: None)
    stated = {op: object() for op in OPS}
    for op, function in stated.items():
        monkeypatch.setattr(cuda.native, op, function, raising=False)
    cuda.register()
    cuda_experts.register()
    if cpu.available():
        cpu.register()
    if importlib.util.find_spec("triton") is not None:
        from kernels.triton import fp8_linear, grouped_gemm, lora, quantize

        for module in (fp8_linear, grouped_gemm, lora, quantize):
            module.register()
    for (op, backend), found in ops._registry.items():
        oracle = ops._registry[op, "reference"].implementation
        if found.implementation is stated.get(op):
            check_stated(op, oracle)
            continue
        assert _parameters(found.implementation) == _parameters(oracle), (op, backend)


@pytest.mark.nightly  # it imports most of transformers
def test_transformers_works_with_this_package_on_the_path() -> None:
    """transformers probes for a package called ``kernels`` and must find nothing in ours."""
    code = (
        "import kernels, transformers\n"
        "from transformers import AutoModelForCausalLM, LlamaConfig\n"
        "from transformers.utils import is_kernels_available\n"
        "AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=8, hidden_size=8, "
        "intermediate_size=8, num_hidden_layers=1, num_attention_heads=2))\n"
        "assert not is_kernels_available()\n"
        "assert not hasattr(kernels, '__version__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, kernels; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
