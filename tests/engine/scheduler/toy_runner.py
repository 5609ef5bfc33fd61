"""A runner without a model: it checks every contract of a plan and reads through the block tables.

The cache slot of position p holds a chain value of all tokens up to p. The next token is a hash of
the values *read from the cache*, so a wrong block table, a stale block, a slot nobody wrote or a
block of another salt changes the output; and each read is asserted besides. With layer groups, each
writes and reads blocks of its own, no further back than its window.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from engine.cache.groups import RecurrentState, kinds_of
from engine.cache.table import NO_BLOCK
from engine.messages import Image, TokenLogprobs
from engine.scheduler.plan import Chunk, StepPlan, StepResult, TokenMask
from engine.spec.costs import StepCosts
from engine.vision import BLOCK_ROWS, Vision

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from engine.cache.groups import GroupKind
    from engine.sampling_params import SamplingParams

UNWRITTEN = -1
IMAGE_TOKEN = 49


def chain(token_ids: Sequence[int], salt: str, num_public: int = 0) -> list[int]:
    """The cache contents for a sequence: the salt enters behind ``num_public`` tokens."""
    values, value = [], 0
    for position, token_id in enumerate(token_ids):
        if position == num_public:
            value = hash((value, crc32(salt.encode())))
        value = hash((value, token_id))
        values.append(value)
    return values


def seen(token_ids: Sequence[int], images: Sequence[Image]) -> list[int]:
    """What a model reads: in place of each image token, what it shows."""
    ids = list(token_ids)
    for image in images:
        places = range(image.offset, min(image.offset + image.num_tokens, len(ids)))
        for number, place in enumerate(p for p in places if ids[p] == IMAGE_TOKEN):
            ids[place] = shown(image.pixels, number)
    return ids


def shown(pixels: bytes, number: int) -> int:
    """What the image token of this number shows."""
    return hash((crc32(pixels), number))


def pick(values: Sequence[int], vocab_size: int, allowed: Sequence[bool] | None = None) -> int:
    """The token a toy model samples after reading ``values``: the first allowed from a hash on."""
    start = hash(tuple(values))
    for offset in range(vocab_size):
        token_id = (start + offset) % vocab_size
        if allowed is None or allowed[token_id]:
            return token_id
    raise AssertionError("the mask allows no token")


def visible(values: Sequence[int], windows: Sequence[int | None]) -> list[int]:
    """What a query behind ``values`` reads of them, by layer group."""
    return [
        value
        for window in windows
        for value in values[0 if window is None else max(0, len(values) - window) :]
    ]


def toy_logprobs(token_id: int, position: int) -> TokenLogprobs:
    """What is reported of a token: enough to tell whether it comes to the right place."""
    return TokenLogprobs(token_id, -float(position), 1)


def alone(
    prompt: Sequence[int],
    salt: str,
    *,
    vocab_size: int,
    max_total: int,
    num_public: int = 0,
    stop_ids: frozenset[int] = frozenset(),
    min_tokens: int = 0,
    windows: Sequence[int | None] = (None,),
) -> list[int]:
    """What a request generates with nobody else around and no cache at all."""
    token_ids = list(prompt)
    while len(token_ids) < max_total:
        num_generated = len(token_ids) - len(prompt)
        free = num_generated >= min_tokens
        allowed = None if free else [i not in stop_ids for i in range(vocab_size)]
        read = visible(chain(token_ids, salt, num_public), windows)
        token_ids.append(pick(read, vocab_size, allowed))
        if token_ids[-1] in stop_ids and len(token_ids) - len(prompt) >= min_tokens:
            break
    return token_ids[len(prompt) :]


@dataclass
class Row:
    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    tables: list[list[int]]
    """Of each layer group."""
    params: SamplingParams
    adapter: str = ""
    num_computed: int = -1


@dataclass
class Launched:
    plan: StepPlan
    touched: dict[int, set[str]] = field(default_factory=dict)
    """Block id to the requests that read or write it."""
    token_ids: list[list[int]] | None = None
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)


class ToyRunner:
    """Takes plans like a real runner; its device finishes each call at once, in order."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        vocab_size: int = 50,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2048,
        max_loras: int = 1,
        eos_token_ids: frozenset[int] = frozenset(),
        num_swap_blocks: int = 0,
        swap_s_per_block: float = 0.0,
        windows: Sequence[int | None] = (None,),
        window_step: int = 1,
        num_stages: int = 1,
        num_snapshots: int | None = None,
        num_picture_blocks: int = 0,
    ) -> None:
        """num_snapshots: of the states of layers that keep one; None: there are no such layers.
        num_picture_blocks: of a model that sees, whose image tokens stand for a pixel each."""
        self._num_stages = num_stages
        self.num_blocks = num_blocks
        self.kinds = kinds_of(windows, window_step)
        self.layer_groups: tuple[GroupKind | RecurrentState, ...] = self.kinds
        if num_snapshots is not None:
            self.layer_groups = (*self.kinds, RecurrentState(num_snapshots, answer_stride=4))
        self._has_states = num_snapshots is not None
        self._states: dict[int, int] = {}
        """By row; whoever takes a row finds there what was left."""
        self._snapshots: dict[int, int] = {}
        self._window_step = window_step
        self.num_lookahead_tokens = 0
        self.pooling = None
        self.vision: Vision | None = None
        if num_picture_blocks:
            self.vision = Vision(image_token_id=IMAGE_TOKEN, side=1, num_blocks=num_picture_blocks)
        self.images: dict[str, list[Image]] = {}
        """By request id: what plans tell only in parts."""
        self._embeddings = [UNWRITTEN] * (num_picture_blocks * BLOCK_ROWS)
        self.step_costs: StepCosts | None = None
        self.num_swap_blocks = num_swap_blocks
        self.swap_s_per_block = swap_s_per_block
        self.vocab_size = vocab_size
        self.regions: dict[str, tuple[str, int]] = {}
        """Request id to salt and public tokens in full blocks: what no plan tells."""
        self.adapters: set[str] = set()
        """Those in memory."""
        self.plans: list[StepPlan] = []
        self.masks: list[TokenMask | None] = []
        self.calls: list[str] = []
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_loras = max_loras
        self._eos_token_ids = eos_token_ids
        self._slots = [UNWRITTEN] * (num_blocks * block_size)
        self._host_slots = [UNWRITTEN] * (num_swap_blocks * block_size)
        self._rows: dict[int, Row] = {}
        self._in_flight: deque[Launched] = deque()

    def forward(self, plan: StepPlan) -> None:
        self.calls.append(f"forward {plan.step_id}")
        assert len(self._in_flight) <= self._num_stages, "too many steps in flight"
        for other in list(self._in_flight)[len(self._in_flight) + 1 - self._num_stages :]:
            sampled = {chunk.row for chunk in other.plan.chunks if chunk.samples}
            now = {chunk.row for chunk in plan.chunks} & sampled
            assert not now, f"rows {now} go on before a later stage has sampled"
        assert all(step.token_ids is not None for step in self._in_flight), "a step never sampled"
        assert plan.chunks or plan.swap_outs, "an empty plan"
        assert plan.num_tokens <= self._max_num_batched_tokens
        step = Launched(plan)
        for block_id, _ in plan.swap_outs:
            step.touched.setdefault(block_id, set()).add("swap")
        self._apply_rows(plan)
        self._swap_in(plan)
        for source, target, count in plan.block_copies:
            for offset in range(count):
                value = self._slots[source * self._block_size + offset]
                self._slots[target * self._block_size + offset] = value
            step.touched.setdefault(source, set()).add("copy")
        assert len({chunk.row for chunk in plan.chunks}) == len(plan.chunks), "a row twice"
        adapters = {self._rows[chunk.row].adapter for chunk in plan.chunks} - {""}
        assert len(adapters) <= self._max_loras, "more adapters in a step than slots"
        assert adapters <= self.adapters, "an adapter that is not in memory"
        for snapshot, row in plan.state_loads:
            assert row in {admission.row for admission in plan.admissions}
            self._states[row] = self._snapshots[snapshot]
        for encoding in plan.encodings:
            for number in range(encoding.height * encoding.width):
                place = self._embedding(encoding.blocks, number)
                self._embeddings[place] = shown(encoding.pixels, number)
        for index, chunk in enumerate(plan.chunks):
            self._see(index, chunk, plan)
            self._compute(chunk, step)
            self._report_prompt(index, chunk, step)
        self._in_flight.append(step)
        self.plans.append(plan)

    def _embedding(self, blocks: Sequence[int], number: int) -> int:
        return blocks[number // BLOCK_ROWS] * BLOCK_ROWS + number % BLOCK_ROWS

    def _see(self, index: int, chunk: Chunk, plan: StepPlan) -> None:
        """A plan has the embeddings of all image tokens of a chunk, and no others."""
        start = chunk.num_computed_tokens
        ids, end = self._rows[chunk.row].token_ids, start + chunk.num_scheduled_tokens
        found = dict(enumerate(ids[start:end]))
        for one in plan.seen:
            if one.chunk == index:
                tokens = [i for first, count in one.runs for i in range(first, first + count)]
                for number, token in enumerate(tokens, one.first):
                    assert found[token] == IMAGE_TOKEN, "an embedding for no image token, or two"
                    found[token] = self._embeddings[self._embedding(one.blocks, number)]
        assert list(found.values()) == seen(ids, self.images.get(chunk.request_id, ()))[start:end]

    def _swap_in(self, plan: StepPlan) -> None:
        for block_id, host_id in plan.swap_ins:
            assert all(block_id not in step.touched for step in self._in_flight), (
                f"block {block_id} is swapped into while a step in flight uses it"
            )
            self._copy(self._host_slots, host_id, self._slots, block_id)

    def _swap_out(self, plan: StepPlan) -> None:
        """As late as the contract allows."""
        for block_id, host_id in plan.swap_outs:
            self._copy(self._slots, block_id, self._host_slots, host_id)

    def _copy(self, source: list[int], source_id: int, target: list[int], target_id: int) -> None:
        size = self._block_size
        values = source[source_id * size : (source_id + 1) * size]
        target[target_id * size : (target_id + 1) * size] = values

    def _apply_rows(self, plan: StepPlan) -> None:
        busy = {chunk.row for step in self._in_flight for chunk in step.plan.chunks}
        for row in plan.released_rows:
            assert row not in busy, f"row {row} is released under a step in flight"
            del self._rows[row]
        for admission in plan.admissions:
            assert 0 <= admission.row < self._max_num_seqs
            assert admission.row not in self._rows, f"row {admission.row} is taken"
            self._rows[admission.row] = Row(
                admission.request_id,
                list(admission.token_ids),
                admission.num_prompt_tokens,
                [list(ids) for ids in admission.block_ids],
                admission.params,
                admission.adapter,
            )
            assert len(self._rows[admission.row].tables) == len(self.kinds)
        admitted = {admission.row for admission in plan.admissions}
        for group, row, block_ids in plan.new_blocks:
            assert row not in admitted, "new blocks for a row of the same plan"
            assert block_ids
            self._rows[row].tables[group] += block_ids
        for held in self._rows.values():
            block_ids = self._live(held)
            assert len(set(block_ids)) == len(block_ids), "a block twice in the tables of a row"

    def _first(self, group: int, position: int) -> int:
        """The first position that a query at ``position`` sees."""
        window = self.kinds[group].window
        return 0 if window is None else max(0, position - window + 1)

    def _first_read(self, group: int, position: int) -> int:
        """The same for what is read, though it may be hidden."""
        return self._first(group, position) // self._window_step * self._window_step

    def _live(self, row: Row) -> list[int]:
        """The blocks that the row may still read or write."""
        return [
            block_id
            for group, block_ids in enumerate(row.tables)
            for block_id in block_ids[
                self._first_read(group, row.num_computed) // self._block_size :
            ]
            if block_id != NO_BLOCK
        ]

    def _compute(self, chunk: Chunk, step: Launched) -> None:
        request_id, start = chunk.request_id, chunk.num_computed_tokens
        end = start + chunk.num_scheduled_tokens
        row = self._rows[chunk.row]
        assert row.request_id == request_id, "a chunk of a request that does not own the row"
        assert end > start
        assert row.num_computed in (-1, start), "a gap or an overlap between two chunks"
        row.num_computed = end
        known_end = end - chunk.num_draft_tokens
        assert known_end <= len(row.token_ids), "a chunk of tokens nobody knows"
        assert chunk.samples == (known_end == len(row.token_ids)), (
            "samples does not match the known tokens"
        )
        assert chunk.samples or not chunk.draft_token_ids, "drafts before the known tokens end"
        known = seen(row.token_ids[:known_end], self.images.get(request_id, ()))
        token_ids = [*known, *chunk.draft_token_ids]
        values = chain(token_ids, *self.regions[request_id])
        if self._has_states:
            self._advance(chunk, values, step.plan)
        for group, block_ids in enumerate(row.tables):
            first = self._first_read(group, start)
            for position in range(first, start):
                assert self._slots[self._slot(block_ids, position)] == values[position], (
                    f"{request_id} reads a wrong or stale slot at position {position}"
                )
            for position in range(start, end):
                block_id = block_ids[position // self._block_size]
                others = [r for r in self._rows.values() if r is not row]
                sharers = [r.request_id for r in others if block_id in self._live(r)]
                assert not sharers, f"a block is written that others hold, too: {sharers}"
                for other in self._in_flight:
                    assert other.touched.get(block_id, set()) <= {request_id}, (
                        f"block {block_id} was handed out while a step in flight uses it"
                    )
                self._slots[self._slot(block_ids, position)] = values[position]
            for block_id in block_ids[first // self._block_size : -(-end // self._block_size)]:
                step.touched.setdefault(block_id, set()).add(request_id)

    def _advance(self, chunk: Chunk, values: list[int], plan: StepPlan) -> None:
        start, end = chunk.num_computed_tokens, len(values)
        assert not chunk.draft_token_ids, "a draft that cannot be taken back"
        assert not start or self._states[chunk.row] == values[start - 1], "a state of other tokens"
        self._states[chunk.row] = values[-1]
        for row, num_tokens, snapshot in plan.state_saves:
            if row == chunk.row:
                assert start < num_tokens <= end, "a state that the chunk does not come by"
                self._snapshots[snapshot] = values[num_tokens - 1]

    def _report_prompt(self, index: int, chunk: Chunk, step: Launched) -> None:
        row = self._rows[chunk.row]
        first = chunk.num_computed_tokens + 1
        end = min(first + chunk.num_scheduled_tokens, row.num_prompt_tokens)
        if row.params.prompt_logprobs is not None and first < end:
            step.prompt_logprobs[index] = [
                toy_logprobs(row.token_ids[p], p) for p in range(first, end)
            ]

    def _slot(self, block_ids: Sequence[int], position: int) -> int:
        block_id = block_ids[position // self._block_size]
        assert block_id != NO_BLOCK, "what the window left behind is read"
        return block_id * self._block_size + position % self._block_size

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        raise AssertionError("no draft network was asked for")

    def sample(self, mask: TokenMask | None) -> ToyRunner:
        step = self._in_flight[-1]
        self.calls.append(f"sample {step.plan.step_id}")
        assert step.token_ids is None, "a step samples twice"
        self.masks.append(mask)
        masked = [] if mask is None else mask.chunk_indices
        assert masked == sorted(masked)
        step.token_ids = []
        for i, chunk in enumerate(step.plan.chunks):
            if not chunk.samples:
                assert i not in masked
                step.token_ids.append([])
                continue
            assert masked.count(i) in (0, chunk.num_draft_tokens + 1), "a place without a mask"
            masks: Sequence[npt.NDArray[np.int32]] = ()
            if mask is not None and i in masked:
                masks = list(mask.bitmask[masked.index(i) :])
            assert chunk.constrained or len(masks) == 0
            known = len(self._rows[chunk.row].token_ids)
            step.token_ids.append(self._draw(chunk, masks))
            if self._rows[chunk.row].params.logprobs is not None:
                step.logprobs[i] = [
                    toy_logprobs(token_id, position)
                    for position, token_id in enumerate(step.token_ids[-1], known)
                ]
        return self

    def _draw(self, chunk: Chunk, masks: Sequence[npt.NDArray[np.int32]]) -> list[int]:
        """One token, and one more for each draft that is what would have been drawn anyway."""
        row = self._rows[chunk.row]
        drawn: list[int] = []
        for draft in (*chunk.draft_token_ids, None):
            allowed = self._allowed(row)
            if len(masks):
                bits = masks[len(drawn)]
                allowed = [
                    ok and bool(bits[t // 32] >> (t % 32) & 1) for t, ok in enumerate(allowed)
                ]
            length = len(row.token_ids)
            values = [
                self._slots[self._slot(block_ids, p)]
                for group, block_ids in enumerate(row.tables)
                for p in range(self._first(group, length - 1), length)
            ]
            drawn.append(pick(values, self.vocab_size, allowed))
            row.token_ids.append(drawn[-1])
            if drawn[-1] != draft:
                break
        row.num_computed -= chunk.num_draft_tokens + 1 - len(drawn)
        return drawn

    def _allowed(self, row: Row) -> list[bool]:
        if len(row.token_ids) - row.num_prompt_tokens >= row.params.min_tokens:
            return [True] * self.vocab_size
        eos = frozenset() if row.params.ignore_eos else self._eos_token_ids
        stops = eos | set(row.params.stop_token_ids)
        return [token_id not in stops for token_id in range(self.vocab_size)]

    def collect(self) -> StepResult:
        step = self._in_flight.popleft()
        self.calls.append(f"collect {step.plan.step_id}")
        assert step.token_ids is not None, "a step is collected before it sampled"
        self._swap_out(step.plan)
        return StepResult(step.plan.step_id, step.token_ids, step.logprobs, step.prompt_logprobs)
