"""All layers of a decoder for a few tokens of a few sequences, in one launch.

The kernel is ``csrc/decoder/persistent_decoder.cu``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kernels.cuda import native

HALVES = frozenset({torch.bfloat16, torch.float16})
HEAD_DIMS = frozenset({64, 128})
MAX_GROUP = 8
"""Query heads of a KV head."""
MAX_KV_HEADS = 32
MAX_TOKENS = 16
MAX_DRAFTED_TOKENS = 8
"""The most tokens if sequences have more than one, or if layers' inputs are kept."""
MAX_CTAS = 160
EXCHANGES = 3
_COUNTS = 2 * 32  # sizeof(PersistentCounts) / 4


def exchange_bytes(
    hidden: int, intermediate: int, num_heads: int, num_kv_heads: int, head_dim: int, ctas: int
) -> int:
    """What CTAs hand each other in a layer, as ``persistent_exchange_bytes``."""
    elements = 2 * hidden + intermediate + 2 * (num_heads + num_kv_heads) * head_dim
    parts = (ctas + MAX_TOKENS * num_kv_heads) * (num_heads // num_kv_heads)
    size = 128 + 2 * MAX_TOKENS * MAX_CTAS * 4 + MAX_TOKENS * elements * 2
    return -(-(size + parts * (head_dim + 2) * 4) // 128) * 128


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """A layer's weights, all of one dtype. None: the layer has none."""

    input_norm: Tensor
    """[hidden], of the RMSNorm before the projections"""
    qkv: Tensor
    """[(q_heads + 2 * kv_heads) * head_dim, hidden], features q | k | v"""
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    """[head_dim], of an RMSNorm of each head before the rotation"""
    k_norm: Tensor | None
    output: Tensor
    """[hidden, q_heads * head_dim]"""
    attended_norm: Tensor
    """[hidden], of the RMSNorm before the gates and ups"""
    gate_up: Tensor
    """[2 * intermediate, hidden], features gate | up"""
    down: Tensor
    """[hidden, intermediate]"""

    @property
    def hidden(self) -> int:
        return self.qkv.shape[1]

    @property
    def intermediate(self) -> int:
        return self.down.shape[1]

    def shapes(
        self, num_heads: int, num_kv_heads: int, head_dim: int
    ) -> dict[str, tuple[int, ...]]:
        """The shapes that the fields must have, given the first dimensions of qkv and down."""
        hidden, features = self.hidden, (num_heads + 2 * num_kv_heads) * head_dim
        return {
            "input_norm": (hidden,),
            "qkv": (features, hidden),
            "qkv_bias": (features,),
            "q_norm": (head_dim,),
            "k_norm": (head_dim,),
            "output": (hidden, num_heads * head_dim),
            "attended_norm": (hidden,),
            "gate_up": (2 * self.intermediate, hidden),
            "down": (hidden, self.intermediate),
        }


def refusal(
    layers: Sequence[LayerWeights], *, num_heads: int, num_kv_heads: int, head_dim: int
) -> str | None:
    """The reason why ``PersistentDecoder`` cannot serve these layers; None if it can."""
    if not layers:
        return "there are no layers"
    first = layers[0].qkv
    device, dtype = first.device, first.dtype
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return f"it needs a GPU of compute capability 9.0, and the weights are on {device}"
    if dtype not in HALVES:
        return f"weights must be bfloat16 or float16, not {dtype}"
    if head_dim not in HEAD_DIMS:
        return f"head_dim must be 64 or 128, not {head_dim}"
    if num_heads % num_kv_heads or num_heads // num_kv_heads > MAX_GROUP:
        return (
            f"{num_heads} query heads on {num_kv_heads} KV heads are no groups of 1 to {MAX_GROUP}"
        )
    if num_kv_heads > MAX_KV_HEADS:
        return f"at most {MAX_KV_HEADS} KV heads, not {num_kv_heads}"
    for i, layer in enumerate(layers):
        shapes = layer.shapes(num_heads, num_kv_heads, head_dim)
        if (layer.hidden, layer.intermediate) != (layers[0].hidden, layers[0].intermediate):
            return f"layer {i} has other sizes than layer 0"
        for name, shape in shapes.items():
            weight = getattr(layer, name)
            if weight is None:
                continue
            if weight.shape != shape:
                return f"{name} of layer {i} must be {list(shape)}, not {list(weight.shape)}"
            if weight.dtype != dtype or weight.device != device or not weight.is_contiguous():
                return f"{name} of layer {i} must be contiguous {dtype} on {device}"
            if weight.data_ptr() % 16:
                return f"{name} of layer {i} must start at a multiple of 16 bytes"
    sizes = layers[0].hidden, layers[0].intermediate
    if any(size % 64 for size in sizes):
        return "hidden and intermediate size must be multiples of 64, not {} and {}".format(*sizes)
    return None


class PersistentDecoder:
    """The layers of a decoder as one launch for up to ``MAX_TOKENS`` tokens.

    Makes a table of the weights and a workspace; calls allocate nothing but their result, so they
    can be captured in a CUDA graph, and calls on one stream follow each other. Raises ValueError
    with ``refusal``'s words for layers it cannot serve.
    """

    def __init__(
        self,
        layers: Sequence[LayerWeights],
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        eps: float,
        head_eps: float,
        scale: float,
    ) -> None:
        """eps: of the RMSNorms of rows; head_eps: of those of heads; scale: of scores."""
        why = refusal(layers, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
        if why is not None:
            raise ValueError(f"a persistent decoder cannot serve these layers: {why}")
        first = layers[0]
        device, dtype = first.qkv.device, first.qkv.dtype
        self._layers = tuple(layers)  # keeps alive what the table points to
        names = [field.name for field in fields(LayerWeights)]
        self._table = _table([[getattr(layer, n) for n in names] for layer in layers], device)
        self._heads = (num_heads, num_kv_heads, head_dim)
        self._numbers = {
            **{"intermediate": first.intermediate, "head_dim": head_dim},
            **{"q_heads": num_heads, "kv_heads": num_kv_heads},
            **{"eps": eps, "head_eps": head_eps, "scale": scale},
        }
        # As ``persistent_ctas``: one on each SM.
        ctas = min(MAX_CTAS, torch.cuda.get_device_properties(device).multi_processor_count)
        size = exchange_bytes(first.hidden, first.intermediate, *self._heads, ctas)
        self._workspace = (
            torch.zeros(_COUNTS, dtype=torch.int32, device=device),
            torch.empty(MAX_TOKENS, first.hidden, dtype=dtype, device=device),
            torch.full((EXCHANGES, size), 255, dtype=torch.uint8, device=device),
        )
        self._caches: dict[tuple[int, ...], Tensor] = {}
        self._taps: dict[tuple[tuple[int, int], ...], Tensor] = {}

    def __call__(
        self,
        x: Tensor,
        kv_cache: Sequence[tuple[Tensor, Tensor]],
        cos_sin: Tensor,
        positions: Tensor,
        slots: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        aux_states: Mapping[int, Tensor] | None = None,
    ) -> Tensor:
        """The layers' output for x, [tokens, hidden], before the final norm, of the same shape.

        The tokens are the newest of their sequences, equally many of each, in order, and each sees
        those before it. They are no more than ``MAX_TOKENS``, or ``MAX_DRAFTED_TOKENS`` if
        sequences have several or there are aux_states. kv_cache: of each layer keys and values,
        [num_blocks, block_size, kv_heads, head_dim] and of x's dtype. cos_sin:
        [max_positions, head_dim] float32, see ``cuda.rope_and_cache``. positions, slots: [tokens]
        int64, positions of a sequence without a gap; at slot -1 nothing is stored. block_table:
        [sequences, max_blocks] int32; seq_lens: [sequences] int32, these tokens included. 0 is
        padding, whose results have no meaning. aux_states: tensors that the inputs of some layers
        are copied to, by the layers' indices: of x's shape and dtype, with contiguous rows and the
        same stride.
        """
        table, stride = self._aux_table(aux_states, x) if aux_states else (None, 0)
        out: Tensor = native.persistent_decoder(
            x,
            self._table,
            self._cache_table(kv_cache),
            cos_sin,
            positions,
            slots,
            block_table,
            seq_lens,
            *self._workspace,
            aux_states=table,
            aux_stride=stride,
            block_size=kv_cache[0][0].shape[1],
            **self._numbers,
        )
        return out

    def refused(self) -> str | None:
        """The reason why this GPU does not launch the kernel; None if it does.

        Launches it for padding: for few tokens, for many, and for two of a sequence, which are
        three kernels. All CTAs must be resident at the same time, for which a part of a GPU (by MIG
        or MPS) may be too small. Raises any other error of CUDA's.
        """
        first = self._layers[0].qkv
        _, num_kv_heads, head_dim = self._heads
        cache = first.new_zeros(1, 16, num_kv_heads, head_dim)
        cos_sin = torch.zeros(1, head_dim, device=first.device)
        try:
            for tokens, sequences in ((1, 1), (MAX_TOKENS, MAX_TOKENS), (2, 1)):
                zeros = torch.zeros(tokens, dtype=torch.int64, device=first.device)
                lens = zeros[:sequences].int()
                self(
                    first.new_zeros(tokens, first.shape[1]),
                    [(cache, cache)] * len(self._layers),
                    cos_sin,
                    positions=zeros,
                    slots=zeros - 1,
                    block_table=lens[:, None],
                    seq_lens=lens,
                )
        except NotImplementedError as error:
            return str(error).partition("\n")[0]
        finally:
            self._caches.clear()
        return None

    def _cache_table(self, kv_cache: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Pointers to the caches. The tensor is kept, because a captured graph must not copy from
        the host."""
        key = tuple(t.data_ptr() for pair in kv_cache for t in pair)
        if key not in self._caches:
            self._check_caches(kv_cache)
            self._caches[key] = _table(kv_cache, self._table.device)
        return self._caches[key]

    def _aux_table(self, aux_states: Mapping[int, Tensor], x: Tensor) -> tuple[Tensor, int]:
        """Pointers to the aux_states, kept for the same reason, and the stride of their rows."""
        for layer, state in aux_states.items():
            if not 0 <= layer < len(self._layers):
                raise ValueError(
                    f"aux_states are of layer {layer}, and there are {len(self._layers)}"
                )
            if state.shape != x.shape or state.dtype != x.dtype or state.stride(1) != 1:
                raise ValueError(
                    f"aux_states must be {list(x.shape)} of {x.dtype} with contiguous rows; "
                    f"that of layer {layer} is {list(state.shape)} of {state.dtype}"
                )
        strides = {state.stride(0) for state in aux_states.values()}
        if len(strides) > 1:
            raise ValueError(f"rows of aux_states must be equally far apart, not {sorted(strides)}")
        key = tuple((layer, state.data_ptr()) for layer, state in aux_states.items())
        if key not in self._taps:
            rows = [[aux_states.get(layer)] for layer in range(len(self._layers))]
            self._taps[key] = _table(rows, x.device).view(-1)
        return self._taps[key], strides.pop()

    def _check_caches(self, kv_cache: Sequence[tuple[Tensor, Tensor]]) -> None:
        _, num_kv_heads, head_dim = self._heads
        if len(kv_cache) != len(self._layers):
            raise ValueError(f"{len(self._layers)} layers need as many caches, not {len(kv_cache)}")
        first, dtype = kv_cache[0][0], self._layers[0].qkv.dtype
        for i, pair in enumerate(kv_cache):
            for cache in pair:
                if cache.shape[2:] != (num_kv_heads, head_dim) or cache.shape != first.shape:
                    raise ValueError(
                        f"caches must be [num_blocks, block_size, {num_kv_heads}, {head_dim}], all "
                        f"alike; one of layer {i} is {list(cache.shape)}"
                    )
                if cache.dtype != dtype or not cache.is_contiguous():
                    raise ValueError(
                        f"caches must be contiguous {dtype}; one of layer {i} is {cache.dtype}"
                    )


def _table(rows: Sequence[Sequence[Tensor | None]], device: torch.device) -> Tensor:
    """[rows, columns] int64: the addresses of the tensors, 0 for None."""
    pointers = [[0 if t is None else t.data_ptr() for t in row] for row in rows]
    return torch.tensor(pointers, dtype=torch.int64, device=device)
