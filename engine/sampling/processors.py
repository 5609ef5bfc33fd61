"""Logits processors: what requests can ask to be done to their logits, one class for each option.

Whatever depends on earlier tokens reads them from the runner's token table on the device:
``tokens[row, :position]``, of which ``tokens[row, num_prompt_tokens:position]`` was generated. So
there is no state to keep up to date, and preemption, drafts and steps in flight need no care here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling_params import SamplingParams
from kernels import ops
from kernels.transfer import to_device

HELD_BACK = -1e30
"""The logit of a stop token before min_tokens, and of the last token of a bad word. Finite, so that
they are still generated where nothing else is allowed."""

Ints = npt.NDArray[np.int64]
T = TypeVar("T")
P = TypeVar("P")


class Places(NamedTuple):
    """Where tokens are sampled: at ``positions`` of each of ``rows``. A row may occur several
    times, with different positions."""

    tokens: torch.Tensor
    """[max_num_rows, max_len] int64: the token table."""
    rows: Ints
    positions: Ints


class LogitsProcessor(Protocol):
    """One kind of change to logits. The logits of rows that ask for none stay as they are."""

    def admit(self, row: int, params: SamplingParams, num_prompt_tokens: int) -> None:
        """A request takes a row."""

    def release(self, row: int) -> None:
        """The row's request is gone. Rows that asked for nothing are ignored."""

    def concerns(self, rows: Ints) -> bool:
        """Whether any of these rows asked for it."""

    def apply(self, logits: torch.Tensor, at: Places) -> None:
        """Change, in place, the logits for some places: [num_rows, vocab], contiguous."""


class _ByRow(ABC, Generic[T]):
    """Keeps what the request of each row asked for, of type T, on the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[int, T] = {}

    def admit(self, row: int, params: SamplingParams, num_prompt_tokens: int) -> None:
        self.release(row)
        asked = self._read(params, num_prompt_tokens)
        if asked is not None:
            self._held[row] = asked

    @abstractmethod
    def _read(self, params: SamplingParams, num_prompt_tokens: int) -> T | None:
        """What the request asks for; None for nothing."""

    def release(self, row: int) -> None:
        self._held.pop(row, None)

    def concerns(self, rows: Ints) -> bool:
        return bool(self._held) and not self._held.keys().isdisjoint(rows.tolist())

    def _concerned(self, rows: Ints) -> list[tuple[int, T]]:
        """(index into ``rows``, what is kept for it) of the rows that asked for something."""
        held = self._held
        return [(i, held[row]) for i, row in enumerate(rows.tolist()) if row in held]

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return to_device(array, self._device)


class _Prepared(_ByRow[T], Generic[T, P]):
    """Prepares what the rows of a step asked for on the device, as a P, and reuses it while the
    rows stay the same, which in a decoding batch they do for many steps."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._prepared_for: bytes | None = None
        self._prepared: P | None = None

    def release(self, row: int) -> None:
        super().release(row)
        self._prepared_for = None

    def apply(self, logits: torch.Tensor, at: Places) -> None:
        if not self._held:
            return
        if self._prepared_for != at.rows.tobytes():
            concerned = self._concerned(at.rows)
            self._prepared = self._prepare(concerned, logits.shape[1]) if concerned else None
            self._prepared_for = at.rows.tobytes()
        if self._prepared is not None:
            self._apply(self._prepared, logits, at)

    @abstractmethod
    def _prepare(self, concerned: list[tuple[int, T]], vocab_size: int) -> P:
        """Bring what is kept for the rows of a step to the device. concerned: from
        ``_concerned``."""

    @abstractmethod
    def _apply(self, prepared: P, logits: torch.Tensor, at: Places) -> None:
        """As ``LogitsProcessor.apply``."""


@dataclass(frozen=True, slots=True)
class _Biases:
    places: torch.Tensor
    """[n] int64: indices into the flattened logits."""
    values: torch.Tensor
    """[n] float32"""


