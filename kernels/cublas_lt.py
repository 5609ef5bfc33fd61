"""Matrix products by cuBLASLt with a chosen algorithm.

torch uses the first algorithm that the library's heuristic lists. For up to some hundreds of rows
another one is often faster: they differ in tiles, in clusters of CTAs, and in how k is split.
Constants and structures are those of cublasLt.h, which are a stable interface."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p, sizeof
from functools import cache
from typing import NamedTuple

import torch

Algorithm = bytes
"""A ``cublasLtMatmulAlgo_t``, opaque."""

_ALGORITHM_WORDS = 8
_ALGORITHM_BYTES = 8 * _ALGORITHM_WORDS
_TYPES = {torch.float16: 2, torch.bfloat16: 14}
_FLOAT32 = 0
_COMPUTE_FLOAT32 = 68
_TRANSPOSE_A, _TRANSPOSED = 3, 1
_MAX_WORKSPACE_BYTES, _REDUCTION_SCHEMES = 1, 3
_REDUCED_IN_FLOAT32 = 2
"""CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: partial sums over k are added in float32, in a fixed
order."""
_WORKSPACE_BYTES = 32 * 1024 * 1024
_ALIGNMENT = 256
"""Alignment of addresses in bytes that the heuristic assumes."""


class _Result(ctypes.Structure):
    _fields_ = [
        ("algorithm", c_uint64 * _ALGORITHM_WORDS),
        ("workspace_bytes", c_size_t),
        ("status", c_int),
        ("num_waves", c_float),
        ("reserved", c_int * 4),
    ]


class _Shape(NamedTuple):
    rows: int
    features: int
    k: int
    dtype: torch.dtype

    @classmethod
    def of(cls, rows: int, weight: torch.Tensor) -> _Shape:
        features, k = weight.shape
        return cls(rows, features, k, weight.dtype)


class _Description(NamedTuple):
    """Descriptors of the product and its three matrices. The library's matrices are column-major:
    it computes ``weight.T.T @ x.T``."""

    product: c_void_p
    weight: c_void_p
    x: c_void_p
    out: c_void_p


class _Library:
    """cuBLASLt on one GPU. All products are launched on one stream, since they share a workspace:
    a captured one uses it whenever its graph runs."""

    def __init__(self, lib: ctypes.CDLL, device: torch.device) -> None:
        self._lib = lib
        self._handle = c_void_p()
        self._call("Create", byref(self._handle))
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._described: dict[_Shape, _Description] = {}
        self._found: dict[tuple[_Shape, Algorithm], _Result | None] = {}
        self._one, self._zero = c_float(1), c_float(0)

    def _call(self, name: str, *args: object) -> None:
        status = getattr(self._lib, f"cublasLt{name}")(*args)
        assert status == 0, f"cublasLt{name} failed with status {status}"

    @property
    def version(self) -> int:
        get_version = self._lib.cublasLtGetVersion
        get_version.restype = c_size_t
        return int(get_version())

    def _describe(self, shape: _Shape) -> _Description:
        if shape not in self._described:
            rows, features, k, dtype = shape
            product, transposed = c_void_p(), c_int(_TRANSPOSED)
            self._call("MatmulDescCreate", byref(product), _COMPUTE_FLOAT32, _FLOAT32)
            size = c_size_t(sizeof(transposed))
            self._call("MatmulDescSetAttribute", product, _TRANSPOSE_A, byref(transposed), size)
            sizes = (k, features), (k, rows), (features, rows)
            layouts = (self._layout(_TYPES[dtype], *size) for size in sizes)
            self._described[shape] = _Description(product, *layouts)
        return self._described[shape]

    def _layout(self, dtype: int, height: int, width: int) -> c_void_p:
        layout, sizes = c_void_p(), (c_uint64(height), c_uint64(width), c_int64(height))
        self._call("MatrixLayoutCreate", byref(layout), dtype, *sizes)
        return layout

    def algorithms(self, shape: _Shape, most: int) -> list[Algorithm]:
        product, weight, x, out = self._describe(shape)
        preference, results, num = c_void_p(), (_Result * most)(), c_int()
        self._call("MatmulPreferenceCreate", byref(preference))
        for attribute, value in (
            (_MAX_WORKSPACE_BYTES, c_uint64(_WORKSPACE_BYTES)),
            (_REDUCTION_SCHEMES, c_uint32(_REDUCED_IN_FLOAT32)),
        ):
            size = c_size_t(sizeof(value))
            self._call("MatmulPreferenceSetAttribute", preference, attribute, byref(value), size)
        # The call fails if there is no algorithm; then the number stays 0.
        self._lib.cublasLtMatmulAlgoGetHeuristic(
            *(self._handle, product, weight, x, out, out, preference, most, results, byref(num))
        )
        self._call("MatmulPreferenceDestroy", preference)
        return [bytes(result.algorithm) for result in results[: num.value] if result.status == 0]

    def find(self, shape: _Shape, algorithm: Algorithm) -> _Result | None:
        """What ``multiply`` needs to run an algorithm for a shape; None if it does not support
        it."""
        key = shape, algorithm
        if key not in self._found:
            product, weight, x, out = self._describe(shape)
            words = (c_uint64 * _ALGORITHM_WORDS).from_buffer_copy(algorithm)
            result = _Result()
            status = self._lib.cublasLtMatmulAlgoCheck(
                self._handle, product, weight, x, out, out, byref(words), byref(result)
            )
            fits = status == 0 == result.status and result.workspace_bytes <= _WORKSPACE_BYTES
            result.algorithm = words
            self._found[key] = result if fits else None
        return self._found[key]

    def multiply(
        self, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, found: _Result
    ) -> None:
        shape = _Shape.of(x.shape[0], weight)
        product, weights, inputs, outputs = self._describe(shape)
        self._call(
            "Matmul",
            self._handle,
            product,
            byref(self._one),
            *(c_void_p(weight.data_ptr()), weights, c_void_p(x.data_ptr()), inputs),
            byref(self._zero),
            *(c_void_p(out.data_ptr()), outputs) * 2,
            byref(found, _Result.algorithm.offset),
            c_void_p(self._workspace.data_ptr()),
            c_size_t(_WORKSPACE_BYTES),
            c_void_p(torch.cuda.current_stream(x.device).cuda_stream),
        )


@cache
def _library(device: torch.device) -> _Library | None:
    """The cuBLASLt that torch has loaded; None if there is none."""
    if device.type != "cuda":
        return None
    version = (torch.version.cuda or "").partition(".")[0]
    try:
        return _Library(ctypes.CDLL(f"libcublasLt.so.{version}"), device)
    except OSError:
        return None


def version(device: torch.device) -> int:
    """The library's version number; 0 without the library."""
    library = _library(device)
    return 0 if library is None else library.version


