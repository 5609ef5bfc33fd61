"""Whether a model can be divided over several ranks, and how they find each other."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.models.base import ModelConfig
from engine.models.sharding import check_size
from engine.parallel.gloo import GlooGroup, GlooStage, join_on_hosts
from engine.parallel.stage import Stage
from engine.runner.startup.model import read_facts
from engine.runner.startup.target import choose_device


def check_ranks(config: EngineConfig) -> None:
    """Raises ``ConfigError``, which names what several ranks cannot do, and ``ModelLoadError``."""
    facts, size = read_facts(config), config.tensor_parallel_size
    num_stages = config.pipeline_parallel_size
    sizes = f"tensor_parallel_size {size}"
    if num_stages > 1:
        sizes = f"pipeline_parallel_size {num_stages}" if size == 1 else "so many ranks"
    if not isinstance(facts, ModelConfig):
        raise ConfigError(
            f"{sizes} needs a native model; transformers' run on one device: set it to 1"
        )
    if config.enable_expert_parallel and facts.moe is None:
        raise ConfigError(
            f"enable_expert_parallel: {facts.architecture} has no mixture of experts: leave it out"
        )
    check_size(facts, size, whole_experts=config.enable_expert_parallel)
    _check_stages(config, facts)
    is_gpu = choose_device(config).type == "cuda"
    count, num_ranks = torch.cuda.device_count(), config.num_ranks
    if is_gpu and num_ranks > count:
        raise ConfigError(
            f"tensor_parallel_size {size} and pipeline_parallel_size {num_stages} need "
            f"{num_ranks} GPUs, and there are {count}: let their product be at most {count}"
        )


def _check_stages(config: EngineConfig, facts: ModelConfig) -> None:
    num_stages, speculative = config.pipeline_parallel_size, config.speculative_config
    if num_stages > facts.num_layers:
        raise ConfigError(
            f"pipeline_parallel_size {num_stages} is more than the {facts.num_layers} layers of "
            f"{facts.architecture}: take at most {facts.num_layers}"
        )
    if num_stages > 1 and facts.recurrent is not None:
        raise ConfigError(
            f"pipeline_parallel_size: the layers of {facts.architecture} that keep a recurrent "
            "state are not divided: set it to 1"
        )
    if num_stages > 1 and speculative is not None and speculative.method == "eagle3":
        raise ConfigError(
            "speculative_config.method 'eagle3' reads the hidden states of layers of several "
            "stages: set pipeline_parallel_size to 1, or take another method"
        )


def join(config: EngineConfig, rank: int, rendezvous: int) -> Stage:
    """The stage of a rank, which waits until all ranks have come. rendezvous: as for
    ``GlooGroup``."""
    count = config.pipeline_parallel_size
    everyone, hosts = join_on_hosts(rank, config.tensor_parallel_size, count, rendezvous)
    stage = GlooStage(everyone, hosts, count)
    if choose_device(config).type == "cpu":
        return stage
    from engine.parallel.gpus import GpuGroup, GpuStage

    group = GpuGroup(hosts) if isinstance(hosts, GlooGroup) else hosts
    return GpuStage(stage, group) if count > 1 else Stage(0, 1, group, everyone)
