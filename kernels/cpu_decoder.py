"""A whole decoder as one CPU kernel: in a step of a small model, calling each op alone would cost
much of the time."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from kernels import cpu


class _DecoderLayer(ctypes.Structure):
    """``DecoderLayer`` of cpu/decoder.h."""

    _fields_ = (
        ("input_norm", ctypes.c_void_p),
        ("attention_norm", ctypes.c_void_p),
        ("qkv", cpu.LinearStruct),
        ("output", cpu.LinearStruct),
        ("gate_up", cpu.LinearStruct),
        ("down", cpu.LinearStruct),
    )


class _Decoder(ctypes.Structure):
    """``Decoder`` of cpu/decoder.h."""

    _fields_ = (
        ("layers", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("cos_sin", ctypes.c_void_p),
        ("num_layers", ctypes.c_int64),
        ("num_q_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer of a ``Decoder``."""

    input_norm: torch.Tensor
    attention_norm: torch.Tensor
    qkv: cpu.PackedLinear
    output: cpu.PackedLinear
    gate_up: cpu.PackedLinear
    down: cpu.PackedLinear


class Decoder:
    """All layers of a decoder and the final norm, in one call per step. The results are bitwise
    those of the single ops, because both use the same functions."""

    def __init__(
        self,
        layers: Sequence[LayerWeights],
        norm: torch.Tensor,
        cos_sin: torch.Tensor,
        *,
        num_q_heads: int,
        num_kv_heads: int,
        head_dim: int,
        eps: float,
        scale: float,
    ) -> None:
        self._layers = (_DecoderLayer * len(layers))(
            *(
                _DecoderLayer(
                    layer.input_norm.data_ptr(),
                    layer.attention_norm.data_ptr(),
                    layer.qkv.struct,
                    layer.output.struct,
                    layer.gate_up.struct,
                    layer.down.struct,
                )
                for layer in layers
            )
        )
        self._owned = list(layers), norm, cos_sin
        self._struct = _Decoder(
            ctypes.addressof(self._layers),
            norm.data_ptr(),
            cos_sin.data_ptr(),
            len(layers),
            num_q_heads,
            num_kv_heads,
            head_dim,
            eps,
            scale,
        )
        self._cache: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._cache_structs: ctypes.Array[cpu.LayerCacheStruct] = (cpu.LayerCacheStruct * 0)()

    def __call__(
        self,
        hidden: torch.Tensor,
        kv_cache: list[tuple[torch.Tensor, torch.Tensor]],
        step: ctypes.Structure,
        positions: torch.Tensor,
        slots: torch.Tensor,
        aux_states: Mapping[int, torch.Tensor] = MappingProxyType({}),
        kv_scales: Sequence[tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> torch.Tensor:
        """hidden: [num_tokens, hidden], the embeddings, overwritten; returns that shape, normed.

        kv_cache, positions, slots: as for the ops; step: ``AttentionSequences.struct`` of all
        sequences of the step, one after another. aux_states: by layer number, a
        [num_tokens, hidden] tensor that the layer's input is copied to; all with the same stride.
        kv_scales: of each layer of a ``kv_cache`` in FP8; they must not change for the same cache.
        """
        aux, aux_stride = None, 0
        if aux_states:
            aux = (ctypes.c_void_p * len(self._layers))()
            for layer, tensor in aux_states.items():
                aux[layer], aux_stride = tensor.data_ptr(), tensor.stride(0)
        if kv_cache is not self._cache:
            none: list[tuple[None, None]] = [(None, None)] * len(kv_cache)
            scales = none if kv_scales is None else kv_scales
            structs = [
                cpu.LayerCacheStruct.of(*caches, *scale)
                for caches, scale in zip(kv_cache, scales, strict=True)
            ]
            self._cache = kv_cache
            self._cache_structs = (cpu.LayerCacheStruct * len(structs))(*structs)
        out = torch.empty_like(hidden)
        cpu.library().sluice_decoder(
            out.data_ptr(),
            hidden.data_ptr(),
            ctypes.addressof(self._struct),
            ctypes.addressof(self._cache_structs),
            kv_cache[0][0].shape[1],
            ctypes.addressof(step),
            positions.data_ptr(),
            slots.data_ptr(),
            None if aux is None else ctypes.addressof(aux),
            aux_stride,
            torch.get_num_threads(),
        )
        return out
