"""Arguments of ``ops.sample_rows`` for rows of logits, each with its own entry of the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kernels.sampling_row import SAMPLING_ROW, sampling_table

INT32_MAX = 2**31 - 1


def arguments(
    num_rows: int, *, seed: int = 1, **limits: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(table, rows, positions). limits: fields of ``SAMPLING_ROW``, of all rows or of each."""
    how = np.zeros(num_rows, SAMPLING_ROW)
    how["temperature"], how["top_k"], how["top_p"] = 1, INT32_MAX, 1
    how["seed"] = (np.arange(num_rows) * 7919 + seed).astype(np.uint64)
    for name, limit in limits.items():
        how[name] = limit
    rows = torch.arange(num_rows, dtype=torch.int32)
    return sampling_table(how), rows, rows * 3 + 5
