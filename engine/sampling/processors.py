"""What requests may do to their logits before a token is drawn, one class for each kind of wish.

Whatever depends on the tokens so far reads them from the runner's token table on the device:
``tokens[row, :position]``, of which ``tokens[row, num_prompt_tokens:position]`` was generated.
There is no state to keep up to date, so preemption, drafts and steps in flight need nothing here.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from engine.messages import SamplingParams
from kernels import ops
from kernels.transfer import to_device

HELD_BACK = -1e30
"""The logit of a stop token before min_tokens, and of the end of a bad word. Finite: where nothing
else is allowed, they are generated all the same."""

Ints = npt.NDArray[np.int64]
T = TypeVar("T")


class LogitsProcessor(Protocol):
    """Rows that asked for nothing are never touched, and cost nothing."""

    def admit(self, row: int, params: SamplingParams, num_prompt_tokens: int) -> None:
        """A request takes a row."""

    def release(self, row: int) -> None:
        """The row's request is gone. Unknown rows pass."""

    def concerns(self, rows: Ints) -> bool:
        """Whether one of the rows asked for something."""

    def apply(
        self, tokens: torch.Tensor, logits: torch.Tensor, rows: Ints, positions: Ints
    ) -> None:
        """Change, in place, the logits that decide the token at ``positions`` of each of ``rows``.

        tokens: [max_num_rows, max_len] int64; logits: [num_rows, vocab], contiguous. A row may come
        several times, with different positions.
        """


class _ByRow(Generic[T]):
    """Holds something for each row that asked."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[int, T] = {}

    def admit(self, row: int, params: SamplingParams, num_prompt_tokens: int) -> None:
        self._held.pop(row, None)
        wish = self._read(params, num_prompt_tokens)
        if wish is not None:
            self._held[row] = wish

    def _read(self, params: SamplingParams, num_prompt_tokens: int) -> T | None:
        """None when the request asks for nothing."""
        raise NotImplementedError

    def release(self, row: int) -> None:
        self._held.pop(row, None)

    def concerns(self, rows: Ints) -> bool:
        return bool(self._held) and not self._held.keys().isdisjoint(rows.tolist())

    def _concerned(self, rows: Ints, positions: Ints) -> list[tuple[int, int, int, T]]:
        """(index, row, position, what is held) of the rows that asked."""
        held = self._held
        if not held:
            return []
        pairs = zip(rows.tolist(), positions.tolist(), strict=True)
        return [(i, r, p, held[r]) for i, (r, p) in enumerate(pairs) if r in held]

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return to_device(array, self._device)


class LogitBias(_ByRow[tuple[Ints, npt.NDArray[np.float32]]]):
    """Adds ``logit_bias``."""

    def _read(
        self, params: SamplingParams, num_prompt_tokens: int
    ) -> tuple[Ints, npt.NDArray[np.float32]] | None:
        if params.logit_bias is None:
            return None
        ids, biases = params.logit_bias.keys(), params.logit_bias.values()
        return np.fromiter(ids, np.int64), np.fromiter(biases, np.float32)

    def apply(
        self, tokens: torch.Tensor, logits: torch.Tensor, rows: Ints, positions: Ints
    ) -> None:
        concerned = self._concerned(rows, positions)
        if not concerned:
            return
        vocab_size = logits.shape[1]
        places = np.concatenate([i * vocab_size + ids for i, _, _, (ids, _) in concerned])
        biases = np.concatenate([values for *_, (_, values) in concerned])
        logits.view(-1).scatter_add_(0, self._tensor(places), self._tensor(biases))


class BadWords(_ByRow[tuple[int, tuple[tuple[int, ...], ...]]]):
    """Holds back the last token of a bad word whose other tokens were generated just now."""

    def _read(
        self, params: SamplingParams, num_prompt_tokens: int
    ) -> tuple[int, tuple[tuple[int, ...], ...]] | None:
        words = params.bad_words_token_ids
        return (num_prompt_tokens, words) if words else None

    def apply(
        self, tokens: torch.Tensor, logits: torch.Tensor, rows: Ints, positions: Ints
    ) -> None:
        # Index, last token, row and position of each word that its output is long enough for.
        places: list[tuple[int, int, int, int]] = []
        prefixes: list[tuple[int, ...]] = []
        for i, row, position, (num_prompt, words) in self._concerned(rows, positions):
            for word in words:
                if num_prompt + len(word) - 1 <= position:
                    places.append((i, word[-1], row, position))
                    prefixes.append(word[:-1])
        if not places:
            return
        index, last, row_d, position_d = self._tensor(np.array(places, np.int64).T)
        begun = self._begun(tokens, row_d, position_d, prefixes)
        # Words may share their last token: adding twice holds it back, too.
        held_back = (begun * HELD_BACK).to(logits.dtype)
        logits.view(-1).scatter_add_(0, index * logits.shape[1] + last, held_back)

    def _begun(
        self,
        tokens: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        prefixes: list[tuple[int, ...]],
    ) -> torch.Tensor:
        """Whether the tokens before each position are those of its prefix: bool [num_words]."""
        width = max(map(len, prefixes))
        if width == 0:
            return torch.ones(len(prefixes), dtype=torch.bool, device=self._device)
        wanted = np.full((len(prefixes), width), -1, np.int64)
        for line, prefix in zip(wanted, prefixes, strict=True):
            line[width - len(prefix) :] = prefix
        expected = self._tensor(wanted)
        before = positions.unsqueeze(1) + torch.arange(-width, 0, device=self._device)
        found = tokens[rows.unsqueeze(1), before.clamp_(min=0)]
        return ((found == expected) | (expected < 0)).all(-1)


class MinTokens(_ByRow[tuple[int, list[int]]]):
    """Holds back everything that would end a request before ``min_tokens``."""

    def __init__(
        self, device: torch.device, vocab_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        super().__init__(device)
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids

    def _read(self, params: SamplingParams, num_prompt_tokens: int) -> tuple[int, list[int]] | None:
        if params.min_tokens == 0:
            return None
        stops = sorted(self._eos_token_ids.union(params.stop_token_ids))
        held = [token_id for token_id in stops if 0 <= token_id < self._vocab_size]
        return num_prompt_tokens + params.min_tokens, held

    def apply(
        self, tokens: torch.Tensor, logits: torch.Tensor, rows: Ints, positions: Ints
    ) -> None:
        places = [
            (i, token_id)
            for i, _, position, (until, held) in self._concerned(rows, positions)
            if position < until
            for token_id in held
        ]
        if places:
            where = self._tensor(np.array(places, np.int64).T)
            logits[where[0], where[1]] = HELD_BACK


class AllowedTokens(_ByRow[torch.Tensor]):
    """Forbids all but ``allowed_token_ids``, and EOS where a grammar decides about the end."""

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

    def apply(
        self, tokens: torch.Tensor, logits: torch.Tensor, rows: Ints, positions: Ints
    ) -> None:
        concerned = self._concerned(rows, positions)
        if concerned:
            bitmask = torch.stack([held for *_, held in concerned])
            ops.apply_token_bitmask(
                logits, bitmask, self._tensor(np.array([i for i, *_ in concerned]))
            )
