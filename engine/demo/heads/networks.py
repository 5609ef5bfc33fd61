"""The draft heads as they are trained. Parameter names are those of the published checkpoints.

At position p, an EAGLE head reads the embedding of token p and the target's feature of token p - 1
(zeros for the first token), and predicts what the target predicts at p. When it drafts further, its
own output replaces features that are not known yet. Training unrolls that, as EAGLE-3 does
("training-time test", arXiv:2503.01840): the features that pass i reads have gone through the head
i times. It attends to keys of pass 0 that were computed from true features, and to one key of each
later pass::

    pass 2 at p:   keys of pass 0 at 0 .. p-2,   of pass 1 at p-1,   of pass 2 at p
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

_NEG_INF = float("-inf")


@dataclass(frozen=True)
class Shape:
    """The dimensions that a head has in common with the target."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    eps: float


@dataclass
class Pass:
    """Keys and values of one pass: [batch, heads, length, head_dim]."""

    keys: torch.Tensor
    values: torch.Tensor


class Attention(nn.Module):
    def __init__(self, shape: Shape, in_features: int) -> None:
        super().__init__()
        self.shape = shape
        q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(in_features, q_size, bias=False)
        self.k_proj = nn.Linear(in_features, kv_size, bias=False)
        self.v_proj = nn.Linear(in_features, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, shape.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, passes: list[Pass]) -> torch.Tensor:
        """x: [batch, length, in_features]. Appends the keys of this pass to ``passes``."""
        batch, length, _ = x.shape
        q, k, v = (
            projection(x).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = _cos_sin(length, self.shape, x.device)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        groups = self.shape.num_heads // self.shape.num_kv_heads
        passes.append(Pass(k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)))
        attended = attend(q, passes)
        out: torch.Tensor = self.o_proj(attended.transpose(1, 2).reshape(batch, length, -1))
        return out


def attend(q: torch.Tensor, passes: list[Pass]) -> torch.Tensor:
    """Attention of the last pass: [batch, heads, length, head_dim]."""
    scale, length, own = q.shape[-1] ** -0.5, q.shape[2], len(passes) - 1
    place = torch.arange(length, device=q.device)
    scores = q @ passes[0].keys.transpose(-1, -2) * scale
    scores = scores.masked_fill(place[None, :] > place[:, None] - own, _NEG_INF)
    columns = [scores]
    for index in range(1, own + 1):
        keys = shift(passes[index].keys, own - index)
        score = (q * keys).sum(-1, keepdim=True) * scale
        if index < own:
            score = score.masked_fill((place < own - index)[:, None], _NEG_INF)
        columns.append(score)
    weights = torch.cat(columns, -1).float().softmax(-1).to(q.dtype)
    out = weights[..., :length] @ passes[0].values
    for index in range(1, own + 1):
        column = weights[..., length + index - 1 : length + index]
        out = out + column * shift(passes[index].values, own - index)
    return out


def shift(x: torch.Tensor, places: int) -> torch.Tensor:
    """Shift along the last dimension but one, towards later positions, filling with zeros."""
    if places == 0:
        return x
    return F.pad(x, (0, 0, places, 0))[..., : x.shape[-2], :]


def _cos_sin(length: int, shape: Shape, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    exponents = torch.arange(0, shape.head_dim, 2, device=device) / shape.head_dim
    angles = torch.arange(length, device=device)[:, None] * shape.rope_theta**-exponents
    return angles.cos(), angles.sin()


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, -1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return turned.to(x.dtype)


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Eagle3Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.hidden_norm = nn.RMSNorm(shape.hidden_size, shape.eps)
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.eps)
        self.self_attn = Attention(shape, 2 * shape.hidden_size)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.eps)
        self.mlp = MLP(shape)

    def forward(
        self, embeds: torch.Tensor, hidden: torch.Tensor, passes: list[Pass]
    ) -> torch.Tensor:
        both = torch.cat((self.input_layernorm(embeds), self.hidden_norm(hidden)), -1)
        hidden = hidden + self.self_attn(both, passes)
        out: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Eagle3(nn.Module):
    """``fc``, ``midlayer``, ``norm``, ``lm_head`` and the offsets ``d2t`` of its vocabulary."""

    def __init__(self, shape: Shape, draft_ids: torch.Tensor, vocab_size: int) -> None:
        """draft_ids: the tokens that the head can draft, ascending."""
        super().__init__()
        self.fc = nn.Linear(3 * shape.hidden_size, shape.hidden_size, bias=False)
        self.midlayer = Eagle3Layer(shape)
        self.norm = nn.RMSNorm(shape.hidden_size, shape.eps)
        self.lm_head = nn.Linear(shape.hidden_size, len(draft_ids), bias=False)
        self.d2t: torch.Tensor
        self.t2d: torch.Tensor
        self.register_buffer("d2t", draft_ids - torch.arange(len(draft_ids)))
        drafted = torch.zeros(vocab_size, dtype=torch.bool)
        drafted[draft_ids] = True
        self.register_buffer("t2d", drafted)

    def unroll(
        self, embeds: torch.Tensor, aux: torch.Tensor, num_passes: int
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The logits over the draft vocabulary, and the hidden states for the next pass, of each
        pass.

        embeds: [batch, length, hidden] of each token; aux: [batch, length, 3 * hidden] of the same.
        """
        hidden = shift(self.fc(aux), 1)
        passes: list[Pass] = []
        found = []
        for _ in range(num_passes):
            out = self.midlayer(embeds, hidden, passes)
            found.append((self.lm_head(self.norm(out)), out))
            hidden = shift(out, 1)
        return found


class EagleLayer(nn.Module):
    """A decoder layer without a norm before attention, as in EAGLE-1."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape, shape.hidden_size)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.eps)
        self.mlp = MLP(shape)

    def forward(self, hidden: torch.Tensor, passes: list[Pass]) -> torch.Tensor:
        hidden = hidden + self.self_attn(hidden, passes)
        out: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Eagle(nn.Module):
    """``fc`` and ``layers.0``. The embedding and the language model head are the target's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=False)
        self.layers = nn.ModuleList([EagleLayer(shape)])

    def unroll(
        self, embeds: torch.Tensor, features: torch.Tensor, lm_head: torch.Tensor, num_passes: int
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """As for ``Eagle3``; features: [batch, length, hidden], the target's last, normed."""
        hidden = shift(features, 1)
        passes: list[Pass] = []
        found = []
        for _ in range(num_passes):
            out = self.layers[0](self.fc(torch.cat((embeds, hidden), -1)), passes)
            found.append((out @ lm_head.T, out))
            hidden = shift(out, 1)
        return found
