"""Loads architectures that are not native: transformers' own modules, on our paged cache.

A model that cannot run in this way is refused before its weights are read, with the reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from engine.architectures import FALLBACK_TESTED
from engine.errors import ModelLoadError
from engine.models.base import CacheLayout
from engine.models.config import eos_token_ids
from engine.models.transformers_model import NAME, TransformersModel, register
from engine.models.transformers_trial import (
    Calls,
    TrialFailed,
    check_results,
    one_line,
    probe,
    waits_for_nothing,
)

_NO_INTERFACE = "its attention does not go through transformers' attention interface"


@dataclass(frozen=True, slots=True)
class FallbackConfig:
    """See ``ModelFacts``; obtained from transformers."""

    architecture: str
    vocab_size: int
    num_heads: int
    max_position_embeddings: int
    dtype: torch.dtype
    eos_token_ids: frozenset[int]
    cache_layout: CacheLayout
    layer_windows: tuple[int | None, ...]
    vision: ClassVar[None] = None
    recurrent: ClassVar[None] = None
    attention_softcap: float | None
    tie_word_embeddings: bool
    source: Any
    """transformers' config."""
    attention_sinks: bool = False

    @property
    def narrowest_window(self) -> int | None:
        windows = (window for window in self.layer_windows if window is not None)
        return min(windows, default=None)


def read_config(
    model_dir: Path, *, max_model_len: int | None, trust_remote_code: bool
) -> FallbackConfig:
    """Read the facts of a model from transformers, and run it without weights to see how it
    attends. Raises ``ModelLoadError`` with the reason if the architecture cannot be served."""
    config = _transformers_config(model_dir, trust_remote_code)
    architecture = (config.architectures or [type(config).__name__])[0]
    try:
        calls = _probe_without_weights(config, trust_remote_code)
        layout = calls.cache_layout(config.num_hidden_layers)
    except ValueError as error:
        raise ModelLoadError(
            f"{architecture} has no implementation here, and transformers' cannot run on the paged "
            f"cache: {error}"
        ) from error
    return FallbackConfig(
        architecture=architecture,
        vocab_size=config.vocab_size,
        num_heads=calls.layouts[0][0],
        max_position_embeddings=max_length(config, max_model_len),
        dtype=config.dtype or torch.float32,
        eos_token_ids=eos_token_ids(model_dir, config.eos_token_id),
        cache_layout=layout,
        layer_windows=tuple(calls.windows[layer] for layer in range(layout.num_layers)),
        attention_softcap=calls.softcap,
        tie_word_embeddings=bool(config.tie_word_embeddings),
        source=config,
    )


def max_length(config: Any, asked: int | None) -> int:
    """The model's own limit on its length; ``asked`` if its positions have none."""
    limit: int | None = getattr(config, "max_position_embeddings", None) or asked
    if limit is None:
        raise ModelLoadError("the model's config names no length: set max_model_len")
    return limit


def load_model(
    config: FallbackConfig,
    model_dir: Path,
    *,
    dummy: bool,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool,
    adapt: Callable[[Any], None] = lambda model: None,
) -> TransformersModel:
    """Load the model. dummy: with random weights. adapt: a function that changes transformers'
    model before it is moved to the device.

    Raises ``ModelLoadError`` naming a tensor that is missing, unexpected or of the wrong shape.
    """
    if dummy:
        with torch.device(device):
            model = _from_config(config.source, dtype, trust_remote_code)
    else:
        model = _from_pretrained(config.source, model_dir, dtype, trust_remote_code)
    adapt(model)
    model = model.to(device).eval()
    try:
        check_results(model, config.cache_layout, device)
        layout = probe(model, device).cache_layout(config.cache_layout.num_layers)
    except ValueError as error:
        raise ModelLoadError(f"{config.architecture} cannot run: {error}") from error
    assert layout == config.cache_layout, "the model attends otherwise than it did without weights"
    ours = TransformersModel(model)
    if config.architecture not in FALLBACK_TESTED or device.type != "cuda":
        ours.is_capturable = False
    else:
        ours.is_capturable = waits_for_nothing(ours, layout, device)
    return ours


