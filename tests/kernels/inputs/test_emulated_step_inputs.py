"""The inputs of a step without a GPU: the kernel's own source (``emulated``)."""

from __future__ import annotations

import ctypes

import pytest

from tests.kernels import emulated
from tests.kernels.inputs.test_step_inputs import Call, check


class StepInputs(ctypes.Structure):
    """As in ``inputs/step_inputs.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tokens", "block_table", "rows", "computed")),
        ("on_host", ctypes.c_bool),
        *((name, ctypes.c_void_p) for name in ("sent_rows", "cu_queries", "token_ids")),
        *((name, ctypes.c_void_p) for name in ("positions", "slots", "seq_lens", "batch_table")),
        ("tokens_stride", ctypes.c_int64),
        *((name, ctypes.c_int) for name in ("table_stride", "block_size", "batch")),
    )


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return emulated.library("step_inputs", ("inputs/step_inputs.cu",), threads=256)


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("batch", [1, 32, 33, 480, 481, 1024])
def test_what_is_looked_up(library: ctypes.CDLL, batch: int, on_host: bool) -> None:
    def look_up(call: Call) -> None:
        names = set(Call.__slots__) - {"block_size"}
        tensors = {name: getattr(call, name) for name in names}
        inputs = StepInputs(
            **{name: None if t is None else t.data_ptr() for name, t in tensors.items()},
            on_host=on_host,
            tokens_stride=call.tokens.shape[1],
            table_stride=call.block_table.shape[1],
            block_size=call.block_size,
            batch=len(call.rows),
        )
        assert library.step_inputs(ctypes.byref(inputs)) == 0

    rows = [i if i % 7 else -1 for i in range(1, batch + 1)]
    computed = [i * 37 % 800 for i in range(batch)]
    query_lens = [1 + i % 3 for i in range(batch)]
    check(look_up, rows, computed, query_lens, 16, on_host=on_host)
