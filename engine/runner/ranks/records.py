"""What rank 0 tells the other ranks: the calls of its own runner, in their order."""

from __future__ import annotations

import msgspec
import numpy as np

from engine.scheduler.plan import StepPlan, TokenMask


class Forward(msgspec.Struct, frozen=True, tag=0, array_like=True, gc=False):
    plan: StepPlan


class Sample(msgspec.Struct, frozen=True, tag=1, array_like=True, gc=False):
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
        words = np.frombuffer(self.bitmask, np.int32)
        return TokenMask(self.chunk_indices, words.reshape(len(self.chunk_indices), -1))


class Collect(msgspec.Struct, frozen=True, tag=2, array_like=True, gc=False):
    """The oldest step that is in flight."""


class Draft(msgspec.Struct, frozen=True, tag=3, array_like=True, gc=False):
    asked: list[tuple[int, int]]
    num_tokens: int
    wait: bool


Record = Forward | Sample | Collect | Draft

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def decode(data: bytes) -> Record:
    return _decoder.decode(data)
