"""What the engines of the settings need, and which node suits one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway import config as configuration
from gateway.config import Config
from gateway.errors import ConfigError
from gateway.fleet.placement.autoscale import Bounds
from gateway.fleet.placement.controller import Model
from gateway.fleet.placement.supervisor import Spec

logger = logging.getLogger(__name__)


def models_of(config: Config, config_file: Path, *, has_gpus: bool) -> Sequence[Model]:
    """The models of the settings. ``has_gpus``: whether any node of the cluster does."""
    fleet = config.fleet
    command = ("-m", "gateway", "engine", "--config", str(config_file))
    return [
        Model(
            name=one.model_name,
            bounds=Bounds(
                min_replicas=one.models.min_replicas,
                max_replicas=one.models.max_replicas or max(1, one.models.min_replicas),
                queue_s=fleet.scale_up_queue_s,
                up_after_s=fleet.scale_up_after_s,
                down_after_s=fleet.scale_down_after_s,
            ),
            command=(*command, "--model", one.model_name) if config.others else command,
            resources=resources_of(one, has_gpus=has_gpus),
        )
        for one in config.each
    ]


async def until_changed(config: Config, config_file: Path, every_s: float = 5.0) -> None:
    """Wait until the file has other settings, which can be used."""
    while True:
        await asyncio.sleep(every_s)
        with contextlib.suppress(ConfigError):
            if configuration.load(config_file) != config:
                logger.info("%s has changed", config_file)
                return


def resources_of(config: Config, *, has_gpus: bool) -> dict[str, float]:
    """What an engine takes of its node, in Ray's names."""
    engine = config.engine
    size = engine.num_ranks
    if engine.device == "cpu" or (engine.device == "auto" and not has_gpus):
        taken = {"CPU": float(size * (engine.num_threads or 1))}
    else:
        taken = {"GPU": float(size), "CPU": float(size)}
    return {**taken, **config.fleet.ray_resources}


def choose_node(
    spec: Spec,
    nodes: Sequence[Mapping[str, Any]],
    placed: Mapping[str, str],
    resources: Mapping[str, Mapping[str, float]],
) -> str | None:
    """The node with the fewest engines of this model, then of all, among those with room; None if
    there is none.

    ``nodes``: as ``ray.nodes`` gives them. ``placed``: the node of each replica; ``resources``:
    what it takes there, as far as that is known.
    """
    candidates = []
    for node in nodes:
        here = [name for name, node_id in placed.items() if node_id == node["NodeID"]]
        taken: dict[str, float] = defaultdict(float)
        for name in here:
            for resource, amount in resources.get(name, spec.resources).items():
                taken[resource] += amount
        has_room = all(
            node["Resources"].get(resource, 0) - taken[resource] >= amount
            for resource, amount in spec.resources.items()
        )
        if node["Alive"] and has_room:
            num_same = sum(model_of(name) == spec.model for name in here)
            candidates.append((num_same, len(here), node["NodeID"]))
    return min(candidates)[2] if candidates else None


def model_of(name: str) -> str:
    """The model of a replica of this name."""
    return name.rpartition("-")[0]
