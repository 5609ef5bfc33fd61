"""ModernBERT (arXiv 2412.13663): rotary positions, gated feed-forward blocks, norms in front, and
attention that sees all of a prompt in every third layer and what is near in the others."""

from __future__ import annotations

from typing import Any

import torch

from engine.layers.embedding import Embedding
from engine.layers.encoder import ACTIVATIONS, LayerNorm, Prompts
from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.layers.rope import RopeConfig, cos_sin_table
from engine.models.encoder import Encoder, EncoderFile
from engine.pooling import PoolingModel

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


class ModernBertFile(EncoderFile, kw_only=True):
    hidden_activation: str = "gelu"
    classifier_activation: str = "gelu"
    norm_eps: float = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    classifier_bias: bool = False
    local_attention: int = 128
    global_attn_every_n_layers: int = 3
    layer_types: list[str] | None = None
    global_rope_theta: float = 160000.0
    local_rope_theta: float = 10000.0
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None

    @property
    def activation(self) -> str:
        return self.hidden_activation

    @property
    def window(self) -> int:
        """How far a token sees in a layer with a window, on either side."""
        return self.local_attention // 2

    def kinds(self) -> list[str]:
        """Of each layer: ``full_attention`` or ``sliding_attention``."""
        if self.layer_types is not None:
            return self.layer_types
        every = self.global_attn_every_n_layers
        return [_LOCAL if layer % every else _GLOBAL for layer in range(self.num_hidden_layers)]

    def theta(self, kind: str) -> float:
        stated = (self.rope_parameters or {}).get(kind) or {}
        default = self.global_rope_theta if kind == _GLOBAL else self.local_rope_theta
        return float(stated.get("rope_theta") or default)

    def check(self) -> None:
        super().check()
        if self.classifier_activation not in ACTIVATIONS:
            raise ValueError(f"classifier_activation: {self.classifier_activation!r}")
        if len(self.kinds()) != self.num_hidden_layers or not {*self.kinds()} <= {_GLOBAL, _LOCAL}:
            raise ValueError(f"layer_types: not supported: {self.layer_types}")
        scalings = [self.rope_scaling or {}, *(self.rope_parameters or {}).values()]
        for scaling in scalings:
            kind = (scaling or {}).get("rope_type", "default")
            if kind != "default":
                raise ValueError(f"rope scaling {kind!r} is not supported")


class ModernBertLayer(Module):
    """Attention and gated feed-forward block, each behind a norm (the first layer's attention
    follows that of the embedding) and with a residual connection."""

    def __init__(
        self, file: ModernBertFile, layer: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        size, inner = file.hidden_size, file.intermediate_size
        self.kind = file.kinds()[layer]
        self._window = file.window if self.kind == _LOCAL else None
        self._num_heads, self._head_dim = file.num_attention_heads, size // file.num_attention_heads
        self._activation = ACTIVATIONS[file.activation]

        def norm() -> LayerNorm:
            return LayerNorm(size, file.norm_eps, bias=file.norm_bias, dtype=dtype, device=device)

        def linear(num_in: int, num_out: int, bias: bool) -> Linear:
            return Linear(num_in, {"": num_out}, bias=bias, dtype=dtype, device=device)

        self.attn_norm = None if layer == 0 else norm()
        self.qkv = linear(size, 3 * size, file.attention_bias)
        self.attended = linear(size, size, file.attention_bias)
        self.mlp_norm = norm()
        self.up = linear(size, 2 * inner, file.mlp_bias)
        self.down = linear(inner, size, file.mlp_bias)

    def __call__(self, x: torch.Tensor, cos_sin: torch.Tensor, prompts: Prompts) -> torch.Tensor:
        """cos_sin: [2, num_tokens, 1, head_dim / 2] float32."""
        normed = x if self.attn_norm is None else self.attn_norm(x)
        qkv = self.qkv(normed).view(len(x), 3, self._num_heads, self._head_dim)
        _rotate(qkv[:, :2], cos_sin)
        x = x + self.attended(prompts.attend(qkv, self._head_dim**-0.5, self._window))
        active, gate = self.up(self.mlp_norm(x)).chunk(2, -1)
        return self.down(self._activation(active).mul_(gate)).add_(x)


class ModernBert(Encoder):
    file_class = ModernBertFile
    prefixes = ("model.",)
    renamed = (
        ("embeddings.tok_embeddings.", "words."),
        ("embeddings.norm.", "embedding_norm."),
        ("attn.Wqkv.", "qkv."),
        ("attn.Wo.", "attended."),
        ("mlp.Wi.", "up."),
        ("mlp.Wo.", "down."),
        ("head.dense.", "dense."),
        ("head.norm.", "head_norm."),
    )

    def __init__(
        self,
        file: ModernBertFile,
        pooling: PoolingModel,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(file, pooling, dtype=dtype, device=device)
        size, bias = file.hidden_size, file.norm_bias
        self.words = Embedding(file.vocab_size, size, dtype=dtype, device=device)
        self.embedding_norm = LayerNorm(size, file.norm_eps, bias=bias, dtype=dtype, device=device)
        self.layers = [
            ModernBertLayer(file, layer, dtype=dtype, device=device)
            for layer in range(file.num_hidden_layers)
        ]
        self.final_norm = LayerNorm(size, file.norm_eps, bias=bias, dtype=dtype, device=device)
        self._tables = {
            kind: cos_sin_table(
                RopeConfig(file.theta(kind)),
                size // file.num_attention_heads,
                file.max_position_embeddings,
                device,
            )
            for kind in set(file.kinds())
        }
        self.dense: Linear | None = None
        self.head_norm: LayerNorm | None = None
        self.classifier: Linear | None = None
        self._head_activation = ACTIVATIONS[file.classifier_activation]
        unneeded = ["decoder."]
        if pooling.task == "score":
            has_bias = file.classifier_bias
            self.dense = Linear(size, {"": size}, bias=has_bias, dtype=dtype, device=device)
            self.head_norm = LayerNorm(size, file.norm_eps, bias=bias, dtype=dtype, device=device)
            self.classifier = Linear(size, {"": 1}, bias=True, dtype=dtype, device=device)
        else:
            unneeded += ["dense.", "head_norm.", "classifier."]
        self.unneeded = tuple(unneeded)

    def hidden_states(self, prompts: Prompts) -> torch.Tensor:
        x = self.embedding_norm(self.words(prompts.token_ids))
        turns = {
            kind: torch.stack(table[prompts.positions].chunk(2, -1)).unsqueeze(2)
            for kind, table in self._tables.items()
        }
        for layer in self.layers:
            x = layer(x, turns[layer.kind], prompts)
        return self.final_norm(x)

    def classify(self, pooled: torch.Tensor) -> torch.Tensor:
        assert self.dense is not None
        assert self.head_norm is not None
        assert self.classifier is not None
        dense = self.dense(pooled.to(self.words.weight.data.dtype))
        return self.classifier(self.head_norm(self._head_activation(dense)))


def _rotate(x: torch.Tensor, cos_sin: torch.Tensor) -> None:
    """Rotate queries and keys where they are. x: [num_tokens, 2, num_heads, head_dim]; cos_sin: see
    ``ModernBertLayer``."""
    cos, sin = cos_sin.unsqueeze(2)
    one, other = x.float().chunk(2, -1)
    x.copy_(torch.cat((one * cos - other * sin, other * cos + one * sin), -1))


Model = ModernBert
