"""Python bindings of the CPU kernels, which the machine's C++ compiler builds at their first use.

Without a compiler that can build them, ``available()`` is False, the log says why once, and the
engine uses ``reference``. They are called through ctypes; a call costs about two microseconds.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from kernels import ops
from kernels.build import SOURCES, BuildError, built_before, cache_dir, version_hash

SOURCE = SOURCES / "cpu" / "ops.cpp"
HEADERS = [*sorted(SOURCE.parent.glob("*.h")), SOURCES / "sampling" / "sampling_row.cuh"]
MAX_HEAD_DIM = 256

# Not -ffast-math: it would change how the whole process rounds. Compiling and linking are separate
# steps, so that OpenMP is torch's own copy, already loaded, and not a second one.
_COMPILE = (
    *("-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp"),
    *("-fno-math-errno", "-fno-trapping-math"),
)

_logger = logging.getLogger(__name__)
_pointer, _int, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float

Ints = npt.NDArray[np.int64]


@functools.cache
def available() -> bool:
    """Whether the kernels are built and loaded here, building them if needed."""
    try:
        library()
    except BuildError as error:
        _logger.info("CPU kernels are off: %s", error)
        return False
    return True


def register() -> None:
    """Serve float32 tensors on CPUs with these kernels wherever ``ops`` is called."""
    for op in (rms_norm, silu_mul, rope_and_cache, sample_rows, apply_penalties):
        ops.register(op.__name__, "cpu", op, dtypes={torch.float32})


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    inner: torch.Tensor | None = None,
) -> torch.Tensor:
    if inner is not None:
        x = rms_norm(x, inner, eps)
    rows, width = x.shape
    out = torch.empty_like(x)
    library().sluice_rms_norm(
        out.data_ptr(),
        x.data_ptr(),
        None if residual is None else residual.data_ptr(),
        weight.data_ptr(),
        rows,
        width,
        eps,
        torch.get_num_threads(),
    )
    return out


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    library().sluice_silu_mul(
        out.data_ptr(), gate_up.data_ptr(), rows, width, torch.get_num_threads()
    )
    return out


def rope_and_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    num_tokens, num_q_heads, head_dim = q.shape
    cache = LayerCacheStruct.of(k_cache, v_cache, k_scale, v_scale)
    library().sluice_rope_and_cache(
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        ctypes.addressof(cache),
        cos_sin.data_ptr(),
        positions.data_ptr(),
        slots.data_ptr(),
        num_tokens,
        num_q_heads,
        k.shape[1],
        head_dim,
        cos_sin.shape[1],
        None if q_norm is None else q_norm.data_ptr(),
        None if k_norm is None else k_norm.data_ptr(),
        eps,
        q.stride(0),
        torch.get_num_threads(),
    )


def sample_rows(
    logits: torch.Tensor,
    table: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor | None = None,
    host: torch.Tensor | None = None,
) -> torch.Tensor:
    """See ``reference.sample_rows``: the same tokens."""
    num_rows, vocab = logits.shape
    held = [x.contiguous() for x in (logits, table, rows, positions)]
    out = torch.zeros(num_rows, dtype=torch.int64)
    library().sluice_sample_rows(
        out.data_ptr(),
        None if tokens is None else tokens.data_ptr(),
        None if host is None else host.data_ptr(),
        *(x.data_ptr() for x in held),
        0 if tokens is None else tokens.stride(0),
        num_rows,
        vocab,
        torch.get_num_threads(),
    )
    return out


def apply_penalties(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    where: torch.Tensor,
    strengths: torch.Tensor,
    *,
    max_len: int,
) -> None:
    """See ``reference.apply_penalties``; all tensors contiguous."""
    assert logits.is_contiguous()
    assert tokens.is_contiguous()
    where, strengths = where.contiguous(), strengths.contiguous()
    library().sluice_apply_penalties(
        logits.data_ptr(),
        tokens.data_ptr(),
        where.data_ptr(),
        strengths.data_ptr(),
        where.shape[1],
        logits.shape[1],
        tokens.shape[1],
    )


class LayerCacheStruct(ctypes.Structure):
    """``LayerCache`` of cpu/cache.h."""

    _fields_ = (
        ("keys", _pointer),
        ("values", _pointer),
        ("key_scales", _pointer),
        ("value_scales", _pointer),
    )

    @classmethod
    def of(
        cls,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        k_scale: torch.Tensor | None,
        v_scale: torch.Tensor | None,
    ) -> LayerCacheStruct:
        """The struct for contiguous tensors, which the caller must keep alive: float32, or
        float8_e4m3fn with scales."""
        stored = torch.float32 if k_scale is None else torch.float8_e4m3fn
        assert k_cache.dtype == v_cache.dtype == stored, (k_cache.dtype, v_cache.dtype, stored)
        return cls(
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            None if k_scale is None else k_scale.data_ptr(),
            None if v_scale is None else v_scale.data_ptr(),
        )


class LinearStruct(ctypes.Structure):
    """``Linear`` of cpu/linear.h."""

    _fields_ = (
        ("packed", _pointer),
        ("bias", _pointer),
        ("out_features", _int),
        ("in_features", _int),
    )


class PackedLinear:
    """A linear layer with a packed copy of its weight: ``x @ weight.T + bias``.

    weight: [out, in] float32; it is not needed after construction. A row of the result does not
    depend on the number of rows.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        lib = library()
        out_features, in_features = weight.shape
        weight = weight.contiguous()
        packed = weight.new_empty(lib.sluice_packed_size(out_features, in_features))
        lib.sluice_pack(packed.data_ptr(), weight.data_ptr(), out_features, in_features)
        self.out_features = out_features
        self._owned = packed, bias
        bias_pointer = None if bias is None else bias.data_ptr()
        self.struct = LinearStruct(packed.data_ptr(), bias_pointer, out_features, in_features)
        self._address = ctypes.addressof(self.struct)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [num_tokens, in] float32; returns [num_tokens, out]."""
        x = x.contiguous()
        rows = x.shape[0]
        out = x.new_empty(rows, self.out_features)
        library().sluice_linear(
            out.data_ptr(), x.data_ptr(), self._address, rows, torch.get_num_threads()
        )
        return out


class _AttentionStep(ctypes.Structure):
    """``AttentionStep`` of cpu/ops.cpp."""

    _fields_ = (
        ("block_table", _pointer),
        ("rows", _pointer),
        ("first_token", _pointer),
        ("query_lens", _pointer),
        ("seq_lens", _pointer),
        ("num_sequences", _int),
        ("table_stride", _int),
    )


@dataclass(frozen=True, slots=True)
class AttentionSequences:
    """The sequences of a step for ``paged_attention``. Keeps the tensors alive that C points to."""

    block_table: torch.Tensor
    """[num_rows, max_blocks] int32, contiguous"""
    rows: Ints
    """[num_sequences]: each sequence's row of the block table"""
    first_token: Ints
    """[num_sequences]: where each sequence's queries start"""
    query_lens: Ints
    seq_lens: Ints
    """[num_sequences], the step's queries included"""

    def struct(self) -> ctypes.Structure:
        arrays = (self.rows, self.first_token, self.query_lens, self.seq_lens)
        assert all(array.flags.c_contiguous and array.dtype == np.int64 for array in arrays)
        return _AttentionStep(
            self.block_table.data_ptr(),
            *(array.ctypes.data for array in arrays),
            len(self.rows),
            self.block_table.stride(0),
        )


