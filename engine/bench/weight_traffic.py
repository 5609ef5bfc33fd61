"""How many bytes of weights a decode step must read: with a GPU's memory bandwidth, its limit."""

from __future__ import annotations

import torch

from engine.layers.linear import Linear, TiedLinear
from engine.layers.mla import UpProjection
from engine.layers.moe import ExpertLinear, Router
from engine.models.base import Model, ModelConfig
from engine.models.registry import create_model


def step_bytes(config: ModelConfig, batch: int) -> float:
    """Of a step of ``batch`` sequences, in the checkpoint's own dtype. A mixture's experts count as
    often as they are chosen by at least one of the tokens, if each chooses by chance.

    Keys and values, and the embedding's few rows, are not counted.
    """
    meta = torch.device("meta")
    model = create_model(config, max_model_len=16, dtype=config.dtype, device=meta)
    return _num_weights(model, config, batch) * config.dtype.itemsize


def _num_weights(model: Model, config: ModelConfig, batch: int) -> float:
    total = 0.0
    for module in model.modules():
        match module:
            case ExpertLinear():
                assert config.moe is not None
                router = config.moe.router
                idle = (1 - router.top_k / router.num_experts) ** batch
                total += module.weight.data.numel() * (1 - idle)
            case Linear() | TiedLinear() | UpProjection() | Router():
                total += module.weight.data.numel()
    return total