class LogitBias(_Prepared[tuple[Ints, npt.NDArray[np.float32]], _Biases]):
    """Adds ``logit_bias``."""

    def _read(
        self, params: SamplingParams, num_prompt_tokens: int
    ) -> tuple[Ints, npt.NDArray[np.float32]] | None:
        if params.logit_bias is None:
            return None
        ids, biases = params.logit_bias.keys(), params.logit_bias.values()
        return np.fromiter(ids, np.int64), np.fromiter(biases, np.float32)

    def _prepare(
        self, concerned: list[tuple[int, tuple[Ints, npt.NDArray[np.float32]]]], vocab_size: int
    ) -> _Biases:
        places = np.concatenate([i * vocab_size + ids for i, (ids, _) in concerned])
        values = np.concatenate([values for _, (_, values) in concerned])
        return _Biases(self._tensor(places), self._tensor(values))

    def _apply(self, prepared: _Biases, logits: torch.Tensor, at: Places) -> None:
        logits.view(-1).scatter_add_(0, prepared.places, prepared.values)


@dataclass(frozen=True, slots=True)
class _Words:
    """The bad words of all rows of a step, n in all: [n] int64 each, except ``prefixes``."""

    indices: torch.Tensor
    """Index of the row, among those of the step."""
    places: torch.Tensor
    """Index of the word's last token in the flattened logits."""
    earliest: torch.Tensor
    """The first position at which the output is long enough to end in the word."""
    prefixes: torch.Tensor
    """[n, longest]: the word without its last token, padded in front with -1."""


class BadWords(_Prepared[tuple[int, tuple[tuple[int, ...], ...]], _Words]):
    """Holds back the last token of a bad word if the output ends in the tokens before it."""

    def _read(
        self, params: SamplingParams, num_prompt_tokens: int
    ) -> tuple[int, tuple[tuple[int, ...], ...]] | None:
        words = params.bad_words_token_ids
        return (num_prompt_tokens, words) if words else None

    def _prepare(
        self, concerned: list[tuple[int, tuple[int, tuple[tuple[int, ...], ...]]]], vocab_size: int
    ) -> _Words:
        words = [(i, num_prompt, word) for i, (num_prompt, words) in concerned for word in words]
        columns = [
            (i, i * vocab_size + word[-1], num_prompt + len(word) - 1)
            for i, num_prompt, word in words
        ]
        longest = max(len(word) for *_, word in words) - 1
        prefixes = [(-1,) * (longest - len(word) + 1) + word[:-1] for *_, word in words]
        indices, places, earliest = self._tensor(np.array(columns, np.int64).T)
        shape = len(words), longest
        return _Words(
            indices, places, earliest, self._tensor(np.array(prefixes, np.int64).reshape(shape))
        )

    def _apply(self, prepared: _Words, logits: torch.Tensor, at: Places) -> None:
        row, position = self._tensor(np.stack((at.rows, at.positions)))[:, prepared.indices]
        longest = prepared.prefixes.shape[1]
        before = position.unsqueeze(1) + torch.arange(-longest, 0, device=self._device)
        found = at.tokens[row.unsqueeze(1), before.clamp_(min=0)]
        begun = ((found == prepared.prefixes) | (prepared.prefixes < 0)).all(-1)
        begun &= position >= prepared.earliest
        # Words may share their last token: to add HELD_BACK twice does no harm.
        logits.view(-1).scatter_add_(0, prepared.places, (begun * HELD_BACK).to(logits.dtype))


@dataclass(frozen=True, slots=True)
class _Stops:
    """The n stop tokens that are held back for the rows of a step."""

    rows: Ints
    """[rows with stop tokens], on the host: their indices among the rows of the step."""
    row_ends: Ints
    """Likewise: the first position at which the row may stop."""
    indices: torch.Tensor
    """[n] int64: the index of each token's row."""
    places: torch.Tensor
    """[n] int64: its index in the flattened logits."""
    ends: torch.Tensor
    """[n] int64: the first position at which it is allowed."""