def paged_attention(
    out: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: ctypes.Structure,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Causal attention of the sequences of ``step`` (see ``reference.paged_attention``), into out.

    q, out: [num_tokens, num_q_heads, head_dim] float32, head_dim up to 256, out contiguous;
    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim] float32, or float8_e4m3fn
    with scales. Rows of out that belong to no sequence of the step are left alone. A query has the
    same bits whichever others are computed with it. Threads share out sequences and KV heads, so a
    long chunk is best given in pieces of about eight queries.
    """
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    cache = LayerCacheStruct.of(k_cache, v_cache, k_scale, v_scale)
    library().sluice_paged_attention(
        out.data_ptr(),
        q.data_ptr(),
        ctypes.addressof(cache),
        ctypes.addressof(step),
        q.shape[1],
        num_kv_heads,
        head_dim,
        block_size,
        q.stride(0),
        scale,
        window or 0,
        softcap or 0.0,
        None if sinks is None else sinks.data_ptr(),
        torch.get_num_threads(),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """Build and load the kernels. Raises ``BuildError``."""
    try:
        loaded = ctypes.CDLL(str(build()))
    except OSError as error:
        raise BuildError(f"the built library does not load: {error}") from error
    loaded.sluice_packed_size.restype = _int
    loaded.sluice_packed_size.argtypes = [_int] * 2
    for name, arguments in {
        "sluice_rms_norm": [_pointer] * 4 + [_int] * 2 + [_float, _int],
        "sluice_silu_mul": [_pointer] * 2 + [_int] * 3,
        "sluice_rope_and_cache": [_pointer] * 7
        + [_int] * 5
        + [_pointer] * 2
        + [_float, _int, _int],
        "sluice_paged_attention": [_pointer] * 4
        + [_int] * 5
        + [_float, _int, _float, _pointer, _int],
        "sluice_sample_rows": [_pointer] * 7 + [_int] * 4,
        "sluice_apply_penalties": [_pointer] * 4 + [_int] * 3,
        "sluice_pack": [_pointer] * 2 + [_int] * 2,
        "sluice_linear": [_pointer] * 3 + [_int] * 2,
        "sluice_decoder": [_pointer] * 4 + [_int] + [_pointer] * 4 + [_int] * 2,
    }.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, None
    return loaded


def build() -> Path:
    """The shared object for this source, compiler and processor, built if it is not there yet.

    Processes that build at the same time build the same file; the last one to finish wins. Without
    a compiler, what was built for this source and processor before.
    """
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    folder, name = cache_dir() / "cpu", _fingerprint()
    if compiler is None:
        missing = BuildError("no C++ compiler: install g++ or set CXX")
        return built_before(folder.glob(f"{name}-*.so"), missing)
    built = folder / f"{name}-{version_hash(compiler)}.so"
    try:
        if built.exists():
            return built
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            unit, linked = Path(scratch) / "cpu.o", Path(scratch) / "cpu.so"
            _run([compiler, *_COMPILE, f"-I{SOURCES}", "-c", str(SOURCE), "-o", str(unit)])
            _run([compiler, "-shared", str(unit), "-o", str(linked)])
            linked.rename(built)
    except OSError as error:
        raise BuildError.unwritable(folder, error) from error
    return built


def _fingerprint() -> str:
    sources = [path.read_bytes() for path in (SOURCE, *HEADERS)]
    digest = hashlib.sha256()
    for part in (*sources, repr(_COMPILE).encode(), _processor()):
        digest.update(part + b"\0")
    return digest.hexdigest()[:24]


def _processor() -> bytes:
    """A description of what ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    kept = (b"model name", b"flags", b"Features")
    return b"\n".join(sorted({line for line in lines if line.startswith(kept)}))


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed:\n{result.stderr}")
