"""EAGLE (arXiv 2401.15077) and EAGLE-3 (arXiv 2503.01840) heads in their published layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import msgspec
import torch

from engine.errors import ModelLoadError
from engine.layers.attention import SelfAttention, StepContext
from engine.layers.embedding import Embedding
from engine.layers.linear import Linear
from engine.layers.norm import RMSNorm
from engine.layers.rope import cos_sin_table
from engine.models.base import ModelConfig
from engine.models.config import ConfigFile, read_config
from engine.models.llama import ForCausalLM, LlamaDecoderLayer
from engine.parallel.group import Output, whole
from engine.spec.checkpoint import check_ids, finish, mismatch, read_fields, read_tensors
from engine.spec.draft_network import ChainNetwork

_FILES = ("model.safetensors", "pytorch_model.bin")


class _EagleConfig(msgspec.Struct):
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    use_aux_hidden_state: bool = True


class _Where(TypedDict):
    """Of weights."""

    dtype: torch.dtype
    device: torch.device


class _Fields(msgspec.Struct):
    """What config.json says beyond a decoder's fields."""

    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    eagle_config: _EagleConfig = msgspec.field(default_factory=_EagleConfig)


@dataclass(frozen=True, slots=True)
class _Blueprint:
    """What a head of either kind is built from."""

    folder: Path
    config: ModelConfig
    """Its own."""
    tensors: Mapping[str, torch.Tensor]
    """Of the checkpoint; none where the weights are drawn."""
    target: ForCausalLM
    target_config: ModelConfig
    max_model_len: int
    dtype: torch.dtype
    device: torch.device
    dummy: bool

    @property
    def where(self) -> _Where:
        return {"dtype": self.dtype, "device": self.device}


class _EagleBase(ChainNetwork):
    """The embedding, the target's unless the checkpoint has its own, and the rotation table."""

    def __init__(self, blueprint: _Blueprint) -> None:
        config = self.config = blueprint.config
        self._target = blueprint.target
        self.feature_size = config.hidden_size
        self.embed_tokens: Embedding | None = None
        if "embed_tokens.weight" in blueprint.tensors:
            self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, **blueprint.where)
        self._cos_sin = cos_sin_table(
            config.rope, config.head_dim, blueprint.max_model_len, blueprint.device
        )

    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return (self.embed_tokens or self._target.model.embed_tokens)(token_ids)


