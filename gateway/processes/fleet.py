"""Makes the engines' clients from the settings, and divides the machine among the engines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from engine.client.attached import AttachedEngine
from engine.client.client import EngineClient
from engine.client.fleet import Fleet
from engine.client.router import ROUTERS
from engine.client.transport import EngineProcess, MakeTransport
from engine.config import MAX_DEFAULT_NUM_SEQS, EngineConfig
from engine.messages import LoadProgress
from gateway.config import Config
from gateway.errors import ConfigError

GPUS = Path("/proc/driver/nvidia/gpus")
VISIBLE = "CUDA_VISIBLE_DEVICES"

OnProgress = Callable[[LoadProgress], None]


def spawned_fleet(
    config: Config,
    *,
    on_progress: OnProgress | None = None,
    transport: Callable[..., Any] = EngineProcess,
    addresses: Sequence[str] = (),
) -> Fleet:
    """Engines that start with the fleet, and end with it.

    ``transport``: makes each one's process, as ``EngineProcess`` does. ``addresses``: where other
    processes attach to them (``attached_fleet``). Raises ``ConfigError`` if the machine has too few
    GPUs.
    """
    engine = _share_of_the_cores(config)
    transports: list[MakeTransport] = []
    for number, environment in enumerate(_environments(config)):
        options: dict[str, Any] = {"environment": environment} if environment else {}
        if addresses:
            options["shared_address"] = addresses[number]
        transports.append(partial(transport, **options) if options else transport)
    return _fleet(config, engine, transports, on_progress=on_progress, spawns=True)


def attached_fleet(config: Config, addresses: Sequence[str]) -> Fleet:
    """Engines that another process of this host runs."""
    transports = [partial(AttachedEngine, address=address) for address in addresses]
    return _fleet(config, config.engine, transports, spawns=False)


def _fleet(
    config: Config,
    engine: EngineConfig,
    transports: Sequence[MakeTransport],
    *,
    on_progress: OnProgress | None = None,
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
        [make(str(number), transport) for number, transport in enumerate(transports)],
        router=ROUTERS[config.fleet.router](),
        failover_wait_s=config.fleet.failover_wait_s,
        spawns=spawns,
        make=make,
    )


def _share_of_the_cores(config: Config) -> EngineConfig:
    """On a CPU, engines whose threads are more than the cores would wait for each other."""
    engine, replicas = config.engine, config.fleet.replicas
    if replicas < 2 or engine.num_threads is not None or _gpus(config):
        return engine
    num_processes = replicas * engine.tensor_parallel_size
    num_threads = max(1, len(os.sched_getaffinity(0)) // num_processes)
    return msgspec.structs.replace(engine, num_threads=num_threads)


def _environments(config: Config) -> list[Mapping[str, str]]:
    """The variables of each engine's process: on a machine with GPUs, which of them it sees."""
    replicas, gpus, size = config.fleet.replicas, _gpus(config), config.engine.tensor_parallel_size
    if replicas < 2 or not gpus:
        return [{} for _ in range(replicas)]
    if len(gpus) < replicas * size:
        raise ConfigError(
            f"fleet.replicas is {replicas} and each takes {size} of this machine's {len(gpus)} "
            "GPUs; set it to what they suffice for, or engine.device to cpu"
        )
    return [{VISIBLE: ",".join(gpus[n * size : (n + 1) * size])} for n in range(replicas)]


def _gpus(config: Config) -> list[str]:
    """The GPUs that an engine would see, as ``CUDA_VISIBLE_DEVICES`` names them. Found without
    torch, which the gateway does not load."""
    if config.engine.device == "cpu":
        return []
    if (visible := os.environ.get(VISIBLE)) is not None:
        return [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
    return [str(number) for number, _ in enumerate(GPUS.glob("*"))]
