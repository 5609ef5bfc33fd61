"""What ``engine.runner.startup.estimate`` finds out about a model, without loading torch."""

from __future__ import annotations

import msgspec

REQUEST_TOKENS = 4096


class Need(msgspec.Struct):
    """What one way to serve the model takes of each GPU."""

    quantization: str
    """Empty: weights as they are stored."""
    size: int
    """``tensor_parallel_size``"""
    weight_bytes: int
    state_bytes: int
    """The recurrent states of one request; 0 without such layers."""
    request_bytes: int
    """Of the KV cache, for a request of ``REQUEST_TOKENS``."""
    longest: int
    """The tokens of the longest request; 0: the weights do not fit."""
    num_requests: int
    """How many requests of ``REQUEST_TOKENS`` fit at once."""


class Check(msgspec.Struct):
    architecture: str
    runs_on: str
    """``native``, ``transformers``, or empty if it cannot be served."""
    family: str = ""
    max_len: int = 0
    max_num_seqs: int = 0
    """How many requests run at once, at most: so many have room for their states."""
    missing: list[str] = []
    """What is missing or stands in the way, in sentences."""
    needs: list[Need] = []
