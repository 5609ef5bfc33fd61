"""Which layers keep their keys and values in the same blocks, and how many blocks that takes.

A layer with a window reads the last ``window`` tokens only, one without reads all. So the layers
are divided into groups, each of one window and of the same number of layers (a group may lack
some): a block holds some tokens' keys and values in all layers of *one* group, and is of the same
size whichever that is. One pool of blocks serves all groups, and a request has a block table for
each.

    layers       0 1 2 3 4 | 5     6 7 8 9 10 | 11           five with a window, one without, twice
    groups       5 11 | 0 1 | 2 3 | 4 6 | 7 8 | 9 10         two layers each
    tokens       all  | the window's ...

This is what vLLM calls its hybrid KV cache manager.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Every group costs a block table, and work in each step. So many at most, and one more must save
# this share of the memory.
_MAX_GROUPS = 8
_MIN_SAVED = 0.02


class GroupKind(Protocol):
    """Says which blocks the layers of a group keep, whatever they compute with them."""

    @property
    def window(self) -> int | None:
        """The number of tokens that a query sees, its own included; None: all of them."""

    def first_kept(self, num_tokens: int, block_size: int) -> int:
        """Index of the first block that attention reads for a query at position ``num_tokens`` or
        later: those before it are given back."""

    def num_reserved(self, num_tokens: int, num_soon: int) -> int:
        """The leading tokens that get blocks at admission, of ``num_tokens`` in all. The first
        step computes up to ``num_soon``."""

    def peak_blocks(self, num_blocks: int, block_size: int, max_tokens_in_flight: int) -> int:
        """The most blocks that a request of ``num_blocks`` logical blocks holds at any time. Tokens
        of steps in flight have not left any window yet."""


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Every token is read for ever, as a key and a value or as a latent vector."""

    window: ClassVar[None] = None

    def first_kept(self, num_tokens: int, block_size: int) -> int:
        return 0

    def num_reserved(self, num_tokens: int, num_soon: int) -> int:
        return num_tokens

    def peak_blocks(self, num_blocks: int, block_size: int, max_tokens_in_flight: int) -> int:
        return num_blocks


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """The last ``window`` tokens are read.

    Attention reads keys in pieces that start at multiples of ``step`` tokens, so the window frees
    only whole pieces. A request reuses the blocks that it gives back, so admission reserves those
    of its first step only."""

    window: int
    step: int = 1

    def first_kept(self, num_tokens: int, block_size: int) -> int:
        oldest = max(0, num_tokens - self.window + 1)
        piece = math.lcm(block_size, self.step)
        return oldest // piece * (piece // block_size)

    def num_reserved(self, num_tokens: int, num_soon: int) -> int:
        return min(num_tokens, num_soon)

    def peak_blocks(self, num_blocks: int, block_size: int, max_tokens_in_flight: int) -> int:
        # A window may begin anywhere in a piece, and moves on only by whole blocks.
        more = math.lcm(block_size, self.step) // block_size + 1
        seen = -(-(self.window - 1 + max_tokens_in_flight) // block_size)
        return min(num_blocks, seen + more)


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """All tokens so far come to one state, of a size that does not grow with them.

    A running request has one in its row, and takes no blocks for it. Its tokens can be skipped only
    where a snapshot was taken of it (``engine.cache.states``)."""

    num_snapshots: int
    answer_stride: int = 64
    """Of the tokens that a request generates, a snapshot is taken every so many, rounded up to
    whole blocks."""


def kinds_of(windows: Iterable[int | None], window_step: int = 1) -> tuple[GroupKind, ...]:
    """The kinds of groups with these windows; None: all tokens."""
    return tuple(
        FullAttention() if window is None else SlidingWindow(window, window_step)
        for window in windows
    )


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """How the layers of a model are divided."""

    windows: tuple[int | None, ...]
    """Window of each group, None for none; groups without a window come first."""
    places: tuple[tuple[int, int], ...]
    """(group, index within the group) of each layer."""
    window_step: int = 1
    """See ``SlidingWindow``."""

    @property
    def kinds(self) -> tuple[GroupKind, ...]:
        return kinds_of(self.windows, self.window_step)

    def stored(self, layers: range | None) -> LayerGroups:
        """The same groups where only some layers are stored; None: all. The places of the others
        stand for nothing."""
        if layers is None:
            return self
        counts, places = [0] * len(self.windows), []
        for layer, (group, _) in enumerate(self.places):
            places.append((group, counts[group] if layer in layers else 0))
            counts[group] += layer in layers
        return replace(self, places=tuple(places))

    @property
    def num_layers_each(self) -> int:
        """The number of layers whose keys and values one block holds."""
        return 1 + max(number for _, number in self.places)


def group_layers(
    windows: Sequence[int | None], max_model_len: int, *, more_layers: float = 0.0
) -> LayerGroups:
    """The division that takes the least memory for a request of ``max_model_len`` tokens.

    windows: of each layer, None for all tokens. more_layers: what else is stored with each block,
    of whatever group, measured in layers.
    """
    by_window: dict[int | None, list[int]] = defaultdict(list)
    for layer, window in enumerate(windows):
        by_window[None if window is None or window >= max_model_len else window].append(layer)
    kinds = dict(sorted(by_window.items(), key=lambda item: -(item[0] or max_model_len)))
    best = single_group(len(windows), next(iter(kinds)))
    best_cost = _cost(best, max_model_len, more_layers)
    for size in range(1, len(windows) + 1):
        groups = _divide(kinds, size)
        cost = _cost(groups, max_model_len, more_layers)
        if len(groups.windows) <= _MAX_GROUPS and cost < best_cost:
            best, best_cost = groups, cost
    return best


def single_group(num_layers: int, window: int | None = None) -> LayerGroups:
    """All layers in one group. window: the widest of any layer, None if one sees everything."""
    return LayerGroups((window,), tuple((0, layer) for layer in range(num_layers)))


def _divide(kinds: dict[int | None, list[int]], size: int) -> LayerGroups:
    windows: list[int | None] = []
    places: dict[int, tuple[int, int]] = {}
    for window, layers in kinds.items():
        for number, layer in enumerate(layers):
            places[layer] = len(windows) + number // size, number % size
        windows += [window] * -(-len(layers) // size)
    return LayerGroups(tuple(windows), tuple(places[layer] for layer in range(len(places))))


def _cost(groups: LayerGroups, num_tokens: int, more_layers: float) -> float:
    """Slots, times layers, that a request takes, plus a penalty per group."""
    slots = sum(num_tokens if window is None else window for window in groups.windows)
    width = groups.num_layers_each + more_layers
    return width * slots * (1 + _MIN_SAVED * len(groups.windows))


def peak_blocks(
    kinds: Sequence[GroupKind], num_tokens: int, block_size: int, max_tokens_in_flight: int
) -> int:
    """The most blocks that a request of ``num_tokens`` holds at any time, in all groups."""
    whole = -(-num_tokens // block_size)
    return sum(kind.peak_blocks(whole, block_size, max_tokens_in_flight) for kind in kinds)


def max_request_tokens(
    kinds: Sequence[GroupKind], num_blocks: int, block_size: int, max_tokens_in_flight: int
) -> int | None:
    """The most tokens for which ``peak_blocks`` says ``num_blocks``; None if there is no limit."""

    def fits(num_logical_blocks: int) -> bool:
        num_tokens, in_flight = num_logical_blocks * block_size, max_tokens_in_flight
        return peak_blocks(kinds, num_tokens, block_size, in_flight) <= num_blocks

    if all(kind.window is not None for kind in kinds) and fits(num_blocks + 1):
        return None  # Longer ones hold no more.
    low, high = 0, num_blocks + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * block_size
