"""A small Qwen3-VL to train, by the names of its checkpoints; a test holds it to transformers'.

All pictures of a call have one size, which makes the encoder a plain transformer over a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

PATCH, MERGE = 8, 2
SIDE = PATCH * MERGE
"""An image token stands for a square of so many pixels a side."""
FEWEST, MOST = 96 * 96, 128 * 128
"""Pixels of a picture."""
MAX_LENGTH = 1024
_THETA = 10000.0
_EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    hidden: int = 192
    inner: int = 512
    layers: int = 4
    heads: int = 6
    kv_heads: int = 3
    vision_hidden: int = 192
    vision_inner: int = 768
    vision_layers: int = 5
    vision_heads: int = 6
    deepstack: tuple[int, ...] = (2,)
    grid: int = 16
    """Of learned positions, on each side."""

    @property
    def head_dim(self) -> int:
        return 32

    @property
    def sections(self) -> list[int]:
        """Pairs of dimensions that turn by frame, row and column."""
        return [6, 5, 5]


SHAPES = {
    "demo": Shape(),
    "tiny": Shape(64, 96, 2, 2, 1, 64, 96, 2, 2, (0,), 16),
}


def config(shape: Shape, tokens: dict[str, int], vocab_size: int) -> dict[str, Any]:
    """config.json. tokens: ids by the names of its fields."""
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "dtype": "bfloat16",
        "image_token_id": tokens["image"],
        "video_token_id": tokens["video"],
        "vision_start_token_id": tokens["start"],
        "vision_end_token_id": tokens["end"],
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "vocab_size": vocab_size,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.inner,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": MAX_LENGTH,
            "rms_norm_eps": _EPS,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
            "eos_token_id": tokens["turn_end"],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": _THETA,
                "mrope_section": shape.sections,
                "mrope_interleaved": True,
            },
        },
        "vision_config": {
            "model_type": "qwen3_vl_vision",
            "depth": shape.vision_layers,
            "hidden_size": shape.vision_hidden,
            "hidden_act": "gelu_pytorch_tanh",
            "intermediate_size": shape.vision_inner,
            "num_heads": shape.vision_heads,
            "in_channels": 3,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "out_hidden_size": shape.hidden,
            "num_position_embeddings": shape.grid**2,
            "deepstack_visual_indexes": list(shape.deepstack),
            "dtype": "bfloat16",
        },
    }


def positions(
    token_ids: Sequence[int], image_token: int, grid: tuple[int, int]
) -> npt.NDArray[np.int64]:
    """[3, tokens]: frame, row and column of each. grid: rows and columns of image tokens of each
    picture."""
    found, at, place = [], 0, 0
    while at < len(token_ids):
        if token_ids[at] != image_token:
            found.append((place, place, place))
            at, place = at + 1, place + 1
            continue
        rows, columns = grid
        found += [(place, place + r, place + c) for r in range(rows) for c in range(columns)]
        at, place = at + rows * columns, place + max(rows, columns)
    return np.array(found, np.int64).T


def _turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """x: [..., tokens, head_dim]; angles: [..., tokens, head_dim / 2]."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def _linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias)


class VisionAttention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.vision_heads
        self.qkv = _linear(shape.vision_hidden, 3 * shape.vision_hidden)
        self.proj = _linear(shape.vision_hidden, shape.vision_hidden)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(_turned(q, angles), _turned(k, angles), v)
        found: torch.Tensor = self.proj(out.transpose(1, 2).flatten(2))
        return found


