"""Small arrays on their way to a device and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.transfer import pinned, to_device, write

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_a_part_of_a_tensor_is_written_and_nothing_beside_it(device: str, dtype: type) -> None:
    target = to_device(np.arange(10, dtype=dtype), torch.device(device))
    write(target[3:6], np.array([20, 21, 22, 23, 24], dtype)[::2])
    assert target.tolist() == [0, 1, 2, 20, 22, 24, 6, 7, 8, 9]


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_written_is_as_it_was_at_the_call(device: str) -> None:
    """The copy may be made after the array has changed, or is gone."""
    array = np.arange(100_000)
    target = torch.zeros(100_000, dtype=torch.int64, device=device)
    write(target, array)
    array[:] = -1
    assert torch.equal(target.cpu(), torch.arange(100_000))


def test_an_array_of_another_size_is_refused() -> None:
    with pytest.raises(RuntimeError, match="must match"):
        write(torch.zeros(3, dtype=torch.int64), np.zeros(4, np.int64))


@pytest.mark.gpu
def test_a_copy_to_the_host_is_pinned() -> None:
    tensor = torch.arange(5, device="cuda")
    host = pinned(tensor)
    torch.cuda.synchronize()
    assert host.is_pinned()
    assert host.tolist() == [0, 1, 2, 3, 4]
