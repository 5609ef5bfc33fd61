"""What a step does and what it did: the contract between the core and a runner.

A runner keeps one *row* of persistent state per running request (known token ids, block table,
sampling parameters), so that a plan carries only what changed. Because a sampled id lands in the
row's token table on the device, step N+1 can be planned and launched before the host has seen what
step N sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from engine.pooling import PoolingParams
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from engine.cache.groups import GroupKind, RecurrentState
    from engine.messages import TokenLogprobs
    from engine.pooling import PoolingModel
    from engine.spec.costs import StepCosts
    from engine.vision import Vision


class Admission(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A request takes a row: new, or resumed after a preemption."""

    row: int
    """In [0, max_num_seqs)."""
    request_id: str
    token_ids: Sequence[int]
    """All known tokens: the prompt, then what was generated before a preemption."""
    num_prompt_tokens: int
    block_ids: Sequence[Sequence[int]]
    """Its block table in each layer group: shared prefix blocks first, then all blocks this step's
    chunk writes to (there may be more). ``new_blocks`` of the same plan says nothing about this
    row. In a group with a window, ``NO_BLOCK`` stands for blocks behind the window."""
    params: SamplingParams
    adapter: str = ""
    """Name of the adapter for all its tokens; empty for none."""
    pooling: PoolingParams | None = None
    """Set if a vector or a score of the prompt is computed in place of new tokens."""
    grids: list[tuple[int, int, int]] = []
    """(first token, rows, columns) of the image tokens of each of its pictures, for models whose
    rotary positions depend on them."""


