"""Makes the engines' clients from the settings, and divides the machine among the engines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from engine.client.attached import AttachedEngine
from engine.client.client import EngineClient
from engine.client.fleet import Fleet
from engine.client.fleets import Fleets
from engine.client.router import ROUTERS
from engine.client.transport import EngineProcess, MakeTransport
from engine.config import MAX_DEFAULT_NUM_SEQS, EngineConfig
from engine.messages import LoadProgress
from gateway.config import Config
from gateway.errors import ConfigError

GPUS = Path("/proc/driver/nvidia/gpus")
VISIBLE = "CUDA_VISIBLE_DEVICES"

OnProgress = Callable[[LoadProgress], None]


def spawned_fleets(
    config: Config,
    *,
    on_progress: OnProgress | None = None,
    transport: Callable[..., Any] = EngineProcess,
    addresses: Sequence[str] = (),
) -> Fleets:
    """Engines of all models that start with their fleets, and end with them.

    ``transport``: makes each one's process, as ``EngineProcess`` does. ``addresses``: where other
    processes attach to them (``attached_fleets``). Raises ``ConfigError`` if the machine has too
    few GPUs.
    """
    transports: list[MakeTransport] = []
    for number, environment in enumerate(_environments(config)):
        options: dict[str, Any] = {"environment": environment} if environment else {}
        if addresses:
            options["shared_address"] = addresses[number]
        transports.append(partial(transport, **options) if options else transport)
    engines = _shares_of_the_cores(config)
    return _fleets(config, engines, transports, on_progress=on_progress, spawns=True)


def attached_fleets(
    config: Config,
    addresses: Sequence[str],
    on_retire: Callable[[str], None] = lambda name: None,
) -> Fleets:
    """Engines that another process of this host runs. ``on_retire``: tells it to start the engine
    of this name anew."""
    transports = [
        partial(AttachedEngine, address=address, on_retire=partial(on_retire, str(number)))
        for number, address in enumerate(addresses)
    ]
    engines = [one.engine for one in config.each]
    return _fleets(config, engines, transports, spawns=False)


def num_engines(config: Config) -> int:
    """That the gateway runs on this host, of all models."""
    return sum(one.fleet.replicas for one in config.each)


def _fleets(
    config: Config,
    engines: Sequence[EngineConfig],
    transports: Sequence[MakeTransport],
    *,
    on_progress: OnProgress | None = None,
    spawns: bool,
) -> Fleets:
    """``engines``: the settings for each model; ``transports``: to the engines of all, in order.
    The progress of the first engine is reported."""
    named = iter([(str(number), transport) for number, transport in enumerate(transports)])
    return Fleets(
        {
            one.model_name: _fleet(
                one,
                engine,
                list(islice(named, one.fleet.replicas if transports else 0)),
                on_progress=on_progress,
                spawns=spawns,
            )
            for one, engine in zip(config.each, engines, strict=True)
        }
    )


def _fleet(
    config: Config,
    engine: EngineConfig,
    named: Sequence[tuple[str, MakeTransport]],
    *,
    on_progress: OnProgress | None,
    spawns: bool,
) -> Fleet:
    server = config.server
    limit = engine.max_num_queued_reqs
    # The engine counts requests that wait for admission. The client cannot tell those from
    # admitted ones without an output, so its limit is higher by the size of a batch.
    spare = engine.max_num_seqs or MAX_DEFAULT_NUM_SEQS

    def make(name: str, transport: MakeTransport) -> EngineClient:
        return EngineClient(
            engine,
            on_progress=on_progress if name == "0" else None,
            max_num_queued_reqs=None if limit is None else limit + spare,
            hang_timeout_s=server.engine_hang_timeout_s,
            max_unread_tokens=server.max_unread_tokens,
            stall_timeout_s=server.stall_timeout_s,
            transport=transport,
            name=name,
        )

    return Fleet(
        [make(name, transport) for name, transport in named],
        router=ROUTERS[config.fleet.router](),
        failover_wait_s=config.fleet.failover_wait_s,
        spawns=spawns,
        may_sleep=config.may_sleep,
        make=make,
    )


def _shares_of_the_cores(config: Config) -> list[EngineConfig]:
    """The settings of each model's engines. On a CPU, engines whose threads are more than the cores
    would wait for each other. Those that say how many they have are left out."""
    on_cpu = [one for one in config.each if not _gpus(one) and one.engine.num_threads is None]
    num_processes = sum(one.fleet.replicas * one.engine.num_ranks for one in on_cpu)
    num_threads = max(1, len(os.sched_getaffinity(0)) // max(1, num_processes))
    is_alone = sum(one.fleet.replicas for one in on_cpu) < 2
    return [
        one.engine
        if is_alone or one not in on_cpu
        else msgspec.structs.replace(one.engine, num_threads=num_threads)
        for one in config.each
    ]


def _environments(config: Config) -> list[Mapping[str, str]]:
    """The variables of each engine's process: on a machine with GPUs, which of them it sees."""
    on_gpus = [one for one in config.each if _gpus(one)]
    if sum(one.fleet.replicas for one in on_gpus) < 2:
        return [{} for _ in range(num_engines(config))]
    gpus = _gpus(on_gpus[0])
    num_needed = sum(one.fleet.replicas * one.engine.num_ranks for one in on_gpus)
    if len(gpus) < num_needed:
        takers = " and ".join(
            f"fleet.replicas is {one.fleet.replicas} and each takes {one.engine.num_ranks}"
            for one in on_gpus
        )
        raise ConfigError(
            f"{takers} of this machine's {len(gpus)} GPUs; set it to what they suffice for, or "
            "engine.device to cpu"
        )
    free = iter(gpus)
    return [
        {VISIBLE: ",".join(islice(free, one.engine.num_ranks))} if one in on_gpus else {}
        for one in config.each
        for _ in range(one.fleet.replicas)
    ]


def _gpus(config: Config) -> list[str]:
    """The GPUs that an engine would see, as ``CUDA_VISIBLE_DEVICES`` names them. Found without
    torch, which the gateway does not load."""
    if config.engine.device == "cpu":
        return []
    if (visible := os.environ.get(VISIBLE)) is not None:
        return [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
    return [str(number) for number, _ in enumerate(GPUS.glob("*"))]