class MinTokens(_Prepared[tuple[int, list[int]], _Stops]):
    """Holds back everything that would end a request before ``min_tokens``."""

    def __init__(
        self, device: torch.device, vocab_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        super().__init__(device)
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids

    def _read(self, params: SamplingParams, num_prompt_tokens: int) -> tuple[int, list[int]] | None:
        stops = sorted(self._eos_token_ids.union(params.stop_token_ids))
        held = [token_id for token_id in stops if 0 <= token_id < self._vocab_size]
        if params.min_tokens == 0 or not held:
            return None
        return num_prompt_tokens + params.min_tokens, held

    def _prepare(
        self, concerned: list[tuple[int, tuple[int, list[int]]]], vocab_size: int
    ) -> _Stops:
        columns = [
            (i, i * vocab_size + token_id, end) for i, (end, held) in concerned for token_id in held
        ]
        indices, places, ends = self._tensor(np.array(columns, np.int64).T)
        rows = np.array([i for i, _ in concerned])
        row_ends = np.array([end for _, (end, _) in concerned])
        return _Stops(rows, row_ends, indices, places, ends)

    def _apply(self, prepared: _Stops, logits: torch.Tensor, at: Places) -> None:
        if (at.positions[prepared.rows] < prepared.row_ends).any():
            short = self._tensor(at.positions)[prepared.indices] < prepared.ends
            held_back = (short * HELD_BACK).to(logits.dtype)
            logits.view(-1).scatter_add_(0, prepared.places, held_back)


@dataclass(frozen=True, slots=True)
class _Masks:
    indices: torch.Tensor
    """[n] int64: the rows, by their indices in the step."""
    bitmask: torch.Tensor
    """[n, ceil(vocab_size / 32)] int32"""


class AllowedTokens(_Prepared[torch.Tensor, _Masks]):
    """Forbids all tokens except ``allowed_token_ids``. EOS stays allowed where a grammar decides
    about the end."""

    def __init__(
        self, device: torch.device, vocab_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        super().__init__(device)
        self._num_words = -(-vocab_size // 32)
        self._eos_token_ids = [token_id for token_id in eos_token_ids if token_id < vocab_size]

    def _read(self, params: SamplingParams, num_prompt_tokens: int) -> torch.Tensor | None:
        if params.allowed_token_ids is None:
            return None
        bits = np.zeros(self._num_words * 32, np.uint8)
        bits[list(params.allowed_token_ids)] = 1
        if params.structured_outputs is not None:
            bits[self._eos_token_ids] = 1
        return self._tensor(np.packbits(bits, bitorder="little").view(np.int32))

    def _prepare(self, concerned: list[tuple[int, torch.Tensor]], vocab_size: int) -> _Masks:
        indices = self._tensor(np.array([i for i, _ in concerned]))
        return _Masks(indices, torch.stack([held for _, held in concerned]))

    def _apply(self, prepared: _Masks, logits: torch.Tensor, at: Places) -> None:
        ops.apply_token_bitmask(logits, prepared.bitmask, prepared.indices)


class TopNSigma(_ByRow[float]):
    """Removes what is too many standard deviations below the best logit (arXiv 2411.07641). It
    comes behind the grammar's mask: removed tokens, and those held back, do not count."""

    def _read(self, params: SamplingParams, num_prompt_tokens: int) -> float | None:
        return params.top_n_sigma or None

    def apply(self, logits: torch.Tensor, at: Places) -> None:
        concerned = self._concerned(at.rows)
        if not concerned:
            return
        index = self._tensor(np.array([place for place, _ in concerned]))
        num_sigma = self._tensor(np.array([asked for _, asked in concerned]))
        # In float64, so that another order of summing does not change a decision.
        found = logits[index].double()
        counts = found > HELD_BACK / 2
        num = counts.sum(-1)
        mean = found.where(counts, 0.0).sum(-1) / num
        squares = (found - mean.unsqueeze(-1)).square().where(counts, 0.0)
        least = found.amax(-1) - num_sigma * (squares.sum(-1) / num).sqrt()
        is_removed = found < least.unsqueeze(-1)
        logits[index] = logits[index].masked_fill(is_removed, -torch.inf)
