"""The interface of encoders to the runner: prompts to hidden states, and those to scores.

Module names are shorter than the checkpoints'; ``renamed`` says how.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import msgspec
import torch

from engine.errors import ModelLoadError
from engine.layers.encoder import ACTIVATIONS, Prompts
from engine.layers.module import Module
from engine.models.config import DTYPES
from engine.models.pooled import PoolingHead
from engine.pooling import PoolingModel

Count = Annotated[int, msgspec.Meta(ge=1)]


class EncoderFile(msgspec.Struct, kw_only=True):
    """The fields of config.json that encoders share; a family's subclass adds its own."""

    architectures: list[str]
    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    max_position_embeddings: Count
    dtype: str | None = None
    torch_dtype: str | None = None

    @property
    def max_len(self) -> int:
        """Most tokens of a prompt."""
        return self.max_position_embeddings

    @property
    def activation(self) -> str:
        raise NotImplementedError

    @property
    def checkpoint_dtype(self) -> torch.dtype:
        name = self.dtype or self.torch_dtype or "float32"
        if name not in DTYPES:
            raise ValueError(f"dtype: not supported: {name!r}, only {', '.join(DTYPES)}")
        return DTYPES[name]

    @classmethod
    def read(cls, model_dir: Path) -> Self:
        """Raises ``ModelLoadError``, which names the field."""
        path = model_dir / "config.json"
        try:
            file = msgspec.json.decode(path.read_bytes(), type=cls)
            file.check()
        except (OSError, ValueError) as error:  # msgspec's are such, too
            raise ModelLoadError(f"{path}: {error}") from error
        return file

    def check(self) -> None:
        """Raises ``ValueError`` for a field that means something else than is computed here."""
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads: {self.num_attention_heads} do not divide hidden_size"
                f" {self.hidden_size}"
            )
        if self.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ValueError(f"activation {self.activation!r} is not supported, only {known}")


class Encoder(Module, ABC):
    """A model of attention in both directions."""

    file_class: ClassVar[type[EncoderFile]]
    prefixes: ClassVar[Sequence[str]]
    """Of the tensors of a checkpoint with a head, which others lack."""
    renamed: ClassVar[Sequence[tuple[str, str]]] = ()
    """What stands in checkpoints, and in our names; in their order."""
    unneeded: Sequence[str]
    """Beginnings of names of tensors that are for other tasks."""

    def __init__(
        self, file: Any, pooling: PoolingModel, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Makes what all encoders have, without its weights. ``file``: of ``file_class``."""
        self.pooling = pooling
        self.finish = PoolingHead(pooling, file.hidden_size, dtype=dtype, device=device)

    def place_of(self, name: str) -> str | None:
        """As ``Model.place_of``."""
        for prefix in self.prefixes:
            name = name.removeprefix(prefix)
        for theirs, ours in self.renamed:
            name = name.replace(theirs, ours)
        return None if name.startswith(tuple(self.unneeded)) else name

    @abstractmethod
    def hidden_states(self, prompts: Prompts) -> torch.Tensor:
        """Those of all tokens: [num_tokens, hidden_size]."""

    @abstractmethod
    def classify(self, pooled: torch.Tensor) -> torch.Tensor:
        """A cross-encoder's head: [num_prompts, hidden_size] to [num_prompts, 1]."""

    def pooled(self, prompts: Prompts) -> torch.Tensor:
        """The result of each prompt: [num_prompts, size] float32."""
        pooled = prompts.pool(self.hidden_states(prompts), self.pooling.method)
        if self.pooling.task == "score":
            pooled = self.classify(pooled)
        return self.finish.finish(pooled)
