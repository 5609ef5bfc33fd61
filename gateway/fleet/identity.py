"""What an engine is, for gateways of other hosts: the keys of its connections, and hashes of what
its outputs depend on."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import NamedTuple

import msgspec
import zmq
from zmq.utils import z85

from engine.config import EngineConfig
from engine.launch import Curve

SAMPLE_BYTES = 64 * 1024
NUM_SAMPLES = 16
"""So many pieces of each file of weights are hashed: all of 100 GB would take minutes."""
_TEXT_FILES = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "added_tokens.json"),
)
_SETTINGS = (
    *("model_impl", "dtype", "quantization", "quantize_lm_head", "load_format", "kv_cache_dtype"),
    *("calculate_kv_scales", "max_model_len", "max_logprobs", "enable_lora", "max_lora_rank"),
    "seed",
)
"""On which the outputs depend, or the requests that are taken."""


class Identity(NamedTuple):
    """Hashes that must be equal."""

    config_hash: str
    """Of all engines of a model: weights, configuration, and settings that outputs depend on."""
    text_hash: str
    """Of a gateway and its engines: the tokenizer."""


def identify(config: EngineConfig) -> Identity:
    """The identity of an engine with this configuration. Reads a few megabytes of the weights, from
    places all over them. Raises ``ModelLoadError`` if there is no such model."""
    folder = config.model_dir
    text = hashlib.sha256()
    for name in _TEXT_FILES:
        if (folder / name).exists():
            _add(text, name, (folder / name).read_bytes())
    whole = hashlib.sha256(text.digest())
    # A setting that only the next version knows changes nothing while it has its default.
    usual = EngineConfig(model=config.model)
    settings = {
        name: value
        for name in _SETTINGS
        if (value := getattr(config, name)) != getattr(usual, name)
    }
    _add(whole, "settings", msgspec.json.encode(settings, order="sorted"))
    for file in sorted(folder.glob("*")):
        if file.name in ("config.json", "quantize_config.json", "hf_quant_config.json"):
            _add(whole, file.name, file.read_bytes())
        elif file.suffix in (".safetensors", ".bin"):
            _add(whole, file.name, _sampled(file))
    return Identity(whole.hexdigest(), text.hexdigest())


def _add(into: hashlib._Hash, name: str, data: bytes) -> None:
    into.update(f"{name} {len(data)}\n".encode())
    into.update(data)


def _sampled(path: Path) -> bytes:
    """The size of a file, and pieces of it."""
    size = path.stat().st_size
    pieces = [str(size).encode()]
    with path.open("rb") as file:
        for number in range(NUM_SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * number // (NUM_SAMPLES - 1))
            pieces.append(file.read(SAMPLE_BYTES))
    return b"".join(pieces)


class FleetKeys(NamedTuple):
    """The keys of both sides, which a site's secrets decide: who lacks them gets no byte."""

    engine: Curve
    gateway: Curve


def derive_keys(root: bytes) -> FleetKeys:
    """The keys of a site. ``root``: the secret that all its hosts share."""
    engine, gateway = (
        z85.encode(hmac.digest(root, purpose, hashlib.sha256))
        for purpose in (b"sluice engines, version 1", b"sluice gateways of engines, version 1")
    )
    names = [zmq.curve_public(secret).decode() for secret in (engine, gateway)]
    return FleetKeys(
        engine=Curve(public=names[0], secret=engine.decode(), peer=names[1]),
        gateway=Curve(public=names[1], secret=gateway.decode(), peer=names[0]),
    )