class _FirstEagleLayer(LlamaDecoderLayer):
    """Without a norm before attention."""

    def __init__(
        self, config: ModelConfig, layer: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(config, layer, dtype=dtype, device=device)
        del self.input_layernorm

    def __call__(
        self,
        x: Output,
        residual: torch.Tensor | None,
        cos_sin: torch.Tensor,
        step: StepContext,
    ) -> tuple[Output, torch.Tensor]:
        x = whole(x)
        residual = x.clone()
        attended = self.self_attn(x, cos_sin, step)
        return self.feed_forward(self.post_attention_layernorm(attended, residual)), residual


class EagleHead(_EagleBase):
    """EAGLE-1 and -2: the feature is the target's last hidden state, and so is what the head
    returns; the target's own language model head reads both."""

    def __init__(self, blueprint: _Blueprint) -> None:
        super().__init__(blueprint)
        hidden, where = self.config.hidden_size, blueprint.where
        has_bias = "fc.bias" in blueprint.tensors
        self.fc = Linear(2 * hidden, {"": hidden}, bias=has_bias, **where)
        classes = [_FirstEagleLayer] + [LlamaDecoderLayer] * (self.config.num_layers - 1)
        self.layers = [layer(self.config, index, **where) for index, layer in enumerate(classes)]

    def hidden_states(
        self, token_ids: torch.Tensor, features: torch.Tensor, step: StepContext
    ) -> torch.Tensor:
        x: Output = self.fc(torch.cat((self._embed(token_ids), features), -1))
        residual: torch.Tensor | None = None
        for layer in self.layers:
            x, residual = layer(x, residual, self._cos_sin, step)
        assert residual is not None
        return residual + whole(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._target.logits(hidden)


class _MidLayer(LlamaDecoderLayer):
    """Attends over embedding and feature side by side, each normed."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        norm_before_residual: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(config, 0, dtype=dtype, device=device)
        self.hidden_norm = self._norm(config)
        self._norm_before_residual = norm_before_residual
        assert isinstance(self.self_attn, SelfAttention)
        kv_size = config.num_kv_heads * config.head_dim
        self.self_attn.qkv_proj = Linear(
            2 * config.hidden_size,
            {"q_proj": config.num_heads * config.head_dim, "k_proj": kv_size, "v_proj": kv_size},
            bias=config.attention_bias,
            dtype=dtype,
            device=device,
        )

    def attend(
        self, embeds: torch.Tensor, features: torch.Tensor, cos_sin: torch.Tensor, step: StepContext
    ) -> torch.Tensor:
        normed = self.hidden_norm(features)
        residual = normed.clone() if self._norm_before_residual else features.clone()
        both = torch.cat((self.input_layernorm(embeds), normed), -1)
        attended = self.self_attn(both, cos_sin, step)
        fed = self.feed_forward(self.post_attention_layernorm(attended, residual))
        return whole(fed) + residual


class Eagle3Head(_EagleBase):
    """The feature is three of the target's hidden states through ``fc``; the head has a language
    model head of its own over the commonest tokens, and feeds back what it has not normed yet."""

    def __init__(self, blueprint: _Blueprint, fields: _Fields) -> None:
        super().__init__(blueprint)
        config, where = self.config, blueprint.where
        hidden, target_hidden = config.hidden_size, blueprint.target_config.hidden_size
        self.aux_layers = _aux_layers(blueprint, fields)
        self.aux_size = target_hidden
        joined_size = len(self.aux_layers) * target_hidden
        draft_ids = _draft_ids(blueprint, fields)
        self.fc = Linear(joined_size, {"": hidden}, bias=False, **where)
        self.midlayer = _MidLayer(config, norm_before_residual=fields.norm_before_residual, **where)
        self.norm = RMSNorm(hidden, config.rms_norm_eps, **where)
        self.lm_head = Linear(hidden, {"": len(draft_ids)}, bias=False, **where)
        self._draft_ids = draft_ids.to(blueprint.device)
        """[draft_vocab_size] int64: the target's id of each token of the head."""
        self._vocab_size = blueprint.target_config.vocab_size

    def feature(self, source: torch.Tensor) -> torch.Tensor:
        return self.fc(source)

    def hidden_states(
        self, token_ids: torch.Tensor, features: torch.Tensor, step: StepContext
    ) -> torch.Tensor:
        return self.midlayer.attend(self._embed(token_ids), features, self._cos_sin, step)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        drafted = self.lm_head(self.norm(hidden))
        everywhere = drafted.new_full((len(drafted), self._vocab_size), float("-inf"))
        return everywhere.index_copy_(1, self._draft_ids, drafted)


def load_eagle(
    folder: Path,
    target: ForCausalLM,
    target_config: ModelConfig,
    *,
    dummy: bool = False,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
) -> EagleHead:
    """``dummy`` draws the weights. Raises ``ModelLoadError`` naming what does not fit."""
    config = _read_config(folder, target_config)
    tensors = {} if dummy else read_tensors(folder, _FILES)
    blueprint = _Blueprint(
        folder, config, tensors, target, target_config, max_model_len, dtype, device, dummy
    )
    if config.hidden_size != target_config.hidden_size:
        raise mismatch(folder, "hidden_size", config.hidden_size, target_config.hidden_size)
    head = EagleHead(blueprint)
    finish(head, tensors, folder, lambda name: name == "lm_head.weight", dummy=dummy)
    return head


def load_eagle3(
    folder: Path,
    target: ForCausalLM,
    target_config: ModelConfig,
    *,
    dummy: bool = False,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Eagle3Head:
    """``dummy`` draws the weights. Raises ``ModelLoadError`` naming what does not fit."""
    fields = read_fields(folder, _Fields)
    for name in ("norm_before_fc", "fc_norm", "norm_output"):
        if getattr(fields, name):
            raise ModelLoadError(f"{folder}/config.json: {name}: not supported")
    config = _read_config(folder, target_config)
    tensors = {} if dummy else read_tensors(folder, _FILES)
    blueprint = _Blueprint(
        folder, config, tensors, target, target_config, max_model_len, dtype, device, dummy
    )
    if config.num_layers != 1:
        raise ModelLoadError(f"{folder}/config.json: num_hidden_layers: only 1 is supported")
    target_size = fields.target_hidden_size or config.hidden_size
    if target_size != target_config.hidden_size:
        raise mismatch(folder, "target_hidden_size", target_size, target_config.hidden_size)
    head = Eagle3Head(blueprint, fields)
    if head.embed_tokens is None and config.hidden_size != target_config.hidden_size:
        raise mismatch(folder, "hidden_size", config.hidden_size, target_config.hidden_size)
    finish(head, tensors, folder, lambda name: name in ("d2t", "t2d"), dummy=dummy)
    return head


def _read_config(folder: Path, target: ModelConfig) -> ModelConfig:
    config = read_config(folder, ConfigFile)
    if config.vocab_size != target.vocab_size:
        raise mismatch(folder, "vocab_size", config.vocab_size, target.vocab_size)
    return config


def _aux_layers(blueprint: _Blueprint, fields: _Fields) -> tuple[int, ...]:
    """Unless the config names others: the inputs of layers 2, n // 2 and n - 3."""
    folder, num_layers = blueprint.folder, blueprint.target_config.num_layers
    if not fields.eagle_config.use_aux_hidden_state:
        raise ModelLoadError(f"{folder}/config.json: use_aux_hidden_state: only true is supported")
    layers = fields.eagle_config.eagle_aux_hidden_state_layer_ids
    if layers is None:
        layers = [2, num_layers // 2, num_layers - 3]
    if not layers or min(layers) < 0 or max(layers) >= num_layers:
        raise mismatch(
            folder,
            "one of the layers of auxiliary hidden states",
            layers,
            f"only 0 to {num_layers - 1}",
        )
    return tuple(layers)


def _draft_ids(blueprint: _Blueprint, fields: _Fields) -> torch.Tensor:
    """``d2t`` holds offsets: token i of the head is the target's token i + d2t[i]."""
    folder, tensors = blueprint.folder, blueprint.tensors
    vocab_size = blueprint.target_config.vocab_size
    size = fields.draft_vocab_size or vocab_size
    ids = torch.arange(size)
    if "d2t" in tensors:
        if tensors["d2t"].shape != (size,):
            shape = list(tensors["d2t"].shape)
            raise ModelLoadError(f"{folder}: d2t has shape {shape}, draft_vocab_size is {size}")
        ids = ids + tensors["d2t"].long()
    elif size != vocab_size and not blueprint.dummy:
        raise ModelLoadError(f"{folder} lacks tensor 'd2t', although draft_vocab_size is {size}")
    check_ids(folder, "d2t", ids, vocab_size)
    return ids
