"""BERT (arXiv 1810.04805), RoBERTa and XLM-RoBERTa (arXiv 1911.02116)."""

from __future__ import annotations

import torch

from engine.layers.embedding import Embedding
from engine.layers.encoder import ACTIVATIONS, LayerNorm, Prompts
from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.models.encoder import Encoder, EncoderFile
from engine.pooling import PoolingModel


class BertFile(EncoderFile, kw_only=True):
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    position_embedding_type: str | None = "absolute"
    is_decoder: bool = False

    @property
    def first_position(self) -> int:
        """RoBERTa counts positions from behind the padding's."""
        return (self.pad_token_id or 0) + 1 if "Roberta" in self.architectures[0] else 0

    @property
    def max_len(self) -> int:
        return self.max_position_embeddings - self.first_position

    @property
    def activation(self) -> str:
        return self.hidden_act

    def check(self) -> None:
        super().check()
        if self.position_embedding_type not in (None, "absolute"):
            raise ValueError(
                f"position_embedding_type: {self.position_embedding_type!r} is not supported"
            )
        if self.is_decoder:
            raise ValueError("is_decoder: true is not supported")


class BertLayer(Module):
    """Attention and feed-forward block, each with a residual connection and a norm behind it."""

    def __init__(self, file: BertFile, *, dtype: torch.dtype, device: torch.device) -> None:
        self._num_heads = file.num_attention_heads
        self._scale = (file.hidden_size // file.num_attention_heads) ** -0.5
        self._activation = ACTIVATIONS[file.activation]
        size, inner, eps = file.hidden_size, file.intermediate_size, file.layer_norm_eps
        parts = {"query": size, "key": size, "value": size}
        self.qkv = Linear(size, parts, bias=True, dtype=dtype, device=device)
        self.attended = Linear(size, {"": size}, bias=True, dtype=dtype, device=device)
        self.attended_norm = LayerNorm(size, eps, dtype=dtype, device=device)
        self.up = Linear(size, {"": inner}, bias=True, dtype=dtype, device=device)
        self.down = Linear(inner, {"": size}, bias=True, dtype=dtype, device=device)
        self.norm = LayerNorm(size, eps, dtype=dtype, device=device)

    def __call__(self, x: torch.Tensor, prompts: Prompts) -> torch.Tensor:
        qkv = self.qkv(x).view(len(x), 3, self._num_heads, -1)
        x = self.attended_norm(self.attended(prompts.attend(qkv, self._scale)).add_(x))
        return self.norm(self.down(self._activation(self.up(x))).add_(x))


class BertEncoder(Encoder):
    file_class = BertFile
    prefixes = ("bert.", "roberta.")
    renamed = (
        ("embeddings.LayerNorm.", "embedding_norm."),
        ("embeddings.word_embeddings.", "words."),
        ("embeddings.position_embeddings.", "positions."),
        ("embeddings.token_type_embeddings.", "segments."),
        ("encoder.layer.", "layers."),
        ("attention.self.", ""),
        ("attention.output.dense.", "attended."),
        ("attention.output.LayerNorm.", "attended_norm."),
        ("intermediate.dense.", "up."),
        ("output.dense.", "down."),
        ("output.LayerNorm.", "norm."),
        ("pooler.dense.", "dense."),
        ("classifier.dense.", "dense."),
        ("classifier.out_proj.", "classifier."),
        # Checkpoints that were converted from TensorFlow
        ("norm.gamma", "norm.weight"),
        ("norm.beta", "norm.bias"),
    )

    def __init__(
        self, file: BertFile, pooling: PoolingModel, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(file, pooling, dtype=dtype, device=device)
        self._first_position = file.first_position
        size = file.hidden_size
        self.words = Embedding(file.vocab_size, size, dtype=dtype, device=device)
        self.positions = Embedding(file.max_position_embeddings, size, dtype=dtype, device=device)
        self.segments = Embedding(file.type_vocab_size, size, dtype=dtype, device=device)
        self._has_segments = file.type_vocab_size > 1
        self.embedding_norm = LayerNorm(size, file.layer_norm_eps, dtype=dtype, device=device)
        self.layers = [
            BertLayer(file, dtype=dtype, device=device) for _ in range(file.num_hidden_layers)
        ]
        self.dense: Linear | None = None
        self.classifier: Linear | None = None
        unneeded = ["cls.", "lm_head.", "embeddings.position_ids"]
        if pooling.task == "score":
            self.dense = Linear(size, {"": size}, bias=True, dtype=dtype, device=device)
            self.classifier = Linear(size, {"": 1}, bias=True, dtype=dtype, device=device)
        else:
            unneeded += ["dense.", "classifier."]
        self.unneeded = tuple(unneeded)

    def hidden_states(self, prompts: Prompts) -> torch.Tensor:
        x = self.words(prompts.token_ids)
        x = x + self.positions(prompts.positions + self._first_position)
        if prompts.segments is None or not self._has_segments:
            x += self.segments.weight.data[0]
        else:
            x += self.segments(prompts.segments)
        x = self.embedding_norm(x)
        for layer in self.layers:
            x = layer(x, prompts)
        return x

    def classify(self, pooled: torch.Tensor) -> torch.Tensor:
        assert self.dense is not None
        assert self.classifier is not None
        return self.classifier(torch.tanh(self.dense(pooled)))


Model = BertEncoder
