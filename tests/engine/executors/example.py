"""A small model, and steps of it, for the tests of all executors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from engine.attention.base import (
    AttentionBackend,
    AttentionBatch,
    AttentionShape,
    DeviceBatch,
    KVScales,
)
from engine.attention.select import select_backend
from engine.attention.torch_ref import TorchAttention
from engine.executors.base import Executor
from engine.layers.attention import GroupStep, KVCache, SelfAttention, StepContext, Wanted
from engine.layers.rope import RopeConfig
from engine.models.base import ModelConfig
from engine.models.llama import ForCausalLM, LlamaDecoderLayer
from kernels import reference

CPU, GPU = torch.device("cpu"), torch.device("cuda")
BLOCK_SIZE, MAX_LEN, HEAD_DIM = 16, 512, 64
CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=50,
    hidden_size=256,
    intermediate_size=320,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=HEAD_DIM,
    rms_norm_eps=1e-5,
    max_position_embeddings=MAX_LEN,
    rope=RopeConfig(),
    tie_word_embeddings=True,
    attention_bias=False,
    mlp_bias=False,
    dtype=torch.float32,
    eos_token_ids=frozenset(),
)


def model(
    layer: type[LlamaDecoderLayer] = LlamaDecoderLayer,
    *,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> ForCausalLM:
    of_family = type("Of", (ForCausalLM,), {"layer_class": layer})
    config = replace(CONFIG, **changes)
    made: ForCausalLM = of_family(config, max_model_len=MAX_LEN, dtype=dtype, device=device)
    gen = torch.Generator().manual_seed(0)
    for name, weight in made.named_weights():
        shift = 1.0 if "norm" in name else 0.0
        weight.data.copy_(torch.randn(weight.data.shape, generator=gen) * 0.1 + shift)
    return made


def _attention(of: SelfAttention, dtype: torch.dtype, kv_dtype: torch.dtype) -> AttentionBackend:
    device = of.qkv_proj.device
    if device == CPU:
        return TorchAttention(CPU, dtype)
    heads = of.num_heads, of.num_kv_heads, of.head_dim
    shape = AttentionShape(dtype, *heads, BLOCK_SIZE, 8, kv_dtype=kv_dtype)
    return select_backend("cuda", device, shape)


def make_step(
    of: ForCausalLM,
    shapes: list[tuple[int, int]],
    *,
    backend: AttentionBackend | None = None,
    fp8: bool = False,
    last: int = 0,
    **context: Any,
) -> tuple[torch.Tensor, StepContext]:
    """Token ids, and the step. shapes: (tokens of the step, tokens before it) of each sequence, at
    most 8 of up to 256. last: of the only sequence, so many tokens are wanted. context: other
    fields of the step."""
    weight, attention = of.model.norm.weight.data, of.model.layers[0].self_attn
    device, dtype = weight.device, weight.dtype
    assert isinstance(attention, SelfAttention)
    gen = torch.Generator().manual_seed(1)
    shape = 3, 2, 128, BLOCK_SIZE, attention.num_kv_heads, attention.head_dim
    values = torch.randn(shape, generator=gen).to(device)
    scale = torch.tensor([0.02, 0.03], device=device)
    stored = reference.quantize_heads(values, scale) if fp8 else values.to(dtype)
    cache: KVCache = [(k, v) for k, v in stored]
    for layer in of.model.layers:
        assert isinstance(layer.self_attn, SelfAttention)
        scales = KVScales(scale, scale) if fp8 else None
        layer.self_attn.options = replace(layer.self_attn.options, kv_scales=scales)
    table = torch.randperm(128, generator=gen).view(8, 16).to(device, torch.int32)
    query_lens, past = np.array(shapes).T.copy()
    rows = np.arange(len(shapes))[::-1].copy()
    positions = torch.cat([torch.arange(p, p + n) for n, p in shapes]).to(device)
    token_rows = torch.from_numpy(rows.repeat(query_lens)).to(device)
    slots = table[token_rows, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    lens = torch.from_numpy(query_lens + past).to(device, torch.int32)
    cu_queries = F.pad(torch.from_numpy(query_lens), (1, 0)).cumsum(0).to(device, torch.int32)
    on_device = DeviceBatch(lens, cu_queries, table[torch.from_numpy(rows).to(device)])
    batch = AttentionBatch(query_lens, query_lens + past, rows, table, on_device)
    if backend is None:
        backend = _attention(attention, dtype, stored.dtype)
    if last:
        fewer = replace(batch, query_lens=np.array([last]))
        index = torch.arange(len(positions) - last, len(positions))
        context["wanted"] = Wanted(index, partial(backend.prepare, fewer, BLOCK_SIZE))
    group = GroupStep(slots.long(), backend.prepare(batch, BLOCK_SIZE))
    token_ids = torch.randint(50, (len(positions),), generator=gen).to(device)
    return token_ids, StepContext(positions, [group], cache, **context)


def run(
    executor: Executor, shapes: list[tuple[int, int]], **options: Any
) -> tuple[torch.Tensor, KVCache]:
    """The hidden states of a step, and the cache behind it. options: see ``make_step``."""
    assert isinstance(executor.model, ForCausalLM)
    token_ids, step = make_step(executor.model, shapes, **options)
    return executor.hidden_states(token_ids, step), step.kv_cache


def assert_same(one: tuple[torch.Tensor, KVCache], other: tuple[torch.Tensor, KVCache]) -> None:
    """What two executors computed and stored has the same bits."""
    assert torch.equal(one[0], other[0])
    for (k, v), (other_k, other_v) in zip(one[1], other[1], strict=True):
        assert torch.equal(k.view(torch.uint8), other_k.view(torch.uint8))
        assert torch.equal(v.view(torch.uint8), other_v.view(torch.uint8))
