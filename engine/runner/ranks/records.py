"""What rank 0 tells the other ranks: the calls of its own runner, in their order."""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from engine.lora.adapter import Adapter, LoraPair
from engine.scheduler.plan import StepPlan, TokenMask


class Forward(msgspec.Struct, frozen=True, tag=0, array_like=True, gc=False):
    """``sample(None)`` follows where no chunk is constrained, without a record of its own: each
    wakes the other ranks, which takes longer than to encode a plan."""

    plan: StepPlan


class Sample(msgspec.Struct, frozen=True, tag=1, array_like=True, gc=False):
    """The step that was launched last, which is constrained."""

    chunk_indices: list[int]
    bitmask: bytes

    @classmethod
    def of(cls, mask: TokenMask | None) -> Sample:
        if mask is None:
            return cls([], b"")
        return cls(mask.chunk_indices, np.ascontiguousarray(mask.bitmask).tobytes())

    @property
    def mask(self) -> TokenMask | None:
        if not self.chunk_indices:
            return None
        words = np.frombuffer(bytearray(self.bitmask), np.int32)  # writable, as torch wants it
        return TokenMask(self.chunk_indices, words.reshape(len(self.chunk_indices), -1))


class Collect(msgspec.Struct, frozen=True, tag=2, array_like=True, gc=False):
    """The oldest step that is in flight."""


class Draft(msgspec.Struct, frozen=True, tag=3, array_like=True, gc=False):
    asked: list[tuple[int, int]]
    num_tokens: int
    wait: bool


class KeepAdapter(msgspec.Struct, frozen=True, tag=4, array_like=True, gc=False):
    """As rank 0 has read it, so that no rank finds other files."""

    name: str
    rank: int
    digest: str
    base_model: str | None
    modules: list[str]
    matrices: list[bytes]
    """A and B of each module, one after the other."""
    dtype: str

    @classmethod
    def of(cls, name: str, adapter: Adapter) -> KeepAdapter:
        matrices = [matrix for pair in adapter.pairs.values() for matrix in (pair.down, pair.up)]
        return cls(
            name,
            adapter.rank,
            adapter.digest,
            adapter.base_model,
            list(adapter.pairs),
            [
                matrix.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
                for matrix in matrices
            ],
            str(matrices[0].dtype).removeprefix("torch."),
        )

    @property
    def adapter(self) -> Adapter:
        dtype = getattr(torch, self.dtype)
        matrices = [torch.frombuffer(bytearray(data), dtype=dtype) for data in self.matrices]
        pairs = {
            name: LoraPair(down.view(self.rank, -1), up.view(-1, self.rank))
            for name, down, up in zip(self.modules, matrices[::2], matrices[1::2], strict=True)
        }
        return Adapter(pairs, self.rank, self.digest, self.base_model)


class DropAdapter(msgspec.Struct, frozen=True, tag=5, array_like=True, gc=False):
    name: str


Record = Forward | Sample | Collect | Draft | KeepAdapter | DropAdapter

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def decode(data: bytes) -> Record:
    return _decoder.decode(data)
