"""What encoders are made of: prompts side by side without padding, and attention in both
directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from engine.attention.torch_ref import partition
from engine.layers.module import Module
from engine.layers.parameter import Weight
from kernels.transfer import to_device

Ints = npt.NDArray[np.int64]

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
"""By transformers' names."""


class LayerNorm(Module):
    """(arXiv 1607.06450)"""

    def __init__(
        self,
        size: int,
        eps: float,
        *,
        bias: bool = True,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._shape, self._eps = (size,), eps
        self.weight = Weight(torch.empty(size, dtype=dtype, device=device))
        self.bias = Weight(torch.empty(size, dtype=dtype, device=device)) if bias else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.data
        return F.layer_norm(x, self._shape, self.weight.data, bias, self._eps)


@dataclass(frozen=True, slots=True)
class _Group:
    """Prompts of like length, next to each other, padded to one length."""

    first: int
    """Their tokens are [first, end) of the batch."""
    end: int
    num: int
    length: int
    padded: torch.Tensor | None
    """[num * length]: the token at each place; None if all prompts have this length."""
    real: torch.Tensor | None
    """[end - first]: the places that are no padding."""
    lens: torch.Tensor
    """[num] int64"""
    masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)
    """By window, as layers ask for them: [num or 1, 1, 1 or length, length], True where a query
    sees a key; None: everywhere."""

    def mask(self, window: int | None) -> torch.Tensor | None:
        if window is not None and window >= self.length - 1:
            window = None
        if window not in self.masks:
            place = torch.arange(self.length, device=self.lens.device)
            sees = None if self.padded is None else place < self.lens.view(-1, 1, 1, 1)
            if window is not None:
                near = (place - place.unsqueeze(1)).abs() <= window
                # A query that is padding sees what is near it, because softmax needs a key.
                sees = (
                    near
                    if sees is None
                    else near & (sees | (place >= self.lens.view(-1, 1, 1, 1)).mT)
                )
            self.masks[window] = sees
        return self.masks[window]


class Prompts:
    """The prompts of a step: each is computed whole, and their tokens lie side by side."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        second_texts: Sequence[int | None],
        device: torch.device,
    ) -> None:
        """prompts: token ids, the shortest first. second_texts: see ``PoolingParams``."""
        lens = np.array([len(prompt) for prompt in prompts], np.int64)
        ends = lens.cumsum()
        starts = ends - lens
        positions = np.arange(ends[-1]) - starts.repeat(lens)
        self.token_ids = to_device(np.concatenate([np.array(p, np.int64) for p in prompts]), device)
        """[num_tokens] int64"""
        self.positions = to_device(positions, device)
        """[num_tokens] int64"""
        self.lens, self.starts = to_device(lens, device), to_device(starts, device)
        """[num_prompts] int64 each"""
        self.segments: torch.Tensor | None = None
        """[num_tokens] int64: 1 in the second text of a pair, else 0; None if there are no
        pairs."""
        if any(second is not None for second in second_texts):
            begin = [n if s is None else s for n, s in zip(lens, second_texts, strict=True)]
            is_second = positions >= np.array(begin, np.int64).repeat(lens)
            self.segments = to_device(is_second.astype(np.int64), device)
        self._groups = [_group(lens, starts, members, device) for members in partition(lens, lens)]

    @property
    def owners(self) -> torch.Tensor:
        """[num_tokens] int64: the prompt that each token belongs to."""
        return torch.arange(len(self.lens), device=self.lens.device).repeat_interleave(self.lens)

    def attend(self, qkv: torch.Tensor, scale: float, window: int | None = None) -> torch.Tensor:
        """Attention of each token to all of its prompt or, with a window, to those at most that
        far. qkv: [num_tokens, 3, num_heads, head_dim]. Returns [num_tokens, num_heads *
        head_dim]."""
        parts = [_attend(group, qkv, scale, window) for group in self._groups]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def pool(self, hidden: torch.Tensor, method: str) -> torch.Tensor:
        """[num_prompts, hidden_size] of hidden states, [num_tokens, hidden_size]. method: see
        ``PoolingModel.method``."""
        if method == "cls":
            return hidden[self.starts]
        if method == "lasttoken":
            return hidden[self.starts + self.lens - 1]
        hidden = hidden.float()
        if method == "max":
            owners = self.owners.unsqueeze(1).expand_as(hidden)
            empty = hidden.new_empty(len(self.lens), hidden.shape[1])
            return empty.scatter_reduce_(0, owners, hidden, "amax", include_self=False)
        sums = hidden.new_zeros(len(self.lens), hidden.shape[1])
        return sums.index_add_(0, self.owners, hidden) / self.lens.unsqueeze(1)


def _group(lens: Ints, starts: Ints, members: Ints, device: torch.device) -> _Group:
    """members: ascending, and so next to each other, because the shortest prompt comes first."""
    first, last = int(members[0]), int(members[-1])
    length, own = int(lens[last]), lens[first : last + 1]
    begin, end = int(starts[first]), int(starts[last] + lens[last])
    padded = real = None
    if own[0] != length:
        places = np.arange(length)
        within = np.minimum(places, own[:, None] - 1)
        padded = to_device((starts[first : last + 1, None] + within).ravel(), device)
        real = to_device(np.flatnonzero(places < own[:, None]), device)
    return _Group(begin, end, len(own), length, padded, real, to_device(own, device))


def _attend(group: _Group, qkv: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
    """[num_tokens of the group, num_heads * head_dim]"""
    own = qkv[group.first : group.end] if group.padded is None else qkv[group.padded]
    by_prompt = own.view(group.num, group.length, *qkv.shape[1:]).transpose(1, 3)
    q, k, v = by_prompt.unbind(2)  # [num, num_heads, length, head_dim] each
    out = F.scaled_dot_product_attention(q, k, v, group.mask(window), scale=scale)
    out = out.transpose(1, 2).reshape(group.num * group.length, -1)
    return out if group.real is None else out[group.real]
