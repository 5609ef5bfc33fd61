"""Whether a model can be divided over several ranks, and how they find each other."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.models.base import ModelConfig
from engine.models.sharding import check_size
from engine.parallel.gloo import GlooGroup
from engine.parallel.group import Group
from engine.runner.startup.model import read_facts
from engine.runner.startup.target import choose_device


def check_ranks(config: EngineConfig) -> None:
    """Raises ``ConfigError``, which names what several ranks cannot do, and ``ModelLoadError``."""
    facts, size = read_facts(config), config.tensor_parallel_size
    if not isinstance(facts, ModelConfig):
        raise ConfigError(
            f"tensor_parallel_size {size} needs a native model; transformers' run on one device: "
            "set it to 1"
        )
    if config.enable_expert_parallel and facts.moe is None:
        raise ConfigError(
            f"enable_expert_parallel: {facts.architecture} has no mixture of experts: leave it out"
        )
    check_size(facts, size, whole_experts=config.enable_expert_parallel)
    count = torch.cuda.device_count() if choose_device(config).type == "cuda" else size
    if size > count:
        raise ConfigError(
            f"tensor_parallel_size {size} needs as many GPUs, and there are {count}: "
            f"set it to at most {count}"
        )


def join(config: EngineConfig, rank: int, size: int, rendezvous: int) -> Group:
    """The group of all ranks; waits until all have come. rendezvous: as for ``GlooGroup``."""
    hosts = GlooGroup(rank, size, rendezvous)
    if choose_device(config).type == "cpu":
        return hosts
    from engine.parallel.gpus import GpuGroup

    return GpuGroup(hosts)
