"""Drafts that are verified before the host has seen them: it reads them with the step's results."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from engine.scheduler.plan import UNSEEN, Chunk
from kernels.transfer import pinned


class UnseenDrafts:
    """Drafts on their way from the device to the host."""

    def __init__(self, rows: Sequence[int], token_ids: torch.Tensor) -> None:
        """token_ids: [len(rows), n] int64 on the device."""
        self._rows = rows
        self._token_ids = pinned(token_ids) if token_ids.is_cuda else token_ids.clone()

    def seen(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The chunks with the token ids of their drafts. Call it once the device is done with their
        step."""
        drafts = dict(zip(self._rows, self._token_ids.tolist(), strict=True))
        return [
            msgspec.structs.replace(
                chunk, draft_token_ids=tuple(drafts[chunk.row][: chunk.num_draft_tokens])
            )
            if UNSEEN in chunk.draft_token_ids
            else chunk
            for chunk in chunks
        ]
