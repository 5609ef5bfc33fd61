"""The parameters by which a request samples, as every implementation of ``ops.sample_rows`` reads
them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

SAMPLING_ROW = np.dtype(
    [
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("top_k", np.int32),
        ("seed", np.uint64),
        ("unused", np.uint64),
    ]
)
"""``SamplingRow`` of sampling_row.cuh: temperature 0 takes the best token; top_p 1, min_p 0, and
top_k of the vocabulary's size or more keep all tokens."""


def sampling_table(rows: npt.NDArray[np.void]) -> torch.Tensor:
    """``SAMPLING_ROW`` entries as ``ops.sample_rows`` takes them: [num_rows, 32] uint8, the same
    memory."""
    return torch.from_numpy(rows.view(np.uint8).reshape(len(rows), SAMPLING_ROW.itemsize))


def sampling_rows(table: torch.Tensor) -> npt.NDArray[np.void]:
    """The entries of a table: [num_rows]"""
    rows: npt.NDArray[np.void] = table.cpu().numpy().view(SAMPLING_ROW)[:, 0]
    return rows
