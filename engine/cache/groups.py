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
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Every group costs a block table, and work in each step. So many at most, and one more must save
# this share of the memory.
_MAX_GROUPS = 8
_MIN_SAVED = 0.02


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """How the layers of a model are divided."""

    windows: tuple[int | None, ...]
    """Window of each group, None for none; groups without a window come first."""
    places: tuple[tuple[int, int], ...]
    """(group, index within the group) of each layer."""
    window_step: int = 1
    """Attention reads keys in pieces that start at multiples of this many tokens; a window frees
    only whole pieces."""

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


def blocks_per_step(block_size: int, window_step: int) -> int:
    """How many blocks a window frees at a time: the fewest that are whole pieces."""
    return math.lcm(block_size, window_step) // block_size


def peak_blocks(
    windows: Sequence[int | None],
    num_tokens: int,
    block_size: int,
    max_tokens_in_flight: int,
    window_step: int = 1,
) -> int:
    """The most blocks that a request of ``num_tokens`` holds at any time.

    windows: of the groups. Tokens of steps in flight have not left any window yet. A window may
    begin anywhere in a piece, and moves on only by whole blocks.
    """
    whole = -(-num_tokens // block_size)
    more = blocks_per_step(block_size, window_step) + 1
    return sum(
        whole
        if window is None
        else min(whole, -(-(window - 1 + max_tokens_in_flight) // block_size) + more)
        for window in windows
    )


def max_request_tokens(
    windows: Sequence[int | None],
    num_blocks: int,
    block_size: int,
    max_tokens_in_flight: int,
    window_step: int = 1,
) -> int | None:
    """The most tokens for which ``peak_blocks`` says ``num_blocks``; None if there is no limit."""

    def fits(num_logical_blocks: int) -> bool:
        num_tokens, in_flight = num_logical_blocks * block_size, max_tokens_in_flight
        return peak_blocks(windows, num_tokens, block_size, in_flight, window_step) <= num_blocks

    if None not in windows and fits(num_blocks + 1):
        return None  # Longer ones hold no more.
    low, high = 0, num_blocks + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * block_size
