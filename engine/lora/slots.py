"""The adapters of a model: all in host memory, the most recently used in slots on the device.

Names with the same content share a slot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from engine.layers.linear import Linear
from engine.lora.adapter import Adapter, load_adapter
from engine.lora.product import LoraAddition, Product, StepAdapters
from engine.lora.shards import AdapterShards
from engine.lora.static_tiles import StaticTiles
from engine.lora.target_modules import find_target_modules
from engine.models.base import Model
from kernels import cuda_lora, ops, reference
from kernels.lora import FEW_TOKENS, AdapterTiles, LoraMatrices, padded_rank
from kernels.transfer import to_device

Tokens = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""(rows, number of tokens of each row): [num_rows] each. The step's tokens are in this order."""


class AdapterSlots:
    """Hooks adapters into the linear layers of a model whose weights are loaded and packed."""

    def __init__(
        self,
        model: Model,
        *,
        max_loras: int,
        max_lora_rank: int,
        max_num_rows: int,
        max_graph_tokens: int,
        shards: AdapterShards | None = None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """max_loras: the number of slots, and so the most adapters in one step. max_graph_tokens:
        the most tokens of a step in a CUDA graph. shards: where the model is one rank's part."""
        self._shards = shards
        self.max_loras = max_loras
        self._max_rank = max_lora_rank
        self._dtype, self._device = dtype, device
        self._place_of = model.place_of
        self._modules = find_target_modules(model)
        self._adapters: dict[str, Adapter] = {}
        self._slots: OrderedDict[str, int] = OrderedDict()
        """Slot by digest of the adapters on the device, the most recently used last."""
        self._free = list(range(max_loras - 1, -1, -1))
        self.num_swaps = 0
        """How often an adapter was copied into a slot."""
        self._row_adapters = [""] * max_num_rows
        self._step = StepAdapters()
        self._static = StaticTiles(max_graph_tokens, max_loras, device)
        num_parts = len(self._modules)
        self._ranks = torch.zeros(max_loras, num_parts, dtype=torch.int32, device=device)
        """[max_loras, num_parts]: the ranks for all parts of all layers, in one tensor, so that one
        copy sets those of a slot."""
        self._additions = self._add_to_layers()

    def _add_to_layers(self) -> list[LoraAddition]:
        of_layer: dict[Linear, dict[str, slice]] = {}
        for name, module in self._modules.items():
            of_layer.setdefault(module.linear, {})[name] = module.columns
        additions, first = [], 0
        for linear, names in of_layer.items():
            matrices = LoraMatrices.empty(
                self._ranks[:, first : first + len(names)],
                linear.in_features,
                tuple(columns.stop - columns.start for columns in names.values()),
                self._max_rank,
                dtype=self._dtype,
            )
            first += len(names)
            linear.addition = LoraAddition(matrices, names, self._step)
            additions.append(linear.addition)
        return additions

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile what is compiled at first use, so that no step waits for it."""
        of_kind = {addition.kind: addition for addition in self._additions}
        for num_tokens in (1, FEW_TOKENS + 1):
            with self._adding(AdapterTiles.of(np.zeros(num_tokens, np.int64), self._device)):
                for addition in of_kind.values():
                    addition(*self._nothing(num_tokens, addition))

    def _nothing(self, num_tokens: int, addition: LoraAddition) -> tuple[torch.Tensor, Product]:
        """Zeros in place of a layer's input and product."""
        x, out = (
            torch.zeros(num_tokens, size, dtype=self._dtype, device=self._device)
            for size in (addition.in_features, addition.out_features)
        )
        return x, lambda _: out

    # ---- adapters come and go -------------------------------------------------------------------

    def read(self, folder: Path) -> Adapter:
        """Load an adapter into host memory and check it. ``AdapterLoadError`` says what does not
        fit.

        Changes nothing here: it may be called from any thread.
        """
        return load_adapter(
            folder,
            self._modules if self._shards is None else self._shards.modules,
            max_rank=self._max_rank,
            dtype=self._dtype,
            place_of=self._place_of,
            pin=self._device.type == "cuda",
        )

    def keep(self, name: str, adapter: Adapter) -> None:
        """Accept an adapter: rows may use it from now on."""
        assert name not in self._adapters
        same = (one for one in self._adapters.values() if one.digest == adapter.digest)
        kept = next(same, None)
        if kept is None:
            kept = adapter if self._shards is None else self._shards.of(adapter)
        self._adapters[name] = kept

    def drop(self, name: str) -> None:
        """Forget an adapter that no request uses any more."""
        digest = self._adapters.pop(name).digest
        if digest in self._slots and all(one.digest != digest for one in self._adapters.values()):
            self._free.append(self._slots.pop(digest))

    @property
    def resident(self) -> list[str]:
        """Digests of the adapters on the device, the next to be replaced first."""
        return list(self._slots)

    def step_bytes(self, num_tokens: int) -> int:
        """The most bytes that adapters need beside the model's own activations, for a step of
        ``num_tokens``."""
        widest = max(module.out_features for module in self._modules.values())
        # A product in the model's dtype, and float32 sums over slices of the inputs.
        sums = cuda_lora.SLICES * 3 * padded_rank(self._max_rank) * 4
        return num_tokens * (widest * self._dtype.itemsize + sums)

    # ---- a step ---------------------------------------------------------------------------------

    def admit(self, row: int, name: str) -> None:
        """Note the adapter of a row; name: "" for none."""
        self._row_adapters[row] = name

    @contextmanager
    def applied(self, tokens: Tokens, wanted: Tokens | None = None) -> Iterator[None]:
        """A context in which a forward pass computes these tokens, each with its row's adapter.
        wanted: the tokens that the last layer computes, if these are not all."""
        tiles, *of_wanted = (
            AdapterTiles.of(self._slots_of(rows).repeat(query_lens), self._device)
            for rows, query_lens in ((tokens,) if wanted is None else (tokens, wanted))
        )
        with self._adding(tiles, *of_wanted):
            yield

    @property
    def is_capturable(self) -> bool:
        """Whether the adapters' kernels can be captured in CUDA graphs."""
        chosen = ops.resolve("shrink_lora", self._device.type, self._dtype)
        return chosen is not reference.shrink_lora

    def captured(self, num_tokens: int) -> AbstractContextManager[None]:
        """A context in which a forward pass of ``num_tokens`` is captured; ``send`` sets its
        adapters before each replay."""
        return self._adding(self._static.of(num_tokens))

    def send(self, rows: npt.NDArray[np.int64], num_tokens: int, num_queries: int = 1) -> None:
        """Set the adapters of the next replay of a graph of ``num_tokens`` tokens: ``num_queries``
        tokens of each of ``rows``, in order, with the row's adapter; tokens after those have
        none."""
        self._static.send(self._slots_of(rows).repeat(num_queries), num_tokens)

    @contextmanager
    def _adding(self, tiles: AdapterTiles, wanted: AdapterTiles | None = None) -> Iterator[None]:
        self._step.tiles, self._step.wanted = tiles, wanted
        try:
            yield
        finally:
            self._step.tiles = self._step.wanted = None

    def serves(self, rows: npt.NDArray[np.int64]) -> bool:
        """Whether any of the rows has an adapter."""
        return any(self._row_adapters[row] for row in rows.tolist())

    def _slots_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The slot of each row's adapter, which is loaded if necessary; -1 for rows without one."""
        names = [self._row_adapters[row] for row in rows.tolist()]
        slots = self._bring(names)
        return np.array([slots.get(name, -1) for name in names])

    def _bring(self, names: Sequence[str]) -> dict[str, int]:
        """The slots of these adapters, loading those that are not on the device."""
        wanted = {name: self._adapters[name] for name in dict.fromkeys(names) if name}
        missing = {one.digest: one for one in wanted.values() if one.digest not in self._slots}
        for adapter in wanted.values():
            if adapter.digest not in missing:
                self._slots.move_to_end(adapter.digest)
        for digest, adapter in missing.items():
            # Those in use were moved to the end, so the first is never one of them.
            slot = self._free.pop() if self._free else self._slots.popitem(last=False)[1]
            self._slots[digest] = slot
            self._fill(slot, adapter)
        assert all(one.digest in self._slots for one in wanted.values()), "too few slots for a step"
        return {name: self._slots[one.digest] for name, one in wanted.items()}

    def _fill(self, slot: int, adapter: Adapter) -> None:
        self.num_swaps += 1
        # The copies are ordered on the steps' stream: a step in flight still reads the old content.
        ranks = [rank for added in self._additions for rank in added.fill(slot, adapter.pairs)]
        self._ranks[slot].copy_(to_device(np.array(ranks, np.int32), self._device))


def captured(slots: AdapterSlots | None, num_tokens: int) -> AbstractContextManager[None]:
    """``slots.captured(num_tokens)``; does nothing without slots."""
    return nullcontext() if slots is None else slots.captured(num_tokens)
