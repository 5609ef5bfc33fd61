"""The adapters of a model: all in host memory, those used last in slots on the device.

Names with the same content share it: several tenants' adapter takes the room of one.
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
from engine.lora.places import find_places
from engine.lora.product import LowRankAddition, Product, StepAdapters
from engine.lora.static_tiles import StaticTiles
from engine.models.base import Model
from kernels import ops, reference
from kernels.low_rank import FEW_TOKENS, AdapterTiles, LowRankMatrices
from kernels.transfer import to_device

MAX_TOKENS_BESIDE = 128
"""Beyond, a layer's own product leaves a GPU nothing to do beside it."""


class AdapterSlots:
    """Adds itself to the linear layers of a model, whose weights are there and packed."""

    def __init__(
        self,
        model: Model,
        *,
        max_loras: int,
        max_lora_rank: int,
        max_num_rows: int,
        max_num_queries: int = 1,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """max_loras: slots, so adapters in one step at most. max_num_queries: tokens of a row in a
        CUDA graph."""
        self.max_loras = max_loras
        self._max_rank = max_lora_rank
        self._dtype, self._device = dtype, device
        self._place_of = model.place_of
        self._places = find_places(model)
        self._adapters: dict[str, Adapter] = {}
        self._slots: OrderedDict[str, int] = OrderedDict()
        """Of the adapters on the device by their digests, the one used last at the end."""
        self._free = list(range(max_loras - 1, -1, -1))
        self.num_swaps = 0
        """Copies of an adapter into a slot."""
        self._row_adapters = [""] * max_num_rows
        self._step = StepAdapters()
        self._static = StaticTiles(max_num_rows * max_num_queries, max_loras, device)
        # A graph holds both streams; launched one by one, what they gain is lost to events.
        self._beside: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        num_parts = len(self._places)
        self._ranks = torch.zeros(max_loras, num_parts, dtype=torch.int32, device=device)
        """Of all parts of all layers: one copy tells a slot's."""
        self._additions = self._add_to_layers()

    def _add_to_layers(self) -> list[LowRankAddition]:
        of_layer: dict[Linear, dict[str, slice]] = {}
        for name, place in self._places.items():
            of_layer.setdefault(place.linear, {})[name] = place.columns
        additions, first = [], 0
        for linear, names in of_layer.items():
            matrices = LowRankMatrices.empty(
                self._ranks[:, first : first + len(names)],
                linear.in_features,
                tuple(columns.stop - columns.start for columns in names.values()),
                self._max_rank,
                dtype=self._dtype,
            )
            first += len(names)
            linear.addition = LowRankAddition(matrices, names, self._step)
            additions.append(linear.addition)
        return additions

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Whatever is compiled at first use, for no step to wait for it."""
        of_kind = {addition.kind: addition for addition in self._additions}
        for num_tokens in (1, FEW_TOKENS + 1):
            with self._adding(AdapterTiles.of(np.zeros(num_tokens, np.int64), self._device)):
                for addition in of_kind.values():
                    addition(*self._nothing(num_tokens, addition))

    def _nothing(self, num_tokens: int, addition: LowRankAddition) -> tuple[torch.Tensor, Product]:
        """What stands for a layer's input, and for its product."""
        x, out = (
            torch.zeros(num_tokens, size, dtype=self._dtype, device=self._device)
            for size in (addition.in_features, addition.out_features)
        )
        return x, lambda _: out

    # ---- adapters come and go -------------------------------------------------------------------

    def read(self, folder: Path) -> Adapter:
        """Into host memory, checked. ``AdapterLoadError`` says what does not fit.

        Changes nothing here: it may be called from any thread.
        """
        return load_adapter(
            folder,
            self._places,
            max_rank=self._max_rank,
            dtype=self._dtype,
            place_of=self._place_of,
            pin=self._device.type == "cuda",
        )

    def keep(self, name: str, adapter: Adapter) -> None:
        """Rows may have it from now on."""
        assert name not in self._adapters
        same = (one for one in self._adapters.values() if one.digest == adapter.digest)
        self._adapters[name] = next(same, adapter)

    def drop(self, name: str) -> None:
        """Forget an adapter that no request uses any more."""
        digest = self._adapters.pop(name).digest
        if digest in self._slots and all(one.digest != digest for one in self._adapters.values()):
            self._free.append(self._slots.pop(digest))

    @property
    def resident(self) -> list[str]:
        """The digests of the adapters on the device, the one that goes first in front."""
        return list(self._slots)

    def step_bytes(self, num_tokens: int) -> int:
        """Memory that the products of so many tokens take at a time, at most."""
        widest = max(place.out_features for place in self._places.values())
        # A product in the model's dtype, or sums over shares of the inputs in float32.
        return num_tokens * max(widest * self._dtype.itemsize, 8 * 3 * self._max_rank * 4)

    # ---- a step ---------------------------------------------------------------------------------

    def admit(self, row: int, name: str) -> None:
        """name: "" for none."""
        self._row_adapters[row] = name

    @contextmanager
    def applied(
        self, rows: npt.NDArray[np.int64], query_lens: npt.NDArray[np.int64]
    ) -> Iterator[None]:
        """A forward pass in here computes ``query_lens[i]`` tokens of ``rows[i]``, in their order,
        each row with its adapter."""
        of_tokens = self._slots_of(rows).repeat(query_lens)
        with self._adding(AdapterTiles.of(of_tokens, self._device)):
            yield

    @property
    def is_capturable(self) -> bool:
        """Whether CUDA graphs can hold what the adapters add."""
        chosen = ops.resolve("shrink_low_rank", self._device.type, self._dtype)
        return chosen is not reference.shrink_low_rank

    def captured(self, num_tokens: int) -> AbstractContextManager[None]:
        """A forward pass in here is one of so many tokens whose adapters ``send`` tells later."""
        beside = self._beside if num_tokens <= MAX_TOKENS_BESIDE else None
        return self._adding(self._static.of(num_tokens), beside)

    def send(self, rows: npt.NDArray[np.int64], num_tokens: int, num_queries: int = 1) -> None:
        """The graphs of ``num_tokens`` tokens compute ``num_queries`` tokens of each of ``rows``
        next, in their order, with its adapter; the tokens behind them have none."""
        self._static.send(self._slots_of(rows).repeat(num_queries), num_tokens)

    @contextmanager
    def _adding(
        self, tiles: AdapterTiles, beside: torch.cuda.Stream | None = None
    ) -> Iterator[None]:
        self._step.tiles, self._step.beside = tiles, beside
        try:
            yield
        finally:
            self._step.tiles = self._step.beside = None

    def serves(self, rows: npt.NDArray[np.int64]) -> bool:
        """Whether any of the rows has an adapter."""
        return any(self._row_adapters[row] for row in rows.tolist())

    def _slots_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """-1 for rows without an adapter; those of the others are on the device then."""
        names = [self._row_adapters[row] for row in rows.tolist()]
        slots = self._bring(names)
        return np.array([slots.get(name, -1) for name in names])

    def _bring(self, names: Sequence[str]) -> dict[str, int]:
        """The slots of these adapters, which are all on the device then."""
        wanted = {name: self._adapters[name] for name in dict.fromkeys(names) if name}
        missing = {one.digest: one for one in wanted.values() if one.digest not in self._slots}
        for adapter in wanted.values():
            if adapter.digest not in missing:
                self._slots.move_to_end(adapter.digest)
        for digest, adapter in missing.items():
            # Those wanted stand at the end: the first is never one of them.
            slot = self._free.pop() if self._free else self._slots.popitem(last=False)[1]
            self._slots[digest] = slot
            self._fill(slot, adapter)
        assert all(one.digest in self._slots for one in wanted.values()), "too few slots for a step"
        return {name: self._slots[one.digest] for name, one in wanted.items()}

    def _fill(self, slot: int, adapter: Adapter) -> None:
        self.num_swaps += 1
        # On the stream of the steps: one in flight still finds what was there before.
        ranks = [rank for added in self._additions for rank in added.fill(slot, adapter.pairs)]
        self._ranks[slot].copy_(to_device(np.array(ranks, np.int32), self._device))


def captured(slots: AdapterSlots | None, num_tokens: int) -> AbstractContextManager[None]:
    """``AdapterSlots.captured``, if there are any."""
    return nullcontext() if slots is None else slots.captured(num_tokens)