def _from_pretrained(
    source: Any, model_dir: Path, dtype: torch.dtype, trust_remote_code: bool
) -> Any:
    from safetensors import SafetensorError
    from transformers.utils import logging

    register()
    has_bar = logging.is_progress_bar_enabled()
    # transformers' progress bar would mix with ours.
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model, report = _auto_model().from_pretrained(
            model_dir,
            config=source,
            dtype=dtype,
            attn_implementation=NAME,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # to name them below
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelLoadError(f"{model_dir} cannot be loaded: {one_line(error)}") from error
    finally:
        if has_bar:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    for what in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if names := sorted(map(str, report[what])):
            raise ModelLoadError(
                f"{model_dir}: {what.removesuffix('_keys')} tensor {names[0]!r}"
                + (f" and {len(names) - 1} more" if len(names) > 1 else "")
                + ": config.json and the weights do not belong together"
            )
    return model


def _transformers_config(model_dir: Path, trust_remote_code: bool) -> Any:
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    try:
        return transformers.AutoConfig.from_pretrained(
            model_dir, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        if "trust_remote_code" in str(error):
            raise ModelLoadError(
                f"{model_dir} brings Python code of its own: set trust_remote_code to run it"
            ) from error
        if isinstance(unknown := error.__context__, KeyError):
            raise ModelLoadError(
                f"{model_dir}/config.json: model_type {unknown} is known neither here nor to"
                f" transformers {transformers.__version__}; a newer one may know it"
            ) from error
        raise ModelLoadError(f"{model_dir}/config.json: {one_line(error)}") from error


def _probe_without_weights(config: Any, trust_remote_code: bool) -> Calls:
    """Run the model on torch's meta device, to record its calls. A model that inspects its own
    results runs on the CPU, with weights of zeros that take no memory."""
    from transformers.initialization import no_init_weights

    _refuse(config)
    dtype = torch.bfloat16  # some products exist for no other
    with torch.device("meta"):
        model = _from_config(config, dtype, trust_remote_code)
    try:
        return probe(model, torch.device("meta"))
    except TrialFailed:
        with no_init_weights():
            model = _from_config(config, dtype, trust_remote_code)
        for parameter in model.parameters():
            parameter.data = _unwritten_zeros(parameter)
        return probe(model, torch.device("cpu"))


def _unwritten_zeros(like: torch.Tensor) -> torch.Tensor:
    """Zeros on the CPU, from NumPy, whose pages the system provides when they are written. (Torch
    would write them, and without zeros a model might find NaN in its results.)"""
    num_bytes = like.numel() * like.element_size()
    return torch.from_numpy(np.zeros(num_bytes, np.uint8)).view(like.dtype).view(like.shape)


def _from_config(config: Any, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """Raise ``ValueError`` with the reason if this kind of model cannot run."""
    _refuse(config)
    register()
    try:
        model = _auto_model().from_config(
            config, dtype=dtype, attn_implementation=NAME, trust_remote_code=trust_remote_code
        )
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        if error.args == (NAME,):  # looked up among implementations of the model's own
            raise ValueError(_NO_INTERFACE) from error
        raise ValueError(f"it cannot be built: {one_line(error)}") from error
    if not getattr(model, "_supports_attention_backend", False):
        raise ValueError(_NO_INTERFACE)
    if "position_ids" not in inspect.signature(model.get_decoder().forward).parameters:
        raise ValueError("its decoder takes no position_ids")
    return model.eval()


def _refuse(config: Any) -> None:
    if config.is_encoder_decoder:
        raise ValueError("it is an encoder-decoder")
    for kind in getattr(config, "layer_types", None) or ():
        if kind not in ("full_attention", "sliding_attention"):
            raise ValueError(f"layers of type {kind!r} keep state that is no KV cache")
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *(nested for nested in rope.values() if isinstance(nested, dict))):
        if parameters.get("rope_type") == "longrope":
            raise ValueError("with longrope a token's result depends on its batch in transformers")
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError("quantization_config: quantized weights")


def _auto_model() -> Any:  # its annotations are too narrow for what it returns
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM
