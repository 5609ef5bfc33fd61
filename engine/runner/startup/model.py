"""Chooses the implementation that serves a model, and loads the model with its weights."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.architectures import NATIVE, nearest
from engine.config import EngineConfig
from engine.errors import ConfigError, ModelLoadError
from engine.messages import LoadProgress
from engine.models.base import Model, ModelConfig, ModelFacts
from engine.models.config import read_architecture
from engine.models.llama import ForCausalLM
from engine.models.pooled import PoolingHead, names_of, without_head
from engine.models.registry import create_model, read_config
from engine.quant import transformers_linears
from engine.quant.base import CheckpointQuantization, Quantization, quantize
from engine.quant.config import read_quantization
from engine.quant.head import ROUNDED, quantize_head
from engine.weights.dummy import draw_weights
from engine.weights.load import check_files, load_weights
from engine.weights.names import targets
from engine.weights.shards import Shards, find_shards

OnProgress = Callable[[LoadProgress], None]

_NOWHERE = torch.device("meta")


def read_facts(config: EngineConfig) -> ModelFacts:
    """The facts of our own implementation if there is one, or of the one that ``model_impl`` names.

    ``ModelLoadError`` says why neither can serve the model.
    """
    architecture = read_architecture(config.model_dir)
    pools = config.pooling is not None
    if pools and config.model_impl == "transformers":
        raise ConfigError("model_impl 'transformers' makes no embeddings: leave it at 'auto'")
    is_native = pools or architecture in NATIVE
    if config.model_impl == "native" or (config.model_impl == "auto" and is_native):
        return read_config(config.model_dir)
    if config.enable_lora:
        raise ConfigError(f"enable_lora needs a native model, and {architecture} is served by none")
    from engine.models import transformers_fallback

    try:
        return transformers_fallback.read_config(
            config.model_dir,
            max_model_len=config.max_model_len,
            trust_remote_code=config.trust_remote_code,
        )
    except ModelLoadError as error:
        similar = nearest(architecture)
        raise ModelLoadError(f"{error}; the nearest native architecture is {similar}") from error


def load_model(
    config: EngineConfig,
    facts: ModelFacts,
    *,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
    report: OnProgress,
) -> Model:
    """facts: from ``read_facts``. ``report`` is called with the progress, within [0.05, 0.9]."""
    if isinstance(facts, ModelConfig):
        quantization = read_quantization(config.model_dir, config.quantization)
        pooling = config.pooling
        if pooling is not None:
            facts = without_head(facts)

        def create(of: ModelConfig, where: torch.device) -> Model:
            model = create_model(of, max_model_len=max_model_len, dtype=dtype, device=where)
            if pooling is not None:
                assert isinstance(model, ForCausalLM)
                model.lm_head = PoolingHead(pooling, of.hidden_size, dtype=dtype, device=where)
            if quantization is not None:
                quantize(model, quantization)
            if config.quantize_lm_head:
                quantize_head(model)
            return model

        model, shards = create(facts, device), None
        if facts.group.size > 1 or facts.stage.count > 1:
            whole = create(read_config(config.model_dir), _NOWHERE)
            shards = find_shards(model, whole, facts.group)
        _fill(model, facts, quantization, config, report, shards)
        return model
    from engine.models import transformers_fallback

    assert isinstance(facts, transformers_fallback.FallbackConfig)
    quantization = read_quantization(config.model_dir, config.quantization)
    if quantization is not None and not quantization.is_online:
        # It may be in hf_quant_config.json, but transformers reads config.json alone.
        raise ModelLoadError(
            f"{config.model_dir}: {facts.architecture} has no implementation here, and quantized "
            "weights cannot run in transformers': load the checkpoint that they were made from"
        )

    def adapt(model: object) -> None:
        if quantization is not None:
            assert isinstance(quantization, Quantization), "mixtures are a checkpoint's"
            transformers_linears.quantize_linears(model, quantization, device)
        if config.quantize_lm_head:
            transformers_linears.quantize_head(model, ROUNDED, device)

    if config.load_format != "dummy":
        check_files(config.model_dir)  # transformers would not name the file
    report(LoadProgress("Loading with transformers", 0.05))
    return transformers_fallback.load_model(
        facts,
        config.model_dir,
        dummy=config.load_format == "dummy",
        dtype=dtype,
        device=device,
        trust_remote_code=config.trust_remote_code,
        adapt=adapt,
    )


def whole_model(config: EngineConfig, *, max_model_len: int, dtype: torch.dtype) -> Model:
    """The native model as a rank alone would have it, without memory: for its shapes."""
    facts = read_config(config.model_dir)
    return create_model(facts, max_model_len=max_model_len, dtype=dtype, device=_NOWHERE)


def _fill(
    model: Model,
    facts: ModelConfig,
    quantization: CheckpointQuantization | None,
    config: EngineConfig,
    report: OnProgress,
    shards: Shards | None,
) -> None:
    known = targets(model) if shards is None else shards.whole
    places = model.place_of if config.pooling is None else names_of(model.place_of)

    def place_of(name: str) -> str | None:
        place = places(name)
        if place is None or quantization is None:
            return place
        return None if quantization.skips(place, known.__contains__) else place

    def scaled(progress: LoadProgress) -> None:
        report(LoadProgress(progress.message, 0.05 + 0.85 * progress.fraction))

    with torch.inference_mode():
        if config.load_format == "dummy":
            draw_weights(model, seed=config.seed)
        else:
            load_weights(
                model,
                config.model_dir,
                tied=facts.tie_word_embeddings,
                place_of=place_of,
                on_progress=scaled,
                shards=shards,
            )
        model.pack()