def algorithms(rows: int, weight: torch.Tensor, most: int) -> list[Algorithm]:
    """At most ``most`` algorithms for ``linear`` with this number of rows, the most promising
    first; empty without the library.

    weight: [features, k] float16 or bfloat16, contiguous, on a GPU.
    """
    library = _library(weight.device)
    return [] if library is None else library.algorithms(_Shape.of(rows, weight), most)


def knows(rows: int, weight: torch.Tensor, algorithm: Algorithm) -> bool:
    """Whether the library supports the algorithm for this number of rows. weight: as for
    ``algorithms``."""
    library = _library(weight.device)
    if library is None or len(algorithm) != _ALGORITHM_BYTES:
        return False
    return library.find(_Shape.of(rows, weight), algorithm) is not None


def takes(x: torch.Tensor, weight: torch.Tensor, algorithm: Algorithm) -> bool:
    """Whether ``linear`` can multiply ``x`` with ``weight`` by this algorithm."""
    library = _library(x.device)
    if library is None or not x.is_contiguous():
        return False
    if x.dtype not in _TYPES or x.dtype != weight.dtype:
        return False
    if (x.data_ptr() | weight.data_ptr()) % _ALIGNMENT:
        return False
    return library.find(_Shape.of(x.shape[0], weight), algorithm) is not None


def linear(x: torch.Tensor, weight: torch.Tensor, algorithm: Algorithm) -> torch.Tensor:
    """``x @ weight.T``: [rows, features]. x: [rows, k]; weight: [features, k], for which ``takes``
    is True."""
    library = _library(x.device)
    assert library is not None, "no algorithm was listed without the library"
    found = library.find(_Shape.of(x.shape[0], weight), algorithm)
    assert found is not None, "an algorithm for other shapes"
    out = x.new_empty(x.shape[0], weight.shape[0])
    library.multiply(out, x, weight, found)
    return out
