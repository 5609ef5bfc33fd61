"""Which prefixes of prompts each engine probably has in its cache: an estimate, of bounded size.

An entry is a hash of a prompt up to one of a few boundaries, under the salt of its tenant, and a
bit for each engine that computed it. So a lookup takes one step for each boundary, however many
engines there are. What an engine was sent the longest ago is forgotten first, as its own cache
does.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.messages import GenerateRequest

BOUNDARIES = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""The prefixes that are told apart, in tokens. What lies behind the last one counts for nothing."""
DENSE_TOKENS = 512
"""So many tokens are looked at; behind them one of eight: prompts that differ once go on to."""
MIN_SHARE = 0.02
MAX_ENTRIES = 100_000
"""Of all engines together: about 20 MB."""


Prefix = tuple[int, int]
"""A prompt up to a boundary: a hash, and the number of tokens."""


def prefixes(request: GenerateRequest) -> list[Prefix]:
    """The prefixes of a request, the shortest first. Their keys depend on the pictures that begin
    in them, on the tenant's salt and on the adapter, as the engine's blocks do; those of a public
    prefix depend on neither salt nor adapter."""
    tokens, is_public = request.prompt_token_ids, True
    found: list[Prefix] = []
    key = start = 0
    for end in BOUNDARIES:
        if end > len(tokens):
            break
        if is_public and end > request.num_public_tokens:
            is_public = False
            adapter = "" if request.adapter is None else request.adapter.name
            key = hash((key, request.cache_salt, adapter))
        part: list[object] = [*tokens[start : end : 1 if start < DENSE_TOKENS else 8]]
        if request.images:
            part += [one.digest for one in request.images if start <= one.offset < end]
        key = hash((key, *part))
        found.append((key, end))
        start = end
    return found


class PrefixIndex:
    """The prefixes of all engines, by their names."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._masks: dict[int, int] = {}
        """By key, a bit for each engine."""
        self._slots: dict[str, int] = {}
        """The place of each engine's bit."""
        self._engines: dict[int, str] = {}
        """By bit."""
        self._sent: dict[str, OrderedDict[int, int]] = {}
        """By engine, the tokens between each boundary and the one before; the oldest first."""
        self._num_tokens: dict[str, int] = {}
        self._shares: dict[str, float] = {}
        """Of each engine, the part of its cache that is taken for what was sent from here."""

    def __len__(self) -> int:
        return sum(map(len, self._sent.values()))

    @property
    def _max_each(self) -> int:
        return self._max_entries // len(self._sent)

    def add(self, engine: str, found: Sequence[Prefix], capacity: int) -> None:
        """An engine, whose cache holds ``capacity`` tokens, computes these prefixes of a prompt."""
        if engine not in self._slots:
            self._add_engine(engine)
        bit, sent, masks = 1 << self._slots[engine], self._sent[engine], self._masks
        num_new = start = 0
        for key, end in found:
            if key in sent:
                sent.move_to_end(key)
            else:
                masks[key] = masks.get(key, 0) | bit
                sent[key] = end - start
                num_new += end - start
            start = end
        self._num_tokens[engine] += num_new
        self._shrink(engine, self._max_each, capacity * self._shares[engine])

    def find(self, found: Sequence[Prefix]) -> dict[str, int]:
        """By engine, how many tokens of a prompt it probably has, if any."""
        masks: list[int] = []
        here = -1
        for key, _ in found:
            here &= self._masks.get(key, 0)
            if not here:
                break
            masks.append(here)
        if not masks:
            return {}
        longest: dict[str, int] = {}
        masks.append(0)
        for depth, mask in enumerate(masks[1:]):
            ending = masks[depth] & ~mask
            while ending:
                bit = ending & -ending
                ending ^= bit
                longest[self._engines[bit]] = found[depth][1]
        return longest

    def learn(self, engine: str, *, was_right: bool) -> None:
        """Whether an engine had what was expected. If not, others fill its cache as well, and a
        smaller part of it is what was sent from here."""
        if engine in self._shares:
            share = self._shares[engine] * (1.02 if was_right else 0.8)
            self._shares[engine] = min(1.0, max(MIN_SHARE, share))

    def forget(self, engine: str) -> None:
        """An engine has lost its cache, or is gone."""
        if engine in self._slots:
            self._shrink(engine, 0, 0)
            del self._engines[1 << self._slots[engine]]
            for known in (self._slots, self._sent, self._num_tokens, self._shares):
                del known[engine]

    def _add_engine(self, engine: str) -> None:
        taken = set(self._slots.values())
        self._slots[engine] = next(slot for slot in count() if slot not in taken)
        self._engines[1 << self._slots[engine]] = engine
        self._sent[engine] = OrderedDict()
        self._num_tokens[engine] = 0
        self._shares[engine] = 1.0
        for name in self._sent:
            self._shrink(name, self._max_each, math.inf)

    def _shrink(self, engine: str, most_entries: int, most_tokens: float) -> None:
        """Forget the oldest prefixes of an engine that are too many."""
        sent, masks, bit = self._sent[engine], self._masks, 1 << self._slots[engine]
        num_tokens = self._num_tokens[engine]
        while len(sent) > most_entries or num_tokens > most_tokens:
            key, length = sent.popitem(last=False)
            num_tokens -= length
            if (mask := masks[key]) == bit:
                del masks[key]
            else:
                masks[key] = mask ^ bit
        self._num_tokens[engine] = num_tokens
