"""Llama (arXiv 2302.13971, 2407.21783), and what the families after it share with it.

Module names follow the checkpoint's tensor names. A family overrides what differs: the layer, its
norm, or a method of the layer that makes one of its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol

import torch

from engine.layers.attention import AttentionConfig, SelfAttention, StepContext
from engine.layers.embedding import Embedding, rows_of_rank
from engine.layers.linear import Linear, TiedLinear
from engine.layers.mla import LatentAttention
from engine.layers.mlp import FeedForward, GatedMLP
from engine.layers.module import Module, Numbered
from engine.layers.norm import RMSNorm
from engine.layers.recurrent import Recurrence
from engine.layers.rope import cos_sin_table
from engine.layers.vision import rotary_rows
from engine.models.base import Model, ModelConfig
from engine.models.config import ConfigFile as ConfigFile
from engine.models.pooled import PoolingHead
from engine.parallel.group import Output, whole
from kernels.rounded import Activations


class Mixer(Protocol):
    """The part of a layer by which tokens see those before them."""

    @property
    def reader(self) -> Linear | None:
        """The only linear layer that reads the input; None if there are several."""
        ...

    def __call__(self, x: Activations, cos_sin: torch.Tensor, step: StepContext) -> Output:
        """[num_tokens, hidden] to [num_wanted, hidden]. cos_sin: see ``ops.rope_and_cache``."""


Layer = Callable[
    [Output, torch.Tensor | None, torch.Tensor, StepContext],
    tuple[Output, torch.Tensor],
]
"""See ``LlamaDecoderLayer.__call__``."""


class LlamaDecoderLayer(Module):
    """Attention and feed-forward block, each behind a norm and with a residual connection."""

    norm_class: ClassVar[type[RMSNorm]] = RMSNorm
    attention_class: ClassVar[type[SelfAttention]] = SelfAttention
    fused_checkpoint: ClassVar[bool] = False

    def __init__(
        self, config: ModelConfig, layer: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._dtype, self._device = dtype, device
        self.input_layernorm = self._norm(config)
        self._mixer = self._add_mixer(config, layer)
        self.post_attention_layernorm = self._norm(config)
        self._add_feed_forward(config, layer)

    def _norm(self, config: ModelConfig) -> RMSNorm:
        return self.norm_class(
            config.hidden_size, config.rms_norm_eps, dtype=self._dtype, device=self._device
        )

    def _add_mixer(self, config: ModelConfig, layer: int) -> Mixer:
        """Add what lets tokens see those before them."""
        recurrent = config.recurrent
        if recurrent is not None and layer in recurrent.layers:
            place = recurrent.layers.index(layer)
            return self._add_recurrent(config.hidden_size, recurrent.config, place)
        self.self_attn: Mixer = self._attention(config, layer)
        return self.self_attn

    def _add_recurrent(self, hidden_size: int, recurrence: Recurrence, place: int) -> Mixer:
        """Add a layer with a state. place: its number among these."""
        raise AssertionError(f"{type(self).__name__} has no layers with a state")

    def _attention(self, config: ModelConfig, layer: int) -> SelfAttention | LatentAttention:
        output_bias = config.attention_output_bias
        attention = AttentionConfig(
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            bias=config.attention_bias,
            output_bias=config.attention_bias if output_bias is None else output_bias,
            scale=config.scale,
            window=config.window(layer),
            softcap=config.attention_softcap,
            has_sinks=config.attention_sinks,
            qk_norm=self.norm_class if config.qk_norm else None,
            norm_eps=config.rms_norm_eps,
            growth=config.query_growth,
            fused_checkpoint=self.fused_checkpoint,
            group=config.group,
        )
        place = config.place_in_cache(layer)
        return self.attention_class(place, attention, dtype=self._dtype, device=self._device)

    def _add_feed_forward(self, config: ModelConfig, layer: int) -> None:
        self.mlp: FeedForward = self._dense(config)

    def _dense(self, config: ModelConfig) -> GatedMLP:
        return GatedMLP(
            config.hidden_size,
            config.intermediate_size,
            bias=config.mlp_bias,
            activation=config.activation,
            fused_checkpoint=self.fused_checkpoint,
            reduces=config.group,
            dtype=self._dtype,
            device=self._device,
        )

    def __call__(
        self,
        x: Output,
        residual: torch.Tensor | None,
        cos_sin: torch.Tensor,
        step: StepContext,
    ) -> tuple[Output, torch.Tensor]:
        """The input is ``x + residual`` (``x`` alone if ``residual`` is None), [num_tokens, hidden]
        each. Returns two tensors whose sum is the output, [num_wanted, hidden] each: so every
        addition is fused into the norm that follows. cos_sin: see ``ops.rope_and_cache``."""
        normed = self.input_layernorm.into(self._mixer.reader, x, residual)
        residual = step.kept(whole(x) if residual is None else residual)
        attended = self._mixer(normed, cos_sin, step)
        normed = self.post_attention_layernorm.into(self.feed_forward_reader, attended, residual)
        return self.feed_forward(normed), residual

    @property
    def feed_forward_reader(self) -> Linear | None:
        """The only linear layer that reads the input of ``feed_forward``; None if there are
        several."""
        return self.mlp.reader

    def feed_forward(self, x: Activations) -> Output:
        return self.mlp(x)


class LlamaModel(Module):
    """The embedding, the layers, and the final norm, as far as the stage has them."""

    embed_tokens: Embedding
    norm: RMSNorm

    def __init__(
        self,
        config: ModelConfig,
        max_model_len: int,
        layer_class: type[LlamaDecoderLayer] = LlamaDecoderLayer,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        stage = self._stage = config.stage
        here = self._numbers = stage.layers(config.num_layers)
        last_embeds = config.tie_word_embeddings or config.last_stage_embeds
        if stage.is_first or (stage.is_last and last_embeds):
            self.embed_tokens = Embedding(
                config.vocab_size,
                config.hidden_size,
                multiplier=config.embedding_multiplier,
                group=config.group,
                dtype=dtype,
                device=device,
            )
        self.layers: list[LlamaDecoderLayer] = Numbered(
            here.start, (layer_class(config, i, dtype=dtype, device=device) for i in here)
        )
        if stage.is_last:
            self.norm = layer_class.norm_class(
                config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device
            )
        sections = config.rotary_sections
        self._axes = None if sections is None else sections.axes().repeat(2).to(device)
        self._nothing = torch.empty(0, config.hidden_size, dtype=dtype, device=device)
        self.cos_sin = cos_sin_table(config.rope, config.head_dim, max_model_len, device)
        self._tables = [self.cos_sin] * len(here)
        if config.window_rope is not None:
            table = cos_sin_table(config.window_rope, config.head_dim, max_model_len, device)
            windows = [config.windows[i] for i in here]
            self._tables = [self.cos_sin if window is None else table for window in windows]

    def __call__(
        self, token_ids: torch.Tensor, step: StepContext, layers: Sequence[Layer] | None = None
    ) -> torch.Tensor:
        """As ``Model.hidden_states``. layers: what computes the layers, if not they themselves."""
        stage = self._stage
        x: Output
        residual: torch.Tensor | None = None
        if stage.is_first:
            x = self.embed_tokens(token_ids)
            if step.sight is not None:
                x = step.sight.placed(x)
        else:
            shape = len(token_ids), self._nothing.shape[1]
            x, residual = self._nothing.new_empty(shape), self._nothing.new_empty(shape)
            stage.receive((x, residual))
        last = self._numbers[-1] if stage.is_last else None
        tables, sight = self._tables, step.sight
        if sight is not None and sight.rotary is not None:
            assert self._axes is not None
            # Tokens have rows of their own, so the layers look no position up.
            rows = rotary_rows(self.cos_sin, self._axes, sight.rotary)
            tables = [rows] * len(tables)
            step = replace(step, positions=torch.arange(len(rows), device=rows.device))
        inner = replace(step, wanted=None)
        parts = zip(self._numbers, layers or self.layers, tables, strict=True)
        for index, layer, cos_sin in parts:
            if index in step.aux_hidden_states:
                target, x = step.aux_hidden_states[index], whole(x)
                target.copy_(x) if residual is None else torch.add(x, residual, out=target)
            x, residual = layer(x, residual, cos_sin, step if index == last else inner)
            if sight is not None and index != last:
                residual = sight.deepened(residual, index)
        if stage.is_last:
            return self.norm(x, residual)
        assert residual is not None, "a stage has a layer"
        stage.send((whole(x), residual))
        return residual


class ForCausalLM(Model):
    """A decoder with a language model head. Families differ in ``layer_class``."""

    layer_class: ClassVar[type[LlamaDecoderLayer]] = LlamaDecoderLayer
    lm_head: Linear | TiedLinear | PoolingHead

    def __init__(
        self,
        config: ModelConfig,
        *,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.model = LlamaModel(config, max_model_len, self.layer_class, dtype=dtype, device=device)
        self.num_layers = config.num_layers
        """Of all stages."""
        self.stage = config.stage
        if self.stage.is_last:
            self.lm_head = (
                TiedLinear(self.model.embed_tokens.weight)
                if config.tie_word_embeddings
                else Linear(
                    config.hidden_size,
                    {"": rows_of_rank(config.vocab_size, config.group)},
                    bias=False,
                    dtype=dtype,
                    device=device,
                )
            )
        self._group, self._vocab_size = config.group, config.vocab_size
        self._divisor = config.logits_divisor
        self._softcap = config.logits_softcap

    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        return self.model(token_ids, step)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if not self.stage.is_last:
            return hidden.new_empty(len(hidden), 0)
        logits = self.lm_head(hidden)
        if self._divisor != 1:
            logits = logits / self._divisor
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits if self._group.size == 1 else self._whole(logits)

    def _whole(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits of all ranks side by side, without those of padding."""
        by_rank = self._group.all_gather(logits)
        return torch.cat(tuple(by_rank), 1)[:, : self._vocab_size].contiguous()
