"""The interface of models to the runner, and the checked config that a model is built from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from engine.attention.base import KVScales
from engine.layers.attention import QueryGrowth, SelfAttention, StepContext
from engine.layers.mla import LatentAttention, MLAConfig
from engine.layers.module import Module
from engine.layers.moe import RouterConfig
from engine.layers.recurrent import Recurrence
from engine.layers.rope import RopeConfig
from engine.layers.vision import RotarySections
from engine.parallel.group import ALONE, Group
from engine.parallel.stage import WHOLE, Stage
from engine.vision import Vision


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The shape of what each token stores in the KV cache of every layer."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    is_latent: bool = False
    """Keys and values are the same tensor."""
    stored: range | None = None
    """The layers that this rank stores; None: all."""

    @property
    def num_tensors(self) -> int:
        return 1 if self.is_latent else 2

    @property
    def num_stored(self) -> int:
        return self.num_layers if self.stored is None else len(self.stored)


@dataclass(frozen=True, slots=True)
class RecurrentLayers:
    """The layers of a model that keep a state in place of keys and values."""

    layers: tuple[int, ...]
    """Their indices, ascending."""
    config: Recurrence


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """The mixture of experts of a model's layers."""

    router: RouterConfig
    intermediate_size: int
    """Width of one expert."""
    dense_layers: frozenset[int] = frozenset()
    """Layers that have a plain feed-forward block instead."""
    shared_size: int | None = None
    """Width of the block that every token goes through beside its experts."""
    swiglu: tuple[float, float] | None = None
    """Slope and limit of gpt-oss's activation, see ``BiasedSwiglu``."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a native model is built from: the fields of a checkpoint's config.json, checked, and
    with the same names for all families."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """With latent attention, the rotated part only."""
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_bias: bool
    """Whether the query, key and value projections have one; see ``attention_output_bias``."""
    mlp_bias: bool
    dtype: torch.dtype
    """The checkpoint's own."""
    eos_token_ids: frozenset[int]

    # What most families leave at its default.
    attention_output_bias: bool | None = None
    """None: the same as ``attention_bias``."""
    activation: str = "silu"
    attention_scale: float | None = None
    """None means head_dim ** -0.5."""
    attention_softcap: float | None = None
    attention_sinks: bool = False
    """Each head has a learned score that takes part in its softmax and has no value."""
    qk_norm: bool = False
    """Whether each head of queries and keys is normalized before the rotation."""
    query_growth: QueryGrowth | None = None
    logits_softcap: float | None = None
    vision: Vision | None = None
    """How it sees; None if it does not."""
    rotary_sections: RotarySections | None = None
    """Of a model that sees and rotates by rows and columns."""
    windows: tuple[int | None, ...] = ()
    """Sliding window of each layer; empty if no layer has one."""
    window_rope: RopeConfig | None = None
    """Rotary embedding of the layers with a window; None: ``rope``."""
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    """Factor on what each block of a layer adds to its input."""
    logits_divisor: float = 1.0
    moe: MoEConfig | None = None
    mla: MLAConfig | None = None
    recurrent: RecurrentLayers | None = None
    group: Group = ALONE
    """The ranks that share the model. The numbers of heads and the widths of feed-forward blocks
    are those of one rank, see ``sharding.of_rank``; everything else is the checkpoint's."""
    stage: Stage = WHOLE
    """Which of the layers this rank has."""
    last_stage_embeds: bool = False
    """The last stage has the embedding, too: a draft network reads it."""

    @property
    def scale(self) -> float:
        """The factor on attention scores."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers with keys and values."""
        others = () if self.recurrent is None else self.recurrent.layers
        return tuple(layer for layer in range(self.num_layers) if layer not in others)

    def place_in_cache(self, layer: int) -> int:
        """A layer's number among those with keys and values."""
        others = () if self.recurrent is None else self.recurrent.layers
        return layer - sum(other < layer for other in others)

    @property
    def cache_layout(self) -> CacheLayout:
        num_layers = len(self.attention_layers)
        stored = None if self.stage.count == 1 else self.stage.layers(num_layers)
        if self.mla is not None:
            return CacheLayout(num_layers, 1, self.mla.cached_dim, is_latent=True, stored=stored)
        return CacheLayout(num_layers, self.num_kv_heads, self.head_dim, stored=stored)

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        return tuple(self.window(layer) for layer in self.attention_layers)

    @property
    def narrowest_window(self) -> int | None:
        windows = (window for window in self.layer_windows if window is not None)
        return min(windows, default=None)

    def window(self, layer: int) -> int | None:
        """The window of a layer; None also if no sequence can be longer than the window."""
        window = self.windows[layer] if self.windows else None
        return None if window is None or window >= self.max_position_embeddings else window


class ModelFacts(Protocol):
    """What the runner needs to know about a model, native or run by transformers."""

    @property
    def architecture(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def max_position_embeddings(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype:
        """The checkpoint's own."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...
    @property
    def cache_layout(self) -> CacheLayout: ...
    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """Of each layer of the KV cache."""
        ...

    @property
    def vision(self) -> Vision | None: ...
    @property
    def recurrent(self) -> RecurrentLayers | None: ...
    @property
    def narrowest_window(self) -> int | None: ...
    @property
    def attention_softcap(self) -> float | None: ...
    @property
    def attention_sinks(self) -> bool: ...


class Model(Module, ABC):
    """A decoder."""

    is_capturable: bool = True
    """Whether its steps can be captured in CUDA graphs: the host never waits for a result."""

    @abstractmethod
    def __init__(
        self,
        config: ModelConfig,
        *,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Create the weights without values."""

    def place_of(self, name: str) -> str | None:
        """The name of the parameter that the checkpoint's tensor ``name`` belongs to; None if it is
        not needed."""
        return name

    def set_kv_scales(self, scales: Sequence[KVScales]) -> None:
        """From now on store keys and values in FP8, with these scales for each layer."""
        for module in self.modules():
            if isinstance(module, SelfAttention | LatentAttention):
                module.options = replace(module.options, kv_scales=scales[module.layer])

    @abstractmethod
    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        """The hidden states after the last layer and the final norm, for the wanted tokens of the
        step (``StepContext.wanted``): [num_wanted, hidden]. token_ids: [num_tokens] int64.

        Of another stage than the last: something with a row for each token."""

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits in the model's dtype: [num_rows, vocab]; on another stage than the last
        [num_rows, 0]. hidden: [num_rows, hidden]."""


def place_in_text_model(name: str) -> str | None:
    """``Model.place_of`` of models that checkpoints with pictures wrap, under one of two names."""
    other_parts = ("vision_tower.", "multi_modal_projector.", "visual.")
    if name.removeprefix("model.").startswith(other_parts):
        return None
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return name.removeprefix("language_model.")
