"""A part of a GPU, as MPS or MIG leaves a process: some of its SMs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.cuda import green_contexts


@contextmanager
def few_sms(num_sms: int = 32) -> Iterator[None]:
    """Within the block kernels run on so many SMs. Skips the test where there are no green
    contexts (CUDA 12.4)."""
    if not green_contexts.SUPPORTED:
        pytest.skip("this torch has no green contexts")
    torch.cuda.synchronize()
    context: Any = green_contexts.GreenContext.create(num_sms=num_sms, device_id=0)
    context.set_context()
    try:
        yield
        torch.cuda.synchronize()
    finally:
        context.pop_context()