class Encoding(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A picture whose embeddings are computed before the forward pass, and kept."""

    height: int
    width: int
    pixels: bytes
    """As ``messages.Image`` has them."""
    blocks: list[int]
    """Where its embeddings go: ``vision.BLOCK_ROWS`` of them in each block."""


class Seen(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The image tokens of a picture that are in a chunk."""

    chunk: int
    """Its index in the plan."""
    runs: list[tuple[int, int]]
    """(first, count) of those next to each other; counted from the chunk's first token."""
    first: int
    """How many image tokens of the picture are before them."""
    blocks: list[int]
    """Where the picture's embeddings are."""


UNSEEN = -1
"""Stands for a draft whose token id only the device knows: it is in the row's token table
already."""


class Chunk(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The tokens ``[num_computed_tokens, num_computed_tokens + num_scheduled_tokens)`` of a row.

    The last ``num_draft_tokens`` of them are drafts. The step samples one token after the last
    known token and one after each draft. It keeps the samples up to and including the first that
    differs from the draft at its position."""

    row: int
    request_id: str
    num_computed_tokens: int
    num_scheduled_tokens: int
    samples: bool
    """Whether the step samples the next token, because the chunk ends at the last known token or at
    the last draft."""
    constrained: bool = False
    """A grammar mask must be applied before sampling."""
    draft_token_ids: tuple[int, ...] = ()
    """The drafts: guesses of the tokens after the last known one; or ``UNSEEN`` for each."""

    @property
    def num_draft_tokens(self) -> int:
        return len(self.draft_token_ids)


@dataclass(slots=True)
class StepPlan:
    """One step; a runner applies the fields in their order. A plan has a chunk or a swap-out."""

    step_id: int
    released_rows: list[int] = field(default_factory=list)
    """Rows whose requests are gone. No step in flight has a chunk of them, and an admission of the
    same plan may take one at once."""
    swap_outs: list[tuple[int, int]] = field(default_factory=list)
    """(block, host block) to copy to host memory. Steps in flight may still write the block; none
    after this one does before this one is collected."""
    swap_ins: list[tuple[int, int]] = field(default_factory=list)
    """(block, host block) to copy back before the forward pass. The copy out was collected; no step
    in flight uses the block. The host block is free again for the plans that follow."""
    admissions: list[Admission] = field(default_factory=list)
    new_blocks: list[tuple[int, int, list[int]]] = field(default_factory=list)
    """(layer group, row, block ids) to append to a block table of a row admitted by an earlier
    plan."""
    block_copies: list[tuple[int, int, int]] = field(default_factory=list)
    """(source block, target block, number of leading slots) to copy before the forward pass."""
    state_loads: list[tuple[int, int]] = field(default_factory=list)
    """(snapshot, row): the row begins with this state, copied before the forward pass."""
    encodings: list[Encoding] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    """At most one for a row."""
    seen: list[Seen] = field(default_factory=list)
    """Where chunks have image tokens."""
    state_saves: list[tuple[int, int, int]] = field(default_factory=list)
    """(row, number of tokens, snapshot): keep the state after so many tokens of the row, which its
    chunk computes or ends with. The snapshot may be one that this plan loads."""
    keeps_features: bool = True
    """Whether the runner keeps, for each token of the step, the feature that a draft network reads
    (``FeatureCache``). It may skip that only in steps in which each chunk is one generated token:
    drafts after tokens without features are accepted nearly as often."""

    def append(self, row: int, block_ids: Sequence[list[int]]) -> None:
        """Append to the block tables of a row; block_ids: the new blocks of each layer group."""
        for group, new in enumerate(block_ids):
            if new:
                self.new_blocks.append((group, row, new))

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar mask must be applied before the step is sampled."""
        return any(chunk.constrained for chunk in self.chunks)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_scheduled_tokens for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class TokenMask:
    """Allowed tokens for the constrained rows of a step."""

    chunk_indices: list[int]
    """The chunk that each row of the mask belongs to, ascending. A chunk with drafts has a row for
    each token that it samples, in their order."""
    bitmask: npt.NDArray[np.int32]
    """[len(chunk_indices), ceil(vocab_size / 32)] int32; bit i % 32 of word i // 32 allows id i."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step sampled."""

    step_id: int
    token_ids: list[list[int]]
    """The new tokens of each chunk of the plan, in its order; empty where nothing was sampled. All
    but the last are accepted drafts."""
    logprobs: Mapping[int, list[TokenLogprobs]] = field(default_factory=dict)
    """By the index of the chunk, where its request asked: one for each new token, or more."""
    prompt_logprobs: Mapping[int, list[TokenLogprobs]] = field(default_factory=dict)
    """Likewise: one for each prompt token that the chunk's tokens predict, so for those from
    position ``num_computed_tokens + 1`` on."""
    pooled: Mapping[int, bytes] = field(default_factory=dict)
    """By the index of the chunk, of each that ends with its prompt and whose request pools:
    ``RequestOutput.pooled``."""


class LaunchedStep(Protocol):
    """A step that was sampled, as its runner knows it."""

    def collect(self) -> StepResult:
        """Wait for the step. Steps are collected in the order in which they were launched."""


class Runner(Protocol):
    """Executes plans. One step is ``forward``, then ``sample``, then (any time later) ``collect``.

    ``forward`` and ``sample`` only enqueue work on an asynchronous device. At most two steps are in
    flight, which are launched and not collected; of a model in stages, one more than stages.
    """

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV cache."""

    @property
    def num_swap_blocks(self) -> int:
        """Blocks of host memory for swapping; 0: preempted requests are always recomputed."""

    @property
    def swap_s_per_block(self) -> float:
        """Seconds that it takes to copy a block one way, as measured at start-up."""

    @property
    def layer_groups(self) -> Sequence[GroupKind | RecurrentState]:
        """The kind of each layer group; those that keep all blocks come first. Most models have one
        group, of full attention. Any block can serve any group. Blocks that a kind does not keep
        may be handed out again: the runner must not read them. Layers that keep a state form the
        last group."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits, padding included."""

    @property
    def num_lookahead_tokens(self) -> int:
        """Slots behind the tokens of a step that ``draft`` uses, if they are there."""

    @property
    def pooling(self) -> PoolingModel | None:
        """What it makes of a prompt in place of new tokens; None if it samples."""

    @property
    def vision(self) -> Vision | None:
        """How the model sees; None if it does not."""

    @property
    def step_costs(self) -> StepCosts | None:
        """The measured times of steps with and without drafts; None where they were not
        measured."""

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        """Draft with the draft network that the config names: at most ``num_tokens`` tokens for
        each (row, number of known tokens). All steps with chunks of these rows must be collected.

        wait: return token ids, whatever that takes. If False, the drafts may be ``UNSEEN``, which
        only the next plan may use.
        """

    def forward(self, plan: StepPlan) -> None:
        """Apply the plan's changes to rows and blocks, and compute the logits of its chunks."""

    def sample(self, mask: TokenMask | None) -> LaunchedStep:
        """Sample the step that ``forward`` launched last. mask: for its constrained chunks."""
