"""Medusa heads (arXiv 2401.10774), in the layout of their authors and in vLLM's."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import torch
from torch.nn import functional as F

from engine.errors import ModelLoadError
from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.models.base import ModelConfig
from engine.spec.checkpoint import check_ids, finish, mismatch, read_fields, read_tensors
from engine.spec.draft_network import ParallelNetwork

_FILES = (
    *("medusa_lm_head.safetensors", "medusa_lm_head.pt"),
    *("model.safetensors", "pytorch_model.bin"),
)
# Names in a checkpoint, and what they are called here.
_NAMES = (
    # the authors': head i is a sequence of blocks and, last, the language model head
    (re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)"), r"heads.\1.blocks.\2.\3"),
    (re.compile(r"(\d+)\.\d+\.weight"), r"heads.\1.lm_head.weight"),
    # vLLM's
    (re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)"), r"heads.\1.blocks.\2.\3"),
    (re.compile(r"lm_heads\.(\d+)\.weight"), r"heads.\1.lm_head.weight"),
)


class _Fields(msgspec.Struct):
    """The fields of config.json in both layouts. (``token_map`` tells the size of a truncated
    vocabulary.)"""

    medusa_num_heads: int | None = None
    medusa_num_layers: int | None = None
    num_heads: int | None = None
    num_hidden_layers: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    original_lm_head: bool = False


class MedusaHead(Module):
    """Residual blocks, ``x + silu(W x)``, and a language model head."""

    def __init__(
        self,
        hidden_size: int,
        num_layers: int,
        num_tokens: int,
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.blocks = [
            Linear(hidden_size, {"": hidden_size}, bias=bias, dtype=dtype, device=device)
            for _ in range(num_layers)
        ]
        self.lm_head = Linear(hidden_size, {"": num_tokens}, bias=False, dtype=dtype, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + F.silu(block(x))
        return self.lm_head(x)


class MedusaHeads(ParallelNetwork):
    def __init__(
        self, heads: list[MedusaHead], config: ModelConfig, token_map: torch.Tensor | None
    ) -> None:
        """token_map: [num_tokens] int64, the target's id of each token of the heads; None: all."""
        self.heads = heads
        self.num_heads = len(heads)
        self.feature_size = config.hidden_size
        self._vocab_size = config.vocab_size
        self._token_map = token_map

    def all_logits(self, features: torch.Tensor) -> list[torch.Tensor]:
        return [self._everywhere(head(features)) for head in self.heads]

    def _everywhere(self, logits: torch.Tensor) -> torch.Tensor:
        if self._token_map is None:
            return logits
        everywhere = logits.new_full((len(logits), self._vocab_size), float("-inf"))
        return everywhere.index_copy_(1, self._token_map, logits)


def load_medusa(
    folder: Path,
    target_config: ModelConfig,
    *,
    dummy: bool = False,
    dtype: torch.dtype,
    device: torch.device,
) -> MedusaHeads:
    """``dummy`` draws the weights. Raises ``ModelLoadError`` naming what does not fit."""
    fields = read_fields(folder, _Fields)
    if fields.original_lm_head:
        raise ModelLoadError(f"{folder}/config.json: original_lm_head: not supported")
    num_heads = fields.medusa_num_heads or fields.num_heads
    num_layers = fields.medusa_num_layers or fields.num_hidden_layers
    if num_heads is None or num_layers is None:
        raise ModelLoadError(
            f"{folder}/config.json lacks medusa_num_heads and medusa_num_layers"
            " (or num_heads and num_hidden_layers)"
        )
    for name in ("hidden_size", "vocab_size"):
        value, expected = getattr(fields, name), getattr(target_config, name)
        if value is not None and value != expected:
            raise mismatch(folder, name, value, expected)
    tensors: dict[str, torch.Tensor] = {}
    if not dummy:
        tensors = {_renamed(name): t for name, t in read_tensors(folder, _FILES).items()}
    token_map = tensors.pop("token_map", None)
    num_tokens = target_config.vocab_size
    if token_map is not None:
        num_tokens = len(token_map)
        check_ids(folder, "token_map", token_map, target_config.vocab_size)
    heads = MedusaHeads(
        [
            MedusaHead(
                target_config.hidden_size,
                num_layers,
                num_tokens,
                bias="heads.0.blocks.0.bias" in tensors,
                dtype=dtype,
                device=device,
            )
            for _ in range(num_heads)
        ],
        target_config,
        None if token_map is None else token_map.long().to(device),
    )
    finish(heads, tensors, folder, dummy=dummy)
    return heads


def _renamed(name: str) -> str:
    name = name.removeprefix("medusa_head.")
    for pattern, ours in _NAMES:
        if pattern.fullmatch(name):
            return pattern.sub(ours, name)
    return name
