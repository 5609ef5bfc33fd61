"""What is to be served and how: the settings, with everything decided that they leave open."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import torch

from engine.attention.base import FP8, AttentionShape
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.models.base import ModelConfig, ModelFacts
from engine.models.config import DTYPES
from engine.models.sharding import of_rank
from engine.parallel.stage import WHOLE, Stage
from engine.runner.graphs.sized import max_checked_tokens
from engine.runner.memory import device_bytes, requested_max_model_len
from engine.runner.startup.model import read_facts
from engine.runner.states import num_default_rows, slot_bytes


@dataclass(frozen=True, slots=True)
class Target:
    """The model to serve, on which device, in which dtypes. ``resolve`` makes it."""

    config: EngineConfig
    """With the device's defaults filled in."""
    facts: ModelFacts
    asked_len: int
    """``max_model_len`` as configured, or the model's own limit; the cache may hold less."""
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    """Of the stored keys and values."""
    stage: Stage = WHOLE
    """This rank's; ``facts`` are those of the rank."""

    @property
    def attention_shape(self) -> AttentionShape:
        layout, speculative = self.facts.cache_layout, self.config.speculative_config
        num_drafts = 0 if speculative is None else speculative.num_tokens
        return AttentionShape(
            self.dtype,
            self.facts.num_heads,
            layout.num_kv_heads,
            layout.head_dim,
            self.config.block_size,
            self.config.num_seqs,
            window=self.facts.narrowest_window,
            softcap=self.facts.attention_softcap,
            has_sinks=self.facts.attention_sinks,
            kv_dtype=self.kv_dtype,
            max_num_parts=max_checked_tokens(self.config.num_seqs, num_drafts) if num_drafts else 0,
        )


def resolve(config: EngineConfig, stage: Stage = WHOLE) -> Target:
    """Read the model's config and choose device and dtypes. stage: this rank's.

    Raises ``ModelLoadError`` or ``ConfigError``.
    """
    facts = read_facts(config)
    asked_len = requested_max_model_len(config, facts)
    if isinstance(facts, ModelConfig):
        facts = of_rank(
            replace(facts, max_position_embeddings=asked_len),
            stage.group,
            whole_experts=config.enable_expert_parallel,
        )
        facts = replace(facts, stage=stage, last_stage_embeds=_drafts_embed(config))
    if facts.recurrent is not None:
        _check_with_states(config, facts)
    elif config.num_state_snapshots is not None:
        raise ConfigError(
            f"num_state_snapshots: no layer of {facts.architecture} keeps a recurrent state: leave "
            "it out"
        )
    device, asked_seqs = choose_device(config), config.max_num_seqs
    config = config.for_device(device.type, device_bytes(device))
    dtype = _dtype(config, facts, device)
    if facts.recurrent is not None and asked_seqs is None:
        size = slot_bytes(facts.recurrent, dtype)
        most = num_default_rows(config.num_seqs, size, device_bytes(device))
        config = msgspec.structs.replace(config, max_num_seqs=most)
    kv_dtype = dtype if config.kv_cache_dtype == "auto" else FP8
    return Target(config, facts, asked_len, device, dtype, kv_dtype, stage)


def _drafts_embed(config: EngineConfig) -> bool:
    """Whether a draft network may read the model's embedding."""
    return config.speculative_config is not None and config.speculative_config.method == "eagle"


def choose_device(config: EngineConfig) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise ConfigError("device is 'cuda', but torch sees no GPU here: use 'auto' or 'cpu'")
    return torch.device("cuda" if has_cuda and config.device != "cpu" else "cpu")


def _check_with_states(config: EngineConfig, model: ModelFacts) -> None:
    """Raises ``ConfigError`` for what layers with a recurrent state cannot do."""
    if config.speculative_config is not None:
        raise ConfigError(
            "speculative_config: a rejected draft would have to be taken out of the recurrent "
            f"states of {model.architecture} again, which is not possible: leave it out"
        )
    if config.swap_space:
        raise ConfigError(
            f"swap_space: the recurrent states of {model.architecture} are not copied to host "
            "memory, preempted requests are recomputed: leave it out, or set 0"
        )


def _dtype(config: EngineConfig, model: ModelFacts, device: torch.device) -> torch.dtype:
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    return torch.float32 if device.type == "cpu" else model.dtype
