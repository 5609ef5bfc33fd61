"""Small arrays on their way to a device and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.transfer import MAX_ARGUMENT_BYTES, pinned, put, to_device, write

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
WORDS = MAX_ARGUMENT_BYTES // 4


@pytest.fixture(autouse=True)
def _kernels() -> None:
    from kernels import cuda

    if torch.cuda.is_available():
        cuda.load()


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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [0, 1, 64, 65, WORDS // 2, WORDS // 2 + 1, WORDS, WORDS + 1])
def test_arrays_of_all_sizes_arrive(device: str, size: int) -> None:
    """As arguments of one launch or two, or by way of pinned memory."""
    array = np.random.default_rng(size).integers(-(2**31), 2**31, size, np.int32)
    assert to_device(array, torch.device(device)).tolist() == array.tolist()
    wide = array[: size // 2].astype(np.int64) << 7
    assert to_device(wide, torch.device(device)).tolist() == wide.tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("size", [0, 1, 32, 33, WORDS // 4 + 1, WORDS // 2, WORDS])
def test_values_are_put_in_their_places(device: str, dtype: torch.dtype, size: int) -> None:
    rng = np.random.default_rng(size)
    table = torch.full((7, 500), -9, dtype=dtype, device=device)
    places = rng.permutation(table.numel())[:size]
    expected = np.full(table.numel(), -9)
    expected[places] = values = rng.integers(-(2**31), 2**31, size)
    put(table, np.stack((places, values)))
    assert table.view(-1).tolist() == expected.tolist()


@pytest.mark.gpu
def test_places_and_values_that_do_not_fit_are_refused() -> None:
    table = torch.zeros(4, dtype=torch.int64, device="cuda")
    with pytest.raises(ValueError, match="place 4 is not in a table of 4"):
        put(table, np.array([[1, 4], [0, 0]]))
    with pytest.raises(ValueError, match="value 2147483648 has more than 32 bits"):
        put(table, np.array([[1], [2**31]]))
    with pytest.raises(ValueError, match="must match"):
        write(table, np.zeros(3, np.int64))


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
