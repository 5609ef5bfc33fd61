"""The persistent decoder's own source without a GPU (``emulated``), all CTAs of its grid at a time,
against the layers one operation at a time."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from kernels.persistent_decoder import (
    _COUNTS,
    EXCHANGES,
    MAX_TOKENS,
    _table,
    exchange_bytes,
)
from tests.kernels import emulated
from tests.kernels.decoder.test_persistent_decoder import (
    DRAFTED,
    EPS,
    HEAD_EPS,
    OF_STEP,
    Model,
    Step,
    check,
    make_model,
    make_step,
)
from tests.pairs import each_value

CTAS = 5
MOST_CTAS = 17
POINTERS = (
    *("out", "x", "layers", "caches", "cos_sin", "positions", "slots", "blocks", "seq_lens"),
    *("counts", "residual", "exchange"),
)
INTS = (
    *(
        "tokens",
        "num_layers",
        "hidden",
        "intermediate",
        "q_heads",
        "kv_heads",
        "head_dim",
        "block_size",
    ),
)
FIELDS = (
    *("input_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "output", "attended_norm", "gate_up"),
    "down",
)


class Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_int64) for name in ("exchange_bytes", "max_blocks")),
        *((name, ctypes.c_int) for name in INTS),
        *((name, ctypes.c_float) for name in ("eps", "head_eps", "scale")),
        ("queries", ctypes.c_int),
        ("aux_states", ctypes.c_void_p),
        ("aux_stride", ctypes.c_int64),
    )


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return emulated.library("persistent", (), threads=384, ctas=MOST_CTAS)


def decode(library: ctypes.CDLL, model: Model, step: Step, ctas: int) -> torch.Tensor:
    """The kernel's answer; what nobody wrote is NaN. Aborts if a wait does not end, or if something
    is handed over where something is already."""
    first, cpu = model.layers[0], torch.device("cpu")
    out = torch.full_like(step.x, float("nan"))
    counts = torch.zeros(_COUNTS + 31, dtype=torch.int32)  # on a line of its own
    counts = counts[-(counts.data_ptr() // 4) % 32 :][:_COUNTS]
    sizes = (first.hidden, first.intermediate, model.heads, model.kv_heads, model.dim, ctas)
    library.exchange_bytes.restype = ctypes.c_int64
    size = exchange_bytes(*sizes)
    assert size == library.exchange_bytes(*sizes)
    exchange = torch.full((EXCHANGES * size,), 255, dtype=torch.uint8)
    tensors = {
        "out": out,
        "x": step.x,
        "layers": _table([[getattr(layer, n) for n in FIELDS] for layer in model.layers], cpu),
        "caches": _table(step.caches, cpu),
        "cos_sin": step.cos_sin,
        "positions": step.positions,
        "slots": step.slots,
        "blocks": step.block_table,
        "seq_lens": step.seq_lens,
        "counts": counts,
        "residual": torch.full((MAX_TOKENS, first.hidden), float("nan"), dtype=step.x.dtype),
        "exchange": exchange,
    }
    numbers = {
        "exchange_bytes": size,
        "max_blocks": step.block_table.stride(0),
        "tokens": len(step.x),
        "queries": step.num_queries,
        "num_layers": len(model.layers),
        "hidden": first.hidden,
        "intermediate": first.intermediate,
        "q_heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.dim,
        "block_size": step.caches[0][0].shape[1],
        "eps": EPS,
        "head_eps": HEAD_EPS,
        "scale": model.scale,
    }
    if step.aux_states:
        aux = [[step.aux_states.get(i)] for i in range(len(model.layers))]
        tensors["aux_states"] = _table(aux, cpu)
        numbers["aux_stride"] = next(iter(step.aux_states.values())).stride(0)
    call = Call(**{name: t.data_ptr() for name, t in tensors.items()}, **numbers)
    bf16 = ctypes.c_bool(step.x.dtype == torch.bfloat16)
    library.persistent(ctypes.byref(call), bf16, ctypes.c_int(ctas))
    assert not counts.any(), "counts must be zero again"
    assert (exchange == 255).all(), "exchanges must be empty again"
    return out


def check_decoded(library: ctypes.CDLL, *contexts: int, ctas: int = CTAS, **options: Any) -> None:
    """Heads of 64 are in BF16, those of 128 in FP16: two variants are compiled in place of four."""
    of_step = {k: options.pop(k) for k in OF_STEP if k in options}
    dtype = torch.float16 if options.get("dim") == 128 else torch.bfloat16
    model = make_model(device="cpu", dtype=dtype, **options)
    step = make_step(model, *contexts, **of_step)
    wanted = step.copy()
    check(model, step, decode(library, model, step, ctas), wanted)


@pytest.mark.parametrize(
    "context",
    [1, 17, 257, *(pytest.param(n, marks=pytest.mark.nightly) for n in (16, 250, 600))],
)
def test_contexts(library: ctypes.CDLL, context: int) -> None:
    check_decoded(library, context)


@pytest.mark.parametrize(("context", "ctas"), each_value([5, 700], [2, 7]))
def test_grids(library: ctypes.CDLL, context: int, ctas: int) -> None:
    """As few CTAs as KV heads, and more than outputs divide into."""
    check_decoded(library, context, ctas=ctas)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(1, 1, 64), (7, 1, 128), (6, 2, 64)])
def test_heads(library: ctypes.CDLL, heads: int, kv_heads: int, dim: int) -> None:
    check_decoded(library, 300, dim=dim, heads=heads, kv_heads=kv_heads)


@pytest.mark.parametrize(
    ("hidden", "intermediate"),
    [
        (64, 64),
        (320, 1088),
        *(pytest.param(*size, marks=pytest.mark.nightly) for size in ((4160, 64), (1024, 4160))),
    ],
)
def test_sizes(library: ctypes.CDLL, hidden: int, intermediate: int) -> None:
    """One slice and several, whole and not, in one pass and two; the ring goes round."""
    options = {"hidden": hidden, "intermediate": intermediate, "num_layers": 1}
    check_decoded(library, 20, ctas=MOST_CTAS, **options)


def test_biases_and_norms_of_heads(library: ctypes.CDLL) -> None:
    check_decoded(library, 40, bias=True, head_norms=True, dim=128)


def test_blocks_of_other_sizes(library: ctypes.CDLL) -> None:
    check_decoded(library, 300, block_size=48)


def test_many_layers(library: ctypes.CDLL) -> None:
    check_decoded(library, 40, num_layers=5)


def test_nothing_is_stored_without_a_slot(library: ctypes.CDLL) -> None:
    check_decoded(library, 33, stored=False)


@pytest.mark.parametrize(("sequences", "queries"), [(1, 1), (MAX_TOKENS, 1), (1, 2)])
def test_padding_ends(library: ctypes.CDLL, sequences: int, queries: int) -> None:
    """As ``PersistentDecoder.refused`` launches it."""
    model = make_model(device="cpu")
    step = make_step(model, *[0] * sequences, queries=queries)
    decode(library, model, step, CTAS)
    assert all(torch.isnan(cache).all() for pair in step.caches for cache in pair)


@pytest.mark.parametrize(
    "contexts",
    [
        (0, 90, 0, 1),
        (9, *[17] * 15),
        *(
            pytest.param(contexts, marks=pytest.mark.nightly)
            for contexts in ((300, 20), (5,) * 7, tuple(range(10, 90, 10)), (9, *[40] * 15))
        ),
    ],
)
def test_several_tokens(library: ctypes.CDLL, contexts: tuple[int, ...]) -> None:
    check_decoded(library, *contexts, dim=128)


@pytest.mark.nightly
def test_lengths_far_apart(library: ctypes.CDLL) -> None:
    """Units of more than one for some CTAs."""
    check_decoded(library, 1500, *[50] * 8)


@pytest.mark.parametrize(("drafted", "ctas"), each_value(DRAFTED[::-3], [2, 7]))
def test_several_tokens_of_a_sequence(
    library: ctypes.CDLL, drafted: tuple[int, tuple[int, ...]], ctas: int
) -> None:
    queries, contexts = drafted
    check_decoded(library, *contexts, queries=queries, ctas=ctas)


def test_several_tokens_with_biases_and_norms_of_heads(library: ctypes.CDLL) -> None:
    options = {"bias": True, "head_norms": True, "block_size": 48, "dim": 128}
    check_decoded(library, 300, 35, queries=4, **options)


def test_the_newest_keys_of_a_token_are_in_two_units(library: ctypes.CDLL) -> None:
    """Of eight, of which the last has one tile, and that one key."""
    check_decoded(library, 897, queries=2, kv_heads=1, ctas=MOST_CTAS)


def test_tokens_that_fill_up_a_sequence_are_seen_and_not_stored(library: ctypes.CDLL) -> None:
    check_decoded(library, 19, 40, queries=4, fillers=2)


@pytest.mark.parametrize(
    ("queries", "contexts"),
    [
        (2, (0, 33)),
        *(pytest.param(*c, marks=pytest.mark.nightly) for c in ((1, (300, 9)), (4, (40,)))),
    ],
)
def test_inputs_of_layers_are_kept(
    library: ctypes.CDLL, queries: int, contexts: tuple[int, ...]
) -> None:
    check_decoded(library, *contexts, queries=queries, aux_states=(0, 2), num_layers=3)
