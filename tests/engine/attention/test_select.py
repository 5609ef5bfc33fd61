from __future__ import annotations

import pytest
import torch

from engine.attention import select
from engine.attention.base import FP8, AttentionShape
from engine.attention.cuda import CudaAttention
from engine.attention.flash import FlashAttention
from engine.errors import ConfigError
from kernels import cpu

CPU = torch.device("cpu")


def shape(
    dtype: torch.dtype = torch.float32,
    *,
    head_dim: int = 64,
    block_size: int = 16,
    kv_dtype: torch.dtype | None = None,
) -> AttentionShape:
    return AttentionShape(dtype, 8, 4, head_dim, block_size, max_num_seqs=4, kv_dtype=kv_dtype)


def chosen(requested: str, what: AttentionShape) -> str:
    return select.select_backend(requested, CPU, what).name


def test_a_cpu_runs_its_own_kernels_where_they_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "available", lambda: True)
    assert chosen("auto", shape()) == "cpu"
    assert chosen("auto", shape(torch.bfloat16)) == "torch"
    assert chosen("auto", shape(head_dim=512)) == "torch"
    assert chosen("torch", shape()) == "torch"
    assert chosen("auto", shape(kv_dtype=FP8)) == "cpu"
    assert chosen("auto", shape(torch.bfloat16, kv_dtype=FP8)) == "torch"
    monkeypatch.setattr(cpu, "available", lambda: False)
    assert chosen("auto", shape()) == "torch"


@pytest.mark.parametrize(
    ("requested", "what", "reason"),
    [
        ("cuda", shape(torch.bfloat16), "it needs a GPU"),
        ("triton", shape(torch.bfloat16), "it needs a GPU"),
        ("cuda", shape(torch.bfloat16, block_size=24), "block_size must be a multiple of 16"),
        ("flash_attn", shape(torch.bfloat16, block_size=256), "it needs a GPU"),
        ("flash_attn", shape(torch.bfloat16), "block_size must be a multiple of 256, got 16"),
        ("cpu", shape(torch.bfloat16), "it serves float32"),
        ("cpu", shape(head_dim=512), "head sizes up to 256"),
    ],
)
def test_a_backend_that_cannot_serve_is_refused_with_the_reason(
    requested: str, what: AttentionShape, reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"attention_backend '{requested}' .*{reason}"):
        select.select_backend(requested, CPU, what)


def test_the_cuda_backend_says_what_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert "8.0" in str(CudaAttention.refusal(gpu, shape(torch.bfloat16)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert "not torch.float32" in str(CudaAttention.refusal(gpu, shape()))
    assert "head sizes 64, 96, 128, 256, not 32" in str(
        CudaAttention.refusal(gpu, shape(torch.bfloat16, head_dim=32))
    )


def test_flash_attention_has_no_fp8_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    what = shape(torch.bfloat16, block_size=256, kv_dtype=FP8)
    reason = FlashAttention.refusal(torch.device("cuda"), what)
    assert reason == "its KV cache has the model's dtype, not torch.float8_e4m3fn"


@pytest.mark.gpu
def test_a_gpu_runs_cuda_for_16_bit_models_and_triton_for_the_rest() -> None:
    gpu = torch.device("cuda")

    def auto(what: AttentionShape) -> str:
        return select.select_backend("auto", gpu, what).name

    assert auto(shape(torch.bfloat16)) == auto(shape(torch.float16)) == "cuda"
    assert auto(shape()) == auto(shape(torch.bfloat16, head_dim=32)) == "triton"
    assert auto(shape(torch.bfloat16, block_size=4)) == "triton"
