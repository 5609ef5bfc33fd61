"""How a model is divided over ranks, and which numbers of ranks can divide it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engine.errors import ConfigError
from engine.models.base import ModelConfig
from engine.parallel.group import Group

_MOST_RANKS = 64
_FEATURES = 8
"""The kernels need a multiple of this many features."""


def of_rank(config: ModelConfig, group: Group, *, whole_experts: bool = False) -> ModelConfig:
    """What one rank computes of a model, for a size without ``obstacle``. Of KV heads that are
    fewer than ranks, several ranks have the same one. whole_experts: each rank has some of them;
    else a part of each."""
    if group.size == 1:
        return config
    size, moe = group.size, config.moe
    if moe is not None:
        shared = None if moe.shared_size is None else moe.shared_size // size
        if whole_experts:
            moe = replace(moe, router=replace(moe.router, among=group), shared_size=shared)
        else:
            moe = replace(moe, intermediate_size=moe.intermediate_size // size, shared_size=shared)
    return replace(
        config,
        num_heads=config.num_heads // size,
        num_kv_heads=max(1, config.num_kv_heads // size),
        intermediate_size=config.intermediate_size // size,
        moe=moe,
        group=group,
    )


def kv_heads_of_rank(num_kv_heads: int, group: Group) -> slice:
    """Which of the model's KV heads a rank has."""
    each = max(1, num_kv_heads // group.size)
    first = group.rank * (num_kv_heads // each) // group.size * each
    return slice(first, first + each)


def check_size(config: ModelConfig, size: int, *, whole_experts: bool) -> None:
    """Raises ``ConfigError``, which names what ``tensor_parallel_size`` does not divide, and the
    sizes that work."""

    def obstacle_to(ranks: int) -> str | None:
        return obstacle(config, ranks, whole_experts=whole_experts)

    why = obstacle_to(size)
    if why is None:
        return
    works = [str(other) for other in range(1, _MOST_RANKS + 1) if obstacle_to(other) is None]
    raise ConfigError(
        f"tensor_parallel_size {size} does not divide {why} of {config.architecture}: "
        f"take one of {', '.join(works)}"
    )


def obstacle(config: ModelConfig, size: int, *, whole_experts: bool = False) -> str | None:
    """What so many ranks cannot divide; None if they can divide the model."""
    if config.recurrent is not None and size > 1:
        return "the layers with a recurrent state"
    if config.num_heads % size:
        return f"num_attention_heads {config.num_heads}"
    kv_heads = config.num_kv_heads
    if config.mla is None and kv_heads % size and size % kv_heads:
        return f"num_key_value_heads {kv_heads}"
    moe = config.moe
    if whole_experts and moe is not None and moe.router.num_experts % size:
        return f"the number of experts {moe.router.num_experts}"
    for name, width in _widths(config, whole_experts=whole_experts):
        if size > 1 and width % (size * _FEATURES):
            return f"{name} {width} in multiples of {_FEATURES}"
    return None


def _widths(config: ModelConfig, *, whole_experts: bool) -> Iterator[tuple[str, int]]:
    """The widths of feed-forward blocks that are divided."""
    moe = config.moe
    if moe is None or moe.dense_layers:
        yield "intermediate_size", config.intermediate_size
    if moe is not None:
        if not whole_experts:
            yield "the experts' intermediate_size", moe.intermediate_size
        if moe.shared_size is not None:
            yield "the shared experts' width", moe.shared_size
