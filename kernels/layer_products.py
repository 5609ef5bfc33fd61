"""What decoder layers compute between one's attention and the next one's, for 17 to 64 tokens, as
one launch a layer.

These are Python bindings of ``csrc/gemm/layer_products.cu``. ``cuda.load`` must run before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.persistent_decoder import HALVES, LayerWeights

MIN_TOKENS = 17
"""For fewer it is right, too, but there are faster ways."""
MAX_TOKENS = 64
SIZES = frozenset({(4096, 14336, 6144), (4096, 12288, 6144)})
"""Hidden and intermediate size, and features of queries, keys and values: of the layers that have a
kernel."""
_COUNTS = 4 * 32  # kProductCounts


def refusal(layers: Sequence[LayerWeights]) -> str | None:
    """The reason why ``LayerProducts`` cannot serve these layers; None if it can."""
    if not layers:
        return "there are no layers"
    first = layers[0]
    device, dtype = first.qkv.device, first.qkv.dtype
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return f"it needs a GPU of compute capability 9.0, and the weights are on {device}"
    if dtype not in HALVES:
        return f"weights must be bfloat16 or float16, not {dtype}"
    sizes = first.hidden, first.intermediate, len(first.qkv)
    if sizes not in SIZES:
        known = ", ".join(map(str, sorted(SIZES)))
        return f"it is for layers with hidden, intermediate and qkv sizes {known}, not {sizes}"
    for i, layer in enumerate(layers):
        if layer.qkv_bias is not None:
            return f"qkv of layer {i} has a bias"
        for name, shape in _shapes(*sizes).items():
            weight = getattr(layer, name)
            if weight.shape != shape:
                return f"{name} of layer {i} must be {list(shape)}, not {list(weight.shape)}"
            if weight.dtype != dtype or weight.device != device or not weight.is_contiguous():
                return f"{name} of layer {i} must be contiguous {dtype} on {device}"
            if weight.data_ptr() % 16:
                return f"{name} of layer {i} must start at a multiple of 16 bytes"
    return None


class LayerProducts:
    """The products, norms and gatings of a decoder's layers, as one launch behind each attention.

    All launches share a workspace: they must be on one stream, or wait for each other. Calls
    allocate nothing but their result, so they can be captured in a CUDA graph. Raises ValueError
    with ``refusal``'s words for layers it cannot serve.
    """

    def __init__(self, layers: Sequence[LayerWeights], *, eps: float) -> None:
        """eps: of the RMSNorms of rows."""
        why = refusal(layers)
        if why is not None:
            raise ValueError(f"there is no one launch for the products of these layers: {why}")
        first = layers[0]
        self._layers = tuple(layers)
        self._eps = eps
        self._sizes = first.hidden, first.intermediate, len(first.qkv)
        ops, device = torch.ops.sluice_cuda, first.qkv.device
        rows = first.qkv.new_empty(MAX_TOKENS, 2 * first.hidden + first.intermediate)
        num_squares, num_parts = ops.layer_products_workspace(*self._sizes)
        self._workspace = (
            rows.view(-1),
            torch.empty(num_squares, device=device),
            # Where nothing is yet, there are ones in all bits.
            torch.full((num_parts,), -1, dtype=torch.int32, device=device).view(torch.float32),
            torch.zeros(_COUNTS, dtype=torch.int32, device=device),
        )

    def refused(self) -> str | None:
        """The reason why this GPU cannot run the launches; None if it can.

        All CTAs of a launch must run at the same time, for which a part of a GPU (by MIG) may be
        too small; and processes that share one (by MPS) could each wait for the other's SMs.
        """
        is_bf16 = self._layers[0].qkv.dtype == torch.bfloat16
        with torch.cuda.device(self._layers[0].qkv.device):
            fits = torch.ops.sluice_cuda.layer_products_fit(*self._sizes, is_bf16)
        return None if fits else "has no room for all CTAs at a time, or is shared by MPS"

    def __call__(self, layer: int, attended: Tensor, residual: Tensor) -> Tensor | None:
        """Everything behind the attention of the layer with this index.

        attended: [tokens, hidden]; residual: of that shape, the layer's input; the layer's output
        takes its place. tokens: up to ``MAX_TOKENS``. Returns queries, keys and values of the next
        layer, [tokens, features]; None behind the last layer.
        """
        own = self._layers[layer]
        following = self._layers[layer + 1] if layer + 1 < len(self._layers) else None
        qkv = None if following is None else attended.new_empty(len(attended), self._sizes[2])
        torch.ops.sluice_cuda.layer_products(
            residual,
            qkv,
            attended,
            own.output,
            own.attended_norm,
            own.gate_up,
            own.down,
            None if following is None else following.input_norm,
            None if following is None else following.qkv,
            *self._workspace,
            self._sizes[2],
            self._eps,
        )
        return qkv


def _shapes(hidden: int, intermediate: int, features: int) -> dict[str, tuple[int, ...]]:
    return {
        "input_norm": (hidden,),
        "qkv": (features, hidden),
        "output": (hidden, hidden),
        "attended_norm": (hidden,),
        "gate_up": (2 * intermediate, hidden),
        "down": (hidden, intermediate),
    }
