"""Arrays that travel as arguments of kernels without a GPU: the kernels' own source (``emulated``)
writes what the host has, and nothing beside it."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.kernels import emulated

SIZES = [0, 1, 32, 33, 64, 65, 256, 257, 508, 509, 1016, 1017, 2032]
UNTOUCHED = -9


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return emulated.library("values", ("inputs/host_values.cu",), threads=256)


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize("size", SIZES)
def test_words_are_stored_in_order(library: ctypes.CDLL, size: int) -> None:
    words = np.random.default_rng(size).integers(-(2**31), 2**31, size, np.int32)
    target = np.full(size + 300, UNTOUCHED, np.int32)
    assert library.store(address(target), address(words), size) == 0
    assert (target[:size] == words).all()
    assert (target[size:] == UNTOUCHED).all()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("size", SIZES)
def test_values_are_put_in_their_places(library: ctypes.CDLL, size: int, dtype: type) -> None:
    rng = np.random.default_rng(size)
    table: np.ndarray = np.full(5000, UNTOUCHED, dtype)
    places, values = rng.permutation(5000)[:size], rng.integers(-(2**31), 2**31, size)
    expected = table.copy()
    expected[places] = values
    wide = int(dtype == np.int64)
    assert library.put(address(table), address(places), address(values), wide, size) == 0
    assert (table == expected).all()
