"""Which attention backend serves a model on a device."""

from __future__ import annotations

import torch

from engine.attention.base import AttentionBackend, AttentionShape
from engine.attention.cpu import CpuAttention
from engine.attention.cuda import CudaAttention
from engine.attention.flash import FlashAttention
from engine.attention.torch_ref import TorchAttention
from engine.attention.triton import TritonAttention
from engine.errors import ConfigError
from kernels import cpu


def select_backend(requested: str, device: torch.device, shape: AttentionShape) -> AttentionBackend:
    """The backend named ``requested``, or for "auto" the best of those that can serve.

    ``ConfigError`` says why the one asked for cannot.
    """
    if requested != "auto":
        reason = _refusal(requested, device, shape)
        if reason is not None:
            raise ConfigError(f"attention_backend {requested!r} cannot serve this model: {reason}")
        return _create(requested, device, shape)
    for name in ("cuda", "triton", "cpu"):
        if _refusal(name, device, shape) is None:
            return _create(name, device, shape)
    return TorchAttention(device, shape.dtype)


def _refusal(name: str, device: torch.device, shape: AttentionShape) -> str | None:
    multiple = {
        "cuda": CudaAttention.block_size_multiple,
        "flash_attn": FlashAttention.block_size_multiple,
    }.get(name, 1)
    if shape.block_size % multiple:
        return f"block_size must be a multiple of {multiple}, got {shape.block_size}"
    match name:
        case "cuda":
            return CudaAttention.refusal(device, shape)
        case "flash_attn":
            return FlashAttention.refusal(device, shape)
        case "triton":
            return TritonAttention.refusal(device, shape)
        case "cpu":
            return _cpu_refusal(device, shape)
    return None


def _cpu_refusal(device: torch.device, shape: AttentionShape) -> str | None:
    if device.type != "cpu":
        return "it needs the device 'cpu'"
    if shape.dtype != torch.float32:
        return f"it serves float32, not {shape.dtype}"
    if shape.head_dim > cpu.MAX_HEAD_DIM:
        return f"it serves head sizes up to {cpu.MAX_HEAD_DIM}, not {shape.head_dim}"
    return None if cpu.available() else "its kernels cannot be built here"


def _create(name: str, device: torch.device, shape: AttentionShape) -> AttentionBackend:
    match name:
        case "cuda":
            return CudaAttention(device, shape)
        case "flash_attn":
            return FlashAttention(device)
        case "triton":
            return TritonAttention(device, shape)
        case "cpu":
            return CpuAttention()
    return TorchAttention(device, shape.dtype)
