"""Rotary positions by rows and columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.layers.rope import RopeConfig, cos_sin_table
from engine.layers.vision import RotarySections, rotary_rows
from engine.runner.inputs import ChunkFields
from engine.runner.pictures import Grids, PictureRows, rotary_positions
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import Admission, Chunk, StepPlan
from engine.vision import Vision

GRIDS: Grids = ((2, 2, 3), (10, 1, 4))


def test_text_goes_on_behind_the_larger_side_of_a_picture() -> None:
    whole = rotary_positions(GRIDS, 0, 16)
    assert whole.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 7, 7, 7, 11, 12],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 7, 7, 7, 11, 12],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    ]
    for start in range(16):
        for end in range(start, 17):
            part = rotary_positions(GRIDS, start, end)
            assert (part == whole[:, start:end]).all(), (start, end)


def rows(vision: Vision) -> PictureRows:
    cpu = torch.device("cpu")
    return PictureRows(lambda _: [], vision, 4, 4, dtype=torch.float32, device=cpu)


def admission(row: int, grids: Grids) -> Admission:
    return Admission(row, "a", [1] * 20, 20, [[0]], SamplingParams(), grids=list(grids))


@pytest.mark.parametrize("chunks", [[(0, 0, 16), (1, 3, 5)], [(0, 14, 1), (1, 9, 1)], [(1, 0, 4)]])
def test_positions_of_a_step(chunks: list[tuple[int, int, int]]) -> None:
    """Of rows with and without pictures."""
    pictures = rows(Vision(image_token_id=1, side=1, num_blocks=1, rotates_by_grid=True))
    by_row: dict[int, Grids] = {0: GRIDS, 1: ()}
    pictures.apply(StepPlan(0, admissions=[admission(row, by_row[row]) for row in by_row]))
    fields = ChunkFields.read(
        [Chunk(row, "a", start, count, False) for row, start, count in chunks]
    )
    sight = pictures.sight(fields, [])
    if all(row == 1 for row, _, _ in chunks):
        assert sight is None
        return
    assert sight is not None
    assert sight.rotary is not None
    expected = [rotary_positions(by_row[row], start, start + n) for row, start, n in chunks]
    assert sight.rotary.tolist() == np.concatenate(expected, 1).tolist()


def test_without_pictures_and_without_such_rotation_there_is_nothing_to_see() -> None:
    fields = ChunkFields.read([Chunk(0, "a", 0, 16, False)])
    for rotates in (True, False):
        pictures = rows(Vision(image_token_id=1, side=1, num_blocks=1, rotates_by_grid=rotates))
        pictures.apply(StepPlan(0, admissions=[admission(0, () if rotates else GRIDS)]))
        assert pictures.sight(fields, []) is None


@pytest.mark.parametrize(
    ("sizes", "interleaved", "axes"),
    [
        ((2, 1, 1), False, [0, 0, 1, 2]),
        ((2, 1, 1), True, [0, 1, 2, 0]),
        ((4, 2, 2), True, [0, 1, 2, 0, 1, 2, 0, 0]),
    ],
)
def test_each_pair_turns_by_one_axis(
    sizes: tuple[int, int, int], interleaved: bool, axes: list[int]
) -> None:
    sections = RotarySections(sizes, interleaved=interleaved)
    assert sections.axes().tolist() == axes
    table = cos_sin_table(RopeConfig(), 2 * len(axes), 9, torch.device("cpu"))
    positions = torch.tensor([[1, 5], [2, 5], [8, 5]])
    found = rotary_rows(table, sections.axes().repeat(2), positions)
    assert torch.equal(found[1], table[5])
    for pair, axis in enumerate(axes):
        both = [pair, pair + len(axes)]
        assert torch.equal(found[0, both], table[positions[axis, 0], both])
