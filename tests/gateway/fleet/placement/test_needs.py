from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.config import load, parse
from gateway.errors import ConfigError
from gateway.fleet.placement.needs import choose_node, models_of, resources_of, until_changed
from gateway.fleet.placement.supervisor import Spec


def node(name: str, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "Alive": not name.startswith("dead"), "Resources": resources}


def test_replicas_are_spread_over_nodes_with_room() -> None:
    nodes = [node("head", CPU=8.0), node("dead", GPU=8.0), node("a", GPU=4.0), node("b", GPU=8.0)]
    placed: dict[str, str] = {}
    for number in range(7):
        spec = Spec(f"m-{number}", "m", (), {"GPU": 2.0})
        chosen = choose_node(spec, nodes, placed, {})
        if chosen is None:
            break
        placed[spec.name] = chosen
    assert list(placed.values()) == ["a", "b", "a", "b", "b", "b"]
    # Of another model, to where fewer of all are.
    small = Spec("n-0", "n", (), {"CPU": 1.0})
    assert choose_node(small, nodes, placed, {}) == "head"


def test_what_an_engine_takes_of_its_node() -> None:
    def taken(has_gpus: bool, ray_resources: Any = None, **engine: Any) -> dict[str, float]:
        fleet = {"ray_resources": ray_resources or {}}
        config = parse({"engine": {"model": "m", **engine}, "fleet": fleet})
        return resources_of(config, has_gpus=has_gpus)

    assert taken(True, tensor_parallel_size=4) == {"GPU": 4.0, "CPU": 4.0}
    staged = taken(True, tensor_parallel_size=2, pipeline_parallel_size=3)
    assert staged == {"GPU": 6.0, "CPU": 6.0}
    assert taken(False, num_threads=3) == {"CPU": 3.0}
    assert taken(True, device="cpu") == {"CPU": 1.0}
    assert taken(True, {"CPU": 0.5, "fast": 1}) == {"GPU": 1.0, "CPU": 0.5, "fast": 1.0}


def test_each_of_several_models_has_engines_of_its_own() -> None:
    models = [
        {"served_model_name": "chat", "min_replicas": 2, "engine": {"model": "a"}},
        {"served_model_name": "rare", "min_replicas": 0, "engine": {"model": "b", "device": "cpu"}},
    ]
    config = parse({"engine": {}, "models": models, "fleet": {"replicas": 0}})
    chat, rare = models_of(config, Path("/etc/sluice.toml"), has_gpus=True)
    assert (chat.bounds.min_replicas, rare.bounds.min_replicas) == (2, 0)
    assert chat.command[-2:] == ("--model", "chat")
    assert (chat.resources, rare.resources) == ({"GPU": 1.0, "CPU": 1.0}, {"CPU": 1.0})
    assert [one.may_sleep for one in config.each] == [False, True]
    assert config.one("rare").engine.model == "b"
    assert not config.one("rare").others
    for name in (None, "a"):
        with pytest.raises(ConfigError, match=r"--model must name one of the models.*: chat, rare"):
            config.one(name)


@pytest.mark.asyncio
async def test_settings_are_read_again_once_they_are_others_that_can_be_used(
    tmp_path: Path,
) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text('[engine]\nmodel = "m"\n')
    waiting = asyncio.create_task(until_changed(load(file, env={}), file, every_s=0.01))
    for same in ('[engine]\nmodel = "m"  # the same\n', '[engine]\nmodel = "m"\nmodel', ""):
        file.write_text(same)
        await asyncio.sleep(0.1)
        assert not waiting.done()
    file.write_text('[engine]\nmodel = "m"\n[models]\nmin_replicas = 3\n')
    async with asyncio.timeout(20):
        await waiting


def test_the_bounds_of_the_settings() -> None:
    def bounds(**models: int) -> tuple[int, int]:
        config = parse({"engine": {"model": "m"}, "models": models})
        (model,) = models_of(config, Path("/etc/sluice.toml"), has_gpus=False)
        return model.bounds.min_replicas, model.bounds.max_replicas

    assert bounds() == (1, 1)
    assert bounds(min_replicas=0) == (0, 1)
    assert bounds(min_replicas=4) == (4, 4)
    assert bounds(min_replicas=2, max_replicas=5) == (2, 5)
    with pytest.raises(ConfigError, match=r"models\.max_replicas must not be below"):
        bounds(min_replicas=2, max_replicas=1)
