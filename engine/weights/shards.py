"""Which part of each of a checkpoint's tensors a rank keeps.

The shapes say it: a rank's parameter has fewer rows or columns than the same one of the whole
model, whatever the format of the weights. So the whole model is built, too, without memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from engine.errors import ModelLoadError
from engine.layers.embedding import Embedding
from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.parallel.group import Group
from engine.weights.names import Target, targets

_HEAD = "lm_head"


@dataclass(frozen=True, slots=True)
class Shard:
    """The ranges of one dimension of a checkpoint's tensor that a rank keeps, one after the
    other."""

    dim: int
    ranges: Sequence[slice]
    padding: int = 0
    """Zeros that follow."""

    def read(self, stored: Any) -> torch.Tensor:
        """stored: a slice of ``safe_open``, of which no more than the ranges is read."""
        before = (slice(None),) * self.dim
        parts = [stored[(*before, part)] for part in self.ranges]
        if self.padding:
            shape = list(parts[0].shape)
            shape[self.dim] = self.padding
            parts.append(parts[0].new_zeros(shape))
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)


@dataclass(frozen=True, slots=True)
class Shards:
    """The tensors of a checkpoint as the whole model and as one rank expect them."""

    whole: Mapping[str, Target]
    """By the checkpoint's names."""
    of_rank: Mapping[str, Shard]
    """Only tensors that are divided."""


def find_shards(model: Module, whole: Module, group: Group) -> Shards:
    """model: of one of the group's ranks. whole: the same model of a rank alone, on the device
    "meta". Raises ``ModelLoadError`` naming a tensor that cannot be cut."""
    ours, theirs = targets(model), targets(whole)
    padded = tuple(_padded(model))
    sections = dict(_sections(model))
    whole_sections = dict(_sections(whole))
    found: dict[str, Shard] = {}
    for name, target in ours.items():
        local = target.weight.shapes(target.part)[0]
        full = theirs[name].weight.shapes(theirs[name].part)[0]
        dims = [dim for dim, sizes in enumerate(zip(full, local, strict=True)) if len({*sizes}) > 1]
        if not dims:
            continue
        (dim,) = dims
        if target.weight.is_cut(target.part, dim):
            raise _uncut(name, group)
        if name.startswith(padded):
            found[name] = _padded_shard(dim, full[dim], local[dim], group)
            continue
        layer = name.rpartition(".")[0]
        parts: tuple[Sequence[int], Sequence[int]] = ((full[dim],), (local[dim],))
        # Only the outputs have sections; a layer's inputs are not sharded as well.
        if layer in sections:
            parts = whole_sections[layer], sections[layer]
        found[name] = shard_of(name, dim, (full[dim], local[dim]), parts, group)
    return Shards(theirs, found)


def _padded(model: Module, prefix: str = "") -> list[str]:
    """Prefixes of tensors that have a row for each token: padding makes them divisible."""
    found = []
    for name, child in model.children():
        if isinstance(child, Embedding) or name == _HEAD:
            found.append(f"{prefix}{name}.")
        elif isinstance(child, Module):
            found += _padded(child, f"{prefix}{name}.")
    return found


def _sections(module: Module, prefix: str = "") -> list[tuple[str, tuple[int, ...]]]:
    found = []
    for name, child in module.children():
        if isinstance(child, Linear) and child.sections:
            found.append((prefix + name, child.sections))
        elif isinstance(child, Module):
            found += _sections(child, f"{prefix}{name}.")
    return found


def _padded_shard(dim: int, full: int, local: int, group: Group) -> Shard:
    start = min(full, group.rank * local)
    end = min(full, start + local)
    return Shard(dim, [slice(start, end)], local - (end - start))


def shard_of(
    name: str,
    dim: int,
    sizes: tuple[int, int],
    sections: tuple[Sequence[int], Sequence[int]],
    group: Group,
) -> Shard:
    """This rank's part of one dimension. sizes: of the dimension, whole and this rank's. sections:
    likewise, in features, of which several may share a word or a scale; each section is divided by
    itself. Raises ``ModelLoadError`` naming ``name`` where that cuts a word."""
    per_size = sum(sections[0]) // sizes[0]
    ranges = []
    ends = accumulate(sections[0])
    for full, local, end in zip(*sections, ends, strict=True):
        start = end - full
        # Where several ranks have the same KV head, there are fewer shards than ranks.
        num_shards = full // local
        first = start + group.rank * num_shards // group.size * local
        if full % local or local % per_size or start % per_size:
            raise _uncut(name, group)
        ranges.append(slice(first // per_size, (first + local) // per_size))
    if sum(part.stop - part.start for part in ranges) != sizes[1]:
        raise _uncut(name, group)
    return Shard(dim, ranges)


def _uncut(name: str, group: Group) -> ModelLoadError:
    return ModelLoadError(
        f"tensor {name!r}: tensor_parallel_size {group.size} would cut a word or a block that "
        "shares a scale: take a smaller one"
    )
