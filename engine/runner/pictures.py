"""The encoder's outputs on the device, and what they change in a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from engine.layers.vision import Sight
from engine.runner.inputs import ChunkFields
from engine.runner.rows import Ints
from engine.scheduler.plan import Encoding, Seen, StepPlan
from engine.vision import BLOCK_ROWS, Vision
from kernels.transfer import put, to_device

Encoder = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
"""From pixels ([height, width, 3] uint8 each) to embeddings ([image tokens, width] each)."""
Grids = Sequence[tuple[int, int, int]]
"""``Admission.grids``"""


class PictureRows:
    """A row of memory for each embedding. The scheduler's ``Pictures`` says which are whose."""

    def __init__(
        self,
        encoder: Encoder,
        vision: Vision,
        width: int,
        max_num_seqs: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """width: of what the encoder makes of an image token. max_num_seqs: rows of requests."""
        self.vision = vision
        self._encoder = encoder
        self._rows = torch.empty(vision.num_blocks * BLOCK_ROWS, width, dtype=dtype, device=device)
        self._grids: list[Grids] = [()] * max_num_seqs
        self._ends = np.zeros(max_num_seqs, np.int64)
        """Where the last picture of each row ends; 0 where rotary positions are the places in the
        cache."""
        self._deltas = np.zeros(max_num_seqs, np.int64)
        """What is added to the places behind it to get rotary positions."""
        self.shifts: torch.Tensor | None = None
        """[max_num_seqs] int64: the same on the device; None if the model rotates by places."""
        if vision.rotates_by_grid:
            self.shifts = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)

    def apply(self, plan: StepPlan) -> None:
        """Take note of admissions, and encode the pictures of a step."""
        for admission in plan.admissions:
            grids: Grids = admission.grids if self.vision.rotates_by_grid else ()
            self._grids[admission.row] = grids
            first, rows, columns = grids[-1] if grids else (0, 0, 0)
            self._ends[admission.row] = first + rows * columns
            sides = ((max(rows, columns) - rows * columns) for _, rows, columns in grids)
            self._deltas[admission.row] = sum(sides)
        if plan.admissions and self.shifts is not None:
            admitted = np.array([admission.row for admission in plan.admissions])
            put(self.shifts, np.stack((admitted, self._deltas[admitted])))
        if plan.encodings:
            device = self._rows.device
            pixels = [to_device(_pixels(encoding), device) for encoding in plan.encodings]
            encoded = self.encode(pixels)
            for encoding, embeddings in zip(plan.encodings, encoded, strict=True):
                places = _rows_of(encoding.blocks)[: len(embeddings)]
                self._rows[to_device(places, device)] = embeddings.to(self._rows.dtype)

    @torch.inference_mode()
    def encode(self, pixels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self._encoder(pixels)

    @property
    def device(self) -> torch.device:
        return self._rows.device

    def only_shift(self, fields: ChunkFields) -> bool:
        """Whether all that pictures mean for a step without image tokens is that some rotary
        positions are shifted."""
        ends = self._ends[fields.rows]
        return bool(ends.any() and (fields.computed >= ends).all())

    def sight(self, fields: ChunkFields, seen: Sequence[Seen]) -> Sight | None:
        """None if no chunk has to do with pictures."""
        turns = bool(self._ends[fields.rows].any())
        if not seen and not turns:
            return None
        starts = fields.query_lens.cumsum() - fields.query_lens
        index, places = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for one in seen:
            tokens = np.concatenate([np.arange(first, first + n) for first, n in one.runs])
            index.append(starts[one.chunk] + tokens)
            places.append(_rows_of(one.blocks)[one.first : one.first + len(tokens)])
        device = self._rows.device
        sent = to_device(np.stack((np.concatenate(index), np.concatenate(places))), device)
        rotary = to_device(self._rotary(fields), device) if turns else None
        return Sight(sent[0], self._rows.index_select(0, sent[1]), rotary)

    def _rotary(self, fields: ChunkFields) -> Ints:
        """[3, num_tokens]"""
        ends = fields.query_lens.cumsum()
        starts = ends - fields.query_lens
        shifts = fields.computed - starts + self._deltas[fields.rows]
        positions = np.arange(ends[-1]) + shifts.repeat(fields.query_lens)
        positions = np.tile(positions, (3, 1))
        # Only the chunks of prompts that pictures are in or come after need more than that.
        for chunk in (fields.computed < self._ends[fields.rows]).nonzero()[0].tolist():
            computed = int(fields.computed[chunk])
            end = computed + int(fields.query_lens[chunk])
            found = rotary_positions(self._grids[fields.rows[chunk]], computed, end)
            positions[:, starts[chunk] : ends[chunk]] = found
        return positions


def rotary_positions(grids: Grids, start: int, end: int) -> Ints:
    """[3, end - start]: frame, row and column of the tokens from ``start`` to ``end``. A picture
    begins at the position behind the text before it, and text goes on behind its larger side."""
    parts: list[Ints] = []
    place = position = 0  # of the next token: in the cache, and for the rotation

    def text(until: int) -> None:
        run = np.arange(max(start, place), max(start, min(end, until))) - place + position
        parts.append(np.broadcast_to(run, (3, len(run))))

    for first, rows, columns in grids:
        if first >= end:
            break
        text(first)
        position, place = position + first - place, first
        cells = np.arange(max(start, place), max(start, min(end, place + rows * columns))) - place
        parts.append(position + np.stack((cells * 0, cells // columns, cells % columns)))
        position, place = position + max(rows, columns), place + rows * columns
    text(end)
    return np.concatenate(parts, 1)


def _pixels(encoding: Encoding) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    flat = np.frombuffer(bytearray(encoding.pixels), np.uint8)  # writable, as torch wants it
    return flat.reshape(encoding.height, encoding.width, 3)


def _rows_of(blocks: Sequence[int]) -> Ints:
    """All rows of these blocks, in order."""
    return (np.array(blocks, np.int64)[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS)).reshape(-1)
