"""Host memory for what preempted requests had computed: which blocks belong to whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Swapped:
    """What one request has in host memory, in the order of its tokens."""

    block_ids: list[int]
    """Host blocks; never shared, whatever their content."""
    num_tokens: int
    """Leading tokens whose slots were scheduled to be written when the copy was planned."""
    firsts: tuple[int, ...]
    """The index of each layer group's first block; ``block_ids`` holds one group after
    another."""


class SwapSpace:
    """Hands out blocks of host memory; each is free or held by exactly one ``Swapped``.

    A block may be given back as soon as the copy from or to it is *planned*: a runner makes the
    copies of one plan after those of the plans before.
    """

    def __init__(self, num_blocks: int = 0) -> None:
        assert num_blocks >= 0, num_blocks
        self.num_blocks = num_blocks
        self.num_holders = 0
        """Requests that have blocks here."""
        self.num_blocks_out = 0
        """Total of blocks copied to the host."""
        self.num_blocks_in = 0
        """Total of blocks copied back."""
        self._free = list(range(num_blocks - 1, -1, -1))
        self._held = [False] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, num_blocks: int, num_tokens: int, firsts: tuple[int, ...]) -> Swapped:
        """Take blocks for a request's leading tokens. The caller checked ``num_free``."""
        assert 0 < num_blocks <= self.num_free, f"{num_blocks} wanted, {self.num_free} are free"
        block_ids = [self._free.pop() for _ in range(num_blocks)]
        for block_id in block_ids:
            self._held[block_id] = True
        self.num_holders += 1
        self.num_blocks_out += num_blocks
        return Swapped(block_ids, num_tokens, firsts)

    def give_back(self, swapped: Swapped) -> None:
        for block_id in swapped.block_ids:
            assert self._held[block_id], f"host block {block_id} is given back twice"
            self._held[block_id] = False
        self._free += reversed(swapped.block_ids)
        self.num_holders -= 1

    def check_integrity(self) -> None:
        """Every block is free or held. For tests and idle moments."""
        assert len(set(self._free)) == len(self._free), "a host block is free twice"
        assert all(not self._held[block_id] for block_id in self._free), "a held block is free"
        assert sum(self._held) + len(self._free) == self.num_blocks, "a host block is lost"
        assert 0 <= self.num_holders <= sum(self._held)
