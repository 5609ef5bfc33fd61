"""Which pictures a step encodes, and where the encoder's outputs are kept."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING

from engine.cache.block_pool import BlockPool
from engine.cache.prefix import Content, root_key
from engine.scheduler.plan import Encoding, Seen
from engine.vision import BLOCK_ROWS, Vision

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from engine.config import EngineConfig
    from engine.messages import Image
    from engine.request import Request
    from engine.scheduler.step import Step


class Pictures:
    """The blocks that hold the encoder's outputs, found by the cache salt and the picture's digest.

    A step holds those that it reads or writes until it is over; nobody holds them between steps.
    They stay cached, and are given up as blocks of the KV cache are: so a picture whose tokens are
    computed in several chunks, or again after a preemption, is encoded once, unless others need the
    room. A chunk ends before a picture that this step has no room to encode.
    """

    def __init__(self, vision: Vision | None, config: EngineConfig) -> None:
        """vision: None of a model that does not see, whose requests have no pictures."""
        self._vision = vision or Vision(image_token_id=-1, side=1)
        self._most_tokens = config.image_tokens
        self._budget = self._num_left = 0
        count = max(1, self._vision.num_blocks)
        self.pool = BlockPool(
            count,
            floor=int(config.prefix_cache_tenant_floor * count),
            ceiling=int(config.prefix_cache_tenant_ceiling * count),
        )

    def begin_step(self, num_tokens: int) -> None:
        """num_tokens: of the step, at most. Encoding as many image tokens delays others about as
        much as computing them does."""
        self._budget = self._num_left = min(self._most_tokens, num_tokens)

    def limit(self, request: Request, start: int, limit: int) -> int:
        """How many tokens from ``start`` on, at most ``limit``, a chunk of this step may compute: 0
        if the first of them needs a picture that must wait for another step."""
        if not request.images or _end(request.images[-1]) <= start:
            return limit
        num_free, num_left = self.pool.num_free, self._num_left
        for image in _overlapping(request, start, start + limit):
            missing = 0
            for key in self._keys(request, image):
                block_id = self.pool.index.find(key)
                missing += block_id is None
                num_free -= block_id is None or self.pool.ref_count(block_id) == 0
            if missing:
                num_tokens = self._vision.num_tokens(image)
                # One that is larger than what a step may encode is all that it encodes.
                is_too_much = num_tokens > num_left < self._budget
                num_left -= num_tokens
            if num_free < 0 or (missing and is_too_much):
                return max(0, image.offset - start)
        return limit

    def must_wait(self, request: Request, start: int) -> bool:
        """Whether this step can compute nothing of a request from ``start`` on."""
        return self.limit(request, start, 1) == 0

    def see(self, step: Step, request: Request, start: int, end: int) -> None:
        """Plan what the pictures of a request's chunk, the last of the step, take. ``limit`` has
        allowed it."""
        for image in _overlapping(request, start, end):
            keys = list(self._keys(request, image))
            found = [self.pool.index.find(key) for key in keys]
            for block_id in found:
                if block_id is not None:
                    self.pool.acquire(block_id)
            fresh = iter(self.pool.allocate(found.count(None)))
            blocks = [next(fresh) if block_id is None else block_id for block_id in found]
            step.picture_blocks += blocks
            if None in found:
                self._encode(step, image, blocks)
                # Steps are executed in order, so whoever finds them reads what was written.
                for key, block_id, was_found in zip(keys, blocks, found, strict=True):
                    if was_found is None:
                        owner = request.fair_key
                        self.pool.publish(block_id, Content(key, key, b"", owner))
            runs, first = self._runs(request, image, start, end)
            if runs:
                step.plan.seen.append(Seen(len(step.plan.chunks) - 1, runs, first, blocks))

    def _encode(self, step: Step, image: Image, blocks: list[int]) -> None:
        step.plan.encodings.append(Encoding(image.height, image.width, image.pixels, blocks))
        self._num_left -= self._vision.num_tokens(image)

    def _runs(
        self, request: Request, image: Image, start: int, end: int
    ) -> tuple[list[tuple[int, int]], int]:
        """``Seen.runs`` and ``Seen.first`` of the chunk from ``start`` to ``end``."""
        token, ids = self._vision.image_token_id, request.token_ids
        first = ids[image.offset : max(start, image.offset)].count(token)
        runs: list[tuple[int, int]] = []
        for index in range(max(start, image.offset), min(end, _end(image))):
            if ids[index] == token:
                if runs and sum(runs[-1]) == index - start:
                    runs[-1] = runs[-1][0], runs[-1][1] + 1
                else:
                    runs.append((index - start, 1))
        return runs, first

    def grids(self, request: Request) -> list[tuple[int, int, int]]:
        """``Admission.grids``"""
        token, ids = self._vision.image_token_id, request.token_ids
        return [
            (ids.index(token, image.offset), *self._vision.grid(image)) for image in request.images
        ]

    def check_integrity(self, in_flight: Iterable[Step]) -> None:
        """Only steps in flight hold blocks. For tests and idle moments."""
        self.pool.check_integrity()
        held = Counter(block_id for step in in_flight for block_id in step.picture_blocks)
        for block_id in range(self.pool.num_blocks):
            assert self.pool.ref_count(block_id) == held[block_id]

    def release(self, step: Step) -> None:
        """The step is over."""
        self.pool.release(step.picture_blocks)

    def _keys(self, request: Request, image: Image) -> Iterator[bytes]:
        """Of each of its blocks."""
        salt = root_key(BLOCK_ROWS, {"salt": request.block_table.region["salt"]})
        for index in range(-(-self._vision.num_tokens(image) // BLOCK_ROWS)):
            yield sha256(salt + image.digest + index.to_bytes(4, "little")).digest()


def _overlapping(request: Request, start: int, end: int) -> Iterator[Image]:
    """The pictures of a request that have tokens in [start, end)."""
    for image in request.images:
        if image.offset >= end:
            return
        if _end(image) > start:
            yield image


def _end(image: Image) -> int:
    return image.offset + image.num_tokens
