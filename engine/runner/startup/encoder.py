"""From a config to the runner of an encoder."""

from __future__ import annotations

import importlib

import torch

from engine.architectures import ENCODERS
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.messages import LoadProgress
from engine.models.config import DTYPES
from engine.models.encoder import Encoder
from engine.pooling import PoolingModel
from engine.runner.memory import device_bytes
from engine.runner.pooling import EncoderRunner
from engine.runner.startup.model import OnProgress
from engine.runner.startup.target import choose_device
from engine.weights.load import load_weights
from kernels import cpu


def load_encoder(config: EngineConfig, pooling: PoolingModel, report: OnProgress) -> EncoderRunner:
    """Raises ``ModelLoadError`` or ``ConfigError``."""
    model_class: type[Encoder] = importlib.import_module(
        f"engine.models.{ENCODERS[pooling.architecture]}"
    ).Model
    file = model_class.file_class.read(config.model_dir)
    device = choose_device(config)
    config = config.for_device(device.type, device_bytes(device))
    max_model_len = _max_model_len(config, min(file.max_len, pooling.max_len or file.max_len))
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    dtype = file.checkpoint_dtype if config.dtype == "auto" else DTYPES[config.dtype]
    if device.type == "cpu":
        dtype = torch.float32 if config.dtype == "auto" else dtype
        report(LoadProgress("Preparing the kernels, compiled at the first start", 0.02))
        if cpu.available():
            cpu.register()
    model = model_class(file, pooling, dtype=dtype, device=device)
    with torch.inference_mode():
        load_weights(
            model, config.model_dir, tied=False, place_of=model.place_of, on_progress=report
        )
        model.pack()
    report(LoadProgress("Model loaded", 1.0))
    return EncoderRunner(
        model, config, max_model_len=max_model_len, vocab_size=file.vocab_size, device=device
    )


def _max_model_len(config: EngineConfig, limit: int) -> int:
    """Most tokens of a prompt, which must fit in one step."""
    asked = config.max_model_len
    if asked is not None and asked > limit:
        raise ConfigError(f"max_model_len {asked} exceeds the model's {limit}")
    if asked is not None and asked > config.step_tokens:
        raise ConfigError(
            f"max_model_len {asked} exceeds max_num_batched_tokens {config.step_tokens}: an "
            "encoder computes a prompt in one step"
        )
    return min(asked or limit, config.step_tokens)
