"""What tokens of pictures change in the layers of a decoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Sight:
    """The pictures of a step, as far as its tokens belong to them or come after them."""

    index: torch.Tensor
    """[num_seen] int64: the image tokens among those of the step."""
    embeddings: torch.Tensor
    """[num_seen, hidden * (1 + deepstack layers)]: what takes the place of their embeddings, and
    then what is added to their states behind each of the first layers."""
    rotary: torch.Tensor | None = None
    """[3, num_tokens] int64: frame, row and column of each token, for models that rotate by these.
    None: by the positions in the cache."""

    @classmethod
    def of_text(cls, rotary: torch.Tensor) -> Sight:
        """Of a step without image tokens, whose text comes behind pictures."""
        nothing = torch.empty(0, dtype=torch.int64, device=rotary.device)
        return cls(nothing, nothing[:, None], rotary)

    def placed(self, x: torch.Tensor) -> torch.Tensor:
        """The embeddings of all tokens, changed in place. x: [num_tokens, hidden], of their ids."""
        if not len(self.index):
            return x
        return x.index_copy_(0, self.index, self.embeddings[:, : x.shape[1]])

    def deepened(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """The states behind a layer; ``x`` itself behind all but the first ones."""
        size = x.shape[1]
        added = self.embeddings[:, (layer + 1) * size : (layer + 2) * size]
        return x.index_add(0, self.index, added) if added.numel() else x


@dataclass(frozen=True, slots=True)
class RotarySections:
    """Which of a token's three positions (frame, row, column) turns which pairs of dimensions of a
    head (M-RoPE, arXiv 2409.12191)."""

    sizes: tuple[int, int, int]
    """How many pairs each turns."""
    interleaved: bool
    """The axes take turns, from the first pair on, as long as they have some; the frame has those
    that are left. Else each has its own run of pairs."""

    def axes(self) -> torch.Tensor:
        """[pairs] int64: the axis of each pair."""
        sizes = torch.tensor(self.sizes)
        if not self.interleaved:
            return torch.arange(3).repeat_interleave(sizes)
        pair = torch.arange(int(sizes.sum()))
        axis = pair % 3
        return torch.where(pair < 3 * sizes[axis], axis, 0)


def rotary_rows(table: torch.Tensor, axes: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """[num_tokens, rotary_dim]: the cosines and sines of tokens. table: from ``cos_sin_table``;
    axes: [rotary_dim], of ``RotarySections``, once for each half; positions: ``Sight.rotary``."""
    chosen: torch.Tensor = table[positions].gather(0, axes.expand(1, positions.shape[1], -1))
    return chosen[0]