class FeedForward(nn.Module):
    def __init__(self, size: int, inner: int, out: int, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate
        self.linear_fc1, self.linear_fc2 = _linear(size, inner), _linear(inner, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear_fc2(
            F.gelu(self.linear_fc1(x), approximate=self.approximate)
        )
        return found


class VisionBlock(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        size = shape.vision_hidden
        self.norm1, self.norm2 = nn.LayerNorm(size, _EPS), nn.LayerNorm(size, _EPS)
        self.attn = VisionAttention(shape)
        self.mlp = FeedForward(size, shape.vision_inner, size, "tanh")

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), angles)
        found: torch.Tensor = x + self.mlp(self.norm2(x))
        return found


class Merger(FeedForward):
    def __init__(self, shape: Shape, *, norms_merged: bool) -> None:
        merged = shape.vision_hidden * MERGE**2
        super().__init__(merged, merged, shape.hidden, "none")
        self.norms_merged = norms_merged
        self.norm = nn.LayerNorm(merged if norms_merged else shape.vision_hidden, _EPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, hidden] of [batch, patches, vision_hidden]."""
        merged = x.view(len(x), -1, MERGE**2, x.shape[2])
        normed = self.norm(merged.flatten(2)) if self.norms_merged else self.norm(merged).flatten(2)
        return super().forward(normed)


class PatchEmbed(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Conv3d(3, size, (2, PATCH, PATCH), (2, PATCH, PATCH))

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """patches: [batch, patches, 3 * PATCH ** 2], a picture without its copy as a second
        frame."""
        weight = self.proj.weight.sum(2).flatten(1)
        return F.linear(patches, weight, self.proj.bias)


class Vision(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.patch_embed = PatchEmbed(shape.vision_hidden)
        self.pos_embed = nn.Embedding(shape.grid**2, shape.vision_hidden)
        self.blocks = nn.ModuleList(VisionBlock(shape) for _ in range(shape.vision_layers))
        self.merger = Merger(shape, norms_merged=False)
        self.deepstack_merger_list = nn.ModuleList(
            Merger(shape, norms_merged=True) for _ in shape.deepstack
        )

    def forward(self, pictures: torch.Tensor) -> list[torch.Tensor]:
        """[batch, tokens, hidden]: embeddings, and what is added behind the first layers. pictures:
        [batch, height, width, 3] uint8."""
        batch, height, width, _ = pictures.shape
        rows, columns = height // PATCH, width // PATCH
        cut = pictures.view(batch, rows, PATCH, columns, PATCH, 3).permute(0, 1, 3, 5, 2, 4)
        x = self.patch_embed(_by_token(cut.flatten(3)).float() / 127.5 - 1)
        place = torch.arange(rows * columns, device=x.device).view(1, rows, columns)
        place = _by_token(place)[0]
        x = x + self._learned(rows, columns)[place]
        half = self.shape.vision_hidden // self.shape.vision_heads // 2
        turns = _THETA ** -(torch.arange(0, half, 2, device=x.device) / half)
        angles = torch.cat([(p[:, None] * turns) for p in (place // columns, place % columns)], 1)
        deepstack: list[torch.Tensor] = []
        for number, block in enumerate(self.blocks):
            x = block(x, angles)
            if number in self.shape.deepstack:
                deepstack.append(self.deepstack_merger_list[len(deepstack)](x))
        return [self.merger(x), *deepstack]

    def _learned(self, rows: int, columns: int) -> torch.Tensor:
        """[rows * columns, vision_hidden]: the learned grid, stretched over a picture."""
        side = self.shape.grid
        grid = self.pos_embed.weight.view(1, side, side, -1).permute(0, 3, 1, 2)
        stretched = F.interpolate(grid, (rows, columns), mode="bilinear", align_corners=True)
        return stretched[0].flatten(1).T


def _by_token(x: torch.Tensor) -> torch.Tensor:
    """[batch, rows * columns, ...], the patches of a token next to each other, of [batch, rows,
    columns, ...]."""
    batch, rows, columns, *rest = x.shape
    squares = x.reshape(batch, rows // MERGE, MERGE, columns // MERGE, MERGE, *rest)
    return squares.transpose(2, 3).flatten(1, 4)


class TextAttention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, dim = shape, shape.head_dim
        self.q_proj = _linear(shape.hidden, shape.heads * dim, bias=False)
        self.k_proj = _linear(shape.hidden, shape.kv_heads * dim, bias=False)
        self.v_proj = _linear(shape.hidden, shape.kv_heads * dim, bias=False)
        self.o_proj = _linear(shape.heads * dim, shape.hidden, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(dim, _EPS), nn.RMSNorm(dim, _EPS)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        split = (-1, self.shape.head_dim)
        q, k, v = (
            project(x).unflatten(-1, split) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2)
        q, k, v = _turned(q, angles), _turned(k, angles), v.transpose(1, 2)
        k, v = (t.repeat_interleave(self.shape.heads // self.shape.kv_heads, 1) for t in (k, v))
        out = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        found: torch.Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return found


class TextMLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = _linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = _linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = _linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return found


class TextLayer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, _EPS)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, _EPS)
        self.self_attn, self.mlp = TextAttention(shape), TextMLP(shape)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), angles)
        found: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return found


class Text(nn.Module):
    def __init__(self, shape: Shape, vocab_size: int) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(vocab_size, shape.hidden)
        self.layers = nn.ModuleList(TextLayer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, _EPS)

    def angles(self, places: torch.Tensor) -> torch.Tensor:
        """[batch, 1, tokens, head_dim / 2]. places: [batch, 3, tokens]."""
        dim = self.shape.head_dim
        turns = _THETA ** -(torch.arange(0, dim, 2, device=places.device) / dim)
        pair = torch.arange(dim // 2, device=places.device)
        sections = torch.tensor(self.shape.sections, device=places.device)
        axis = torch.where(pair < 3 * sections[pair % 3], pair % 3, 0)
        return (places[:, axis].transpose(1, 2) * turns).unsqueeze(1)


class Network(nn.Module):
    """[batch, tokens, hidden] behind the last norm; ``logits`` of some of them."""

    def __init__(self, shape: Shape, vocab_size: int, image_token: int) -> None:
        super().__init__()
        self.shape = shape
        self.model = nn.Module()
        self.model.visual = Vision(shape)
        self.model.language_model = Text(shape, vocab_size)
        self.image_token = image_token
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, 0, 0.02)
            if isinstance(module, nn.Linear | nn.Conv3d):
                nn.init.normal_(module.weight, 0, module.weight[0].numel() ** -0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def see(self, pictures: torch.Tensor) -> list[torch.Tensor]:
        """As ``Vision``."""
        found: list[torch.Tensor] = self.model.visual(pictures)  # type: ignore[operator]
        return found

    def forward(
        self, token_ids: torch.Tensor, places: torch.Tensor, seen: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """token_ids: [batch, tokens]; places: [batch, 3, tokens]; seen: of the pictures of all
        chats, in order, from ``see``; empty if there is none."""
        text = self.model.language_model
        assert isinstance(text, Text)
        x = text.embed_tokens(token_ids)
        is_image = (token_ids == self.image_token).unsqueeze(-1)
        if seen:
            x = x.masked_scatter(is_image, seen[0].to(x.dtype))
        angles = text.angles(places)
        for number, layer in enumerate(text.layers, 1):
            x = layer(x, angles)
            if number < len(seen):
                added = torch.zeros_like(x).masked_scatter(is_image, seen[number].to(x.dtype))
                x = x + added
        found: torch.Tensor = text.norm(x)
        return found

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        text = self.model.language_model
        assert isinstance(text, Text)
        return F.linear(hidden, text.embed_tokens.weight)
