"""Mixtures of experts: a router picks a few of many feed-forward blocks for each token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional as F

from engine.layers.linear import Linear, QuantizedWeight
from engine.layers.mlp import GatedMLP
from engine.layers.module import Module
from engine.layers.parameter import Weight
from engine.parallel.group import ALONE, Group, Output, whole
from kernels import ops
from kernels.experts import ExpertMatrices
from kernels.rounded import Activations


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """How a token's experts are chosen and weighted."""

    num_experts: int
    top_k: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool
    """The weights of a token's experts sum to 1."""
    scale: float = 1.0
    """Factor on all weights, applied last."""
    num_groups: int = 1
    """Experts are chosen only from the best ``top_k_groups`` of this many groups (arXiv
    2405.04434)."""
    top_k_groups: int = 1
    has_bias: bool = False
    """A learned bias counts for choosing experts but not for their weights, and a group is ranked
    by its two best experts (arXiv 2408.15664); without it, by its best one."""
    in_float32: bool = False
    """The scores are computed in float32, whatever the model's dtype."""
    projection_bias: bool = False
    """A learned bias is part of the scores themselves."""
    among: Group = ALONE
    """The ranks among which whole experts are divided, as neighbours."""

    @property
    def local(self) -> range:
        """The experts of this rank."""
        each = self.num_experts // self.among.size
        return range(self.among.rank * each, (self.among.rank + 1) * each)


