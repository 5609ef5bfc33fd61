"""``sluice.toml``: the settings of the gateway and of the engine it starts.

``load`` reads the file, lays ``SLUICE_<SECTION>_<KEY>`` from the environment over it and refuses
whatever it does not know, by its path. ``settings`` lists every key with its type, default and
meaning; the README's table is checked against it.
"""

from gateway.config.described import Setting, settings
from gateway.config.loading import ENV_PREFIX, has_several, load, parse
from gateway.config.sections import (
    Config,
    FleetConfig,
    ImagesConfig,
    McpConfig,
    ModelsConfig,
    PublicPrefix,
    ServedEngineConfig,
    ServerConfig,
    TenantsConfig,
    TracingConfig,
    local_url,
)

__all__ = [
    "ENV_PREFIX",
    "Config",
    "FleetConfig",
    "ImagesConfig",
    "McpConfig",
    "ModelsConfig",
    "PublicPrefix",
    "ServedEngineConfig",
    "ServerConfig",
    "Setting",
    "TenantsConfig",
    "TracingConfig",
    "has_several",
    "load",
    "local_url",
    "parse",
    "settings",
]