class Router(Module):
    """Scores the experts for each token, and chooses the best."""

    def __init__(
        self, config: RouterConfig, hidden_size: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config = config
        shape = config.num_experts, hidden_size
        self.weight = Weight(torch.empty(shape, dtype=dtype, device=device))
        self.bias: Weight | None = None
        if config.projection_bias:
            self.bias = Weight(torch.empty(config.num_experts, dtype=dtype, device=device))
        self.e_score_correction_bias: Weight | None = None
        if config.has_bias:
            bias = torch.empty(config.num_experts, dtype=torch.float32, device=device)
            self.e_score_correction_bias = Weight(bias)
        self._places: torch.Tensor | None = None
        if config.among.size > 1:
            places = torch.full((config.num_experts,), len(config.local), device=device)
            places[config.local.start : config.local.stop] = torch.arange(len(config.local))
            self._places = places

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [num_tokens, hidden]; returns experts [num_tokens, top_k] int64, weights float32.

        Experts are counted within this rank; those of others have the number behind them all, and
        the weight 0."""
        experts, weights = self._chosen(x)
        if self._places is None:
            return experts, weights
        experts = self._places[experts]
        return experts, weights * (experts < len(self._config.local))

    def _chosen(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        config, bias = self._config, self.e_score_correction_bias
        return ops.route_experts(
            self._logits(x),
            None if bias is None else bias.data,
            top_k=config.top_k,
            sigmoid=config.scoring == "sigmoid",
            renormalize=config.renormalize,
            scale=config.scale,
            num_groups=config.num_groups,
            top_k_groups=config.top_k_groups,
        )

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.data
        if not self._config.in_float32 or x.dtype == torch.float32:
            return F.linear(x, weight, None if self.bias is None else self.bias.data)
        if x.is_cuda:  # which sums in float32 anyway, and need not round
            return torch.mm(x, weight.t(), out_dtype=torch.float32)
        return F.linear(x.float(), weight.float())


class ExpertLinear(Module):
    """The matrices of all experts in one weight: [num_experts, out_features, in_features].

    Quantized, each expert has a weight of its own until all are loaded.
    """

    def __init__(
        self,
        experts: range,
        in_features: int,
        parts: dict[str, int],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """experts: their numbers in the checkpoint."""
        self.experts, self.parts = experts, parts
        self._in_features, self._dtype, self._device = in_features, dtype, device
        shape = len(experts), sum(parts.values()), in_features
        self.weight = Weight.stacked(shape, parts, experts.start, dtype=dtype, device=device)
        self.quantized: list[QuantizedWeight] | None = None
        self._matrices: ExpertMatrices | None = None

    def quantize(self, weight: Callable[[Linear], QuantizedWeight]) -> None:
        """weight: the quantized form of one expert's weight."""
        one = Linear(
            self._in_features, self.parts, bias=False, dtype=self._dtype, device=self._device
        )
        self.quantized = [weight(one) for _ in self.experts]

    @property
    def matrices(self) -> ExpertMatrices:
        return self.weight.data if self._matrices is None else self._matrices

    def pack(self) -> None:
        if self.quantized is None:
            return
        weights, self.quantized = self.quantized, []
        if all(weight.prepare() for weight in weights):
            self._matrices = weights[0].stack(weights)
        else:
            self._matrices = torch.stack([weight.dequantize() for weight in weights])


class Experts(Module):
    """``down(silu(gate(x)) * up(x))``, once for each expert of a token."""

    def __init__(
        self,
        experts: range,
        hidden_size: int,
        intermediate_size: int,
        *,
        names: Sequence[str] = ("gate_proj", "up_proj", "down_proj"),
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """experts: their numbers in the checkpoint. names: what that calls an expert's three
        matrices."""
        gate, up, down = names
        inner = {gate: intermediate_size, up: intermediate_size}
        self.gate_up = ExpertLinear(experts, hidden_size, inner, dtype=dtype, device=device)
        self.down = ExpertLinear(
            experts, intermediate_size, {down: hidden_size}, dtype=dtype, device=device
        )

    def __call__(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """x: [num_tokens, hidden]; experts, weights: as ``Router`` returns them."""
        return ops.apply_experts(x, self.gate_up.matrices, self.down.matrices, experts, weights)

    def children(self) -> Iterator[tuple[str, Module | Weight]]:
        """Checkpoints hold the tensors of quantized weights expert by expert."""
        for name, linear in self.linears():
            if linear.quantized is None:
                yield name, linear
            else:
                # Once they are packed, none are left.
                numbered = zip(linear.experts, linear.quantized, strict=False)
                yield from ((f"{i}.{name}", one) for i, one in numbered)

    def linears(self) -> list[tuple[str, ExpertLinear]]:
        return [("gate_up", self.gate_up), ("down", self.down)]

    def pack(self) -> None:
        self.gate_up.pack()
        self.down.pack()


class SparseMoE(Module):
    """The experts of each token, weighted and summed up, and shared experts beside them."""

    reader = None

    def __init__(
        self,
        router: RouterConfig,
        hidden_size: int,
        intermediate_size: int,
        *,
        names: Sequence[str] = ("gate_proj", "up_proj", "down_proj"),
        shared_size: int | None = None,
        group: Group = ALONE,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """shared_size: width of the feed-forward block that every token goes through as well.
        group: the ranks that share each block; the widths are this rank's."""
        self._group = group
        self.gate = Router(router, hidden_size, dtype=dtype, device=device)
        self.experts = Experts(
            router.local,
            hidden_size,
            intermediate_size,
            names=names,
            dtype=dtype,
            device=device,
        )
        self.shared_experts: GatedMLP | None = None
        if shared_size is not None:
            self.shared_experts = GatedMLP(
                hidden_size, shared_size, bias=False, dtype=dtype, device=device
            )

    def __call__(self, x: Activations) -> Output:
        assert isinstance(x, torch.Tensor), "rounded for nobody"
        out = self.experts(x, *self.gate(x))
        if self.shared_experts is not None:
            out.add_(whole(self.shared_experts(x)))
        return self._group.output(out)


class Gate(Module):
    """The sigmoid of one projection of each token: [num_tokens, 1]."""

    def __init__(self, hidden_size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = Weight(torch.empty(1, hidden_size, dtype=dtype, device=device))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight.data.transpose(0, 1)).sigmoid_()


class GatedSharedMoE(SparseMoE):
    """Experts beside a feed-forward block that every token goes through, as far as a gate lets
    it."""

    def __init__(
        self,
        router: RouterConfig,
        hidden_size: int,
        intermediate_size: int,
        shared_size: int,
        *,
        group: Group = ALONE,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(
            router, hidden_size, intermediate_size, group=group, dtype=dtype, device=device
        )
        self.shared_expert = GatedMLP(
            hidden_size, shared_size, bias=False, dtype=dtype, device=device
        )
        self.shared_expert_gate = Gate(hidden_size, dtype=dtype, device=device)

    def __call__(self, x: Activations) -> Output:
        assert isinstance(x, torch.Tensor), "rounded for nobody"
        out = self.experts(x, *self.gate(x))
        out.add_(whole(self.shared_expert(x)) * self.shared_expert_gate(x))
        return self._group.output(out)
