"""Architectures without a file here: transformers' own modules on our paged cache.

transformers' attention interface lets a caller put its own function in the place of attention. Ours
writes keys and values to the cache and attends through the same backends as the native families.
All sequences of a step are one row of tokens to the model, told apart by their positions and, in
attention, by the step's own tables. Models that keep state elsewhere, or whose attention does
something the interface does not tell, would compute nonsense: they are refused at load.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.attention.base import AttentionBatch
from engine.attention.torch_ref import TorchAttention
from engine.errors import ModelLoadError
from engine.layers.attention import StepContext
from engine.models.base import CacheLayout, Model
from engine.models.config import eos_token_ids

NAME = "sluice"
"""Of our function in transformers' attention interface."""

_PROBED_TOKENS = 3
_SOFTCAPS = ("softcap", "logits_soft_cap", "attn_logit_softcapping")
_NO_INTERFACE = "its attention does not go through transformers' attention interface"
# Arguments of the interface that change no result here.
_HARMLESS = frozenset(
    {
        *("dropout", "position_ids", "cache_position", "position_embeddings", "use_cache"),
        *(
            "output_attentions",
            "output_hidden_states",
            "return_dict",
            "is_causal",
            "is_first_layer",
        ),
        *("output_router_logits", "logits_to_keep", "num_items_in_batch", "query_length"),
    }
)


@dataclass(frozen=True, slots=True)
class FallbackConfig:
    """What the runner must know; learned by asking transformers, see ``ModelFacts``."""

    architecture: str
    vocab_size: int
    num_heads: int
    max_position_embeddings: int
    dtype: torch.dtype
    eos_token_ids: frozenset[int]
    cache_layout: CacheLayout
    widest_window: int | None
    attention_softcap: float | None
    tie_word_embeddings: bool
    source: Any
    """transformers' config."""


class _TrialFailed(ValueError):
    """A model raised an error of its own."""


@dataclass(slots=True)
class _Calls:
    """How the layers called attention in a probe."""

    layouts: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """By layer: query heads, KV heads, head size."""
    windows: set[int] = field(default_factory=set)
    softcap: float | None = None


_current: ContextVar[StepContext | _Calls] = ContextVar("step")


def read_config(
    model_dir: Path, *, max_model_len: int | None, trust_remote_code: bool
) -> FallbackConfig:
    """Ask transformers, and run the model without weights to see how it attends.

    ``ModelLoadError`` says why an architecture cannot run.
    """
    config = _transformers_config(model_dir, trust_remote_code)
    architecture = (config.architectures or [type(config).__name__])[0]
    try:
        calls = _probe_without_weights(config, trust_remote_code)
        layout = _layout(calls, config.num_hidden_layers)
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
        widest_window=max(calls.windows, default=None),
        attention_softcap=calls.softcap,
        tie_word_embeddings=bool(config.tie_word_embeddings),
        source=config,
    )


def max_length(config: Any, asked: int | None) -> int:
    """The model's own limit; ``asked`` where its positions have none."""
    limit: int | None = getattr(config, "max_position_embeddings", None) or asked
    if limit is None:
        raise ModelLoadError("the model's config names no length: set max_model_len")
    return limit


class TransformersModel(Model):
    """A loaded model of transformers behind our port. It takes part in no packing: its weights are
    its own."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._decoder = model.get_decoder()
        self._compute: Callable[..., Any] = self._decoder.forward
        self._given: torch.Tensor | None = None
        self._outputs: Callable[..., Any] | None = None
        self._decoder.forward = self._forward

    def release(self) -> None:
        """Give the model back as it was."""
        self._decoder.forward = self._compute

    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        with _attending(step):
            outputs = self._decoder(
                input_ids=token_ids.unsqueeze(0),
                position_ids=step.positions.unsqueeze(0),
                use_cache=False,
            )
        self._outputs = type(outputs)
        hidden: torch.Tensor = outputs[0]
        return hidden.squeeze(0)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Whatever the model does after its decoder: the head, scales, soft caps."""
        self._given = hidden.unsqueeze(0)
        try:
            outputs = self._model(inputs_embeds=self._given, use_cache=False)
        finally:
            self._given = None
        logits: torch.Tensor = outputs.logits
        return logits.squeeze(0)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._given is not None:
            assert self._outputs is not None, "logits before hidden_states"
            return self._outputs(last_hidden_state=self._given)
        return self._compute(*args, **kwargs)


def load_model(
    config: FallbackConfig,
    model_dir: Path,
    *,
    dummy: bool,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool,
) -> TransformersModel:
    """dummy: random weights. ``ModelLoadError`` names a missing, extra or misshapen tensor."""
    if dummy:
        with torch.device(device):
            model = _from_config(config.source, dtype, trust_remote_code)
    else:
        model = _from_pretrained(config.source, model_dir, dtype, trust_remote_code)
    model = model.to(device).eval()
    try:
        _check_results(model, config.cache_layout, device)
        layout = _layout(_probe(model, device), config.cache_layout.num_layers)
    except ValueError as error:
        raise ModelLoadError(f"{config.architecture} cannot run: {error}") from error
    assert layout == config.cache_layout, "the model attends otherwise than it did without weights"
    return TransformersModel(model)


@torch.inference_mode()
def _check_results(model: Any, layout: CacheLayout, device: torch.device) -> None:
    """Compute a few tokens in two chunks over a cache, and at once with transformers' attention.

    What no argument of the interface tells (convolutions over tokens, positions that are counted
    and not read) shows here.
    """
    length, cut, block_size = 8, 5, 4
    dtype = next(model.parameters()).dtype
    ids = torch.arange(1, length + 1, device=device)
    ours = TransformersModel(model)
    shape = (2, block_size, layout.num_kv_heads, layout.head_dim)
    memory = torch.zeros(layout.num_layers, 2, *shape, dtype=dtype, device=device)
    cache = [(layer[0], layer[1]) for layer in memory]
    table = torch.arange(2, dtype=torch.int32, device=device).unsqueeze(0)
    chunks = []
    for start, end in ((0, cut), (cut, length)):
        batch = AttentionBatch(
            np.array([end - start]), np.array([end]), np.zeros(1, np.int64), table
        )
        attend = TorchAttention(device, dtype).prepare(batch, block_size)
        positions = torch.arange(start, end, device=device)
        step = StepContext(positions, positions, attend, cache)
        chunks.append(ours.hidden_states(ids[start:end], step))
    ours.release()
    model.set_attn_implementation("eager")
    expected = model.get_decoder()(input_ids=ids.unsqueeze(0), use_cache=False)[0][0].float()
    model.set_attn_implementation(NAME)
    distance = (torch.cat(chunks).float() - expected).norm() / expected.norm()
    limit = 1e-3 if dtype == torch.float32 else 0.05
    if not distance < limit:
        raise ValueError(
            f"its results differ from transformers' own by {float(distance):.2g}: it keeps state "
            "that is no KV cache, or attends in a way that the attention interface does not tell"
        )


def _from_pretrained(
    source: Any, model_dir: Path, dtype: torch.dtype, trust_remote_code: bool
) -> Any:
    from safetensors import SafetensorError

    _register()
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
        raise ModelLoadError(f"{model_dir} cannot be loaded: {_one_line(error)}") from error
    for what in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if names := sorted(map(str, report[what])):
            raise ModelLoadError(
                f"{model_dir}: {what.removesuffix('_keys')} tensor {names[0]!r}"
                + (f" and {len(names) - 1} more" if len(names) > 1 else "")
                + ": config.json and the weights do not belong together"
            )
    return model


def _transformers_config(model_dir: Path, trust_remote_code: bool) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(
            model_dir, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        if "trust_remote_code" in str(error):
            raise ModelLoadError(
                f"{model_dir} brings Python code of its own: set trust_remote_code to run it"
            ) from error
        raise ModelLoadError(f"{model_dir}/config.json: {_one_line(error)}") from error


def _from_config(config: Any, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """Raises ``ValueError`` with the reason why this kind of model cannot run."""
    _refuse(config)
    _register()
    try:
        model = _auto_model().from_config(
            config, dtype=dtype, attn_implementation=NAME, trust_remote_code=trust_remote_code
        )
    except KeyError as error:  # some look for NAME among implementations of their own
        raise ValueError(_NO_INTERFACE) from error
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


def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)


@contextmanager
def _attending(context: StepContext | _Calls) -> Iterator[None]:
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function. query: [1, num_heads, num_tokens, head_dim]; key, value:
    [1, num_kv_heads, num_tokens, head_dim]; returns [1, num_tokens, num_heads, head_dim]."""
    softcap = next((others[name] for name in _SOFTCAPS if others.get(name) is not None), None)
    context = _current.get()
    if isinstance(context, _Calls):
        _refuse_call(module, key, value, attention_mask, others)
        context.layouts[module.layer_idx] = query.shape[1], key.shape[1], key.shape[3]
        context.softcap = softcap
        if sliding_window is not None:
            context.windows.add(sliding_window)
        return torch.zeros_like(query).transpose(1, 2), None
    k_cache, v_cache = context.kv_cache[module.layer_idx]
    for new, cache in ((key, k_cache), (value, v_cache)):
        cache.view(-1, *cache.shape[2:]).index_copy_(0, context.slots, new[0].transpose(0, 1))
    q = query[0].transpose(0, 1).contiguous()
    scale = query.shape[3] ** -0.5 if scaling is None else float(scaling)
    attended = context.attend(q, k_cache, v_cache, scale, window=sliding_window, softcap=softcap)
    return attended.unsqueeze(0), None


def _refuse_call(
    module: Any,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    others: dict[str, Any],
) -> None:
    if attention_mask is not None:
        raise ValueError("its attention needs a mask of its own making")
    if others.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise ValueError("its attention is not causal")
    if getattr(module, "layer_idx", None) is None:
        raise ValueError("its attention modules have no layer_idx")
    if key.shape != value.shape:
        raise ValueError(f"keys {list(key.shape)} and values {list(value.shape)} differ in shape")
    for name, given in others.items():
        if given is not None and given is not False and name not in (*_HARMLESS, *_SOFTCAPS):
            raise ValueError(f"its attention needs {name!r}")


def _probe_without_weights(config: Any, trust_remote_code: bool) -> _Calls:
    """On the device that computes nothing; where a model looks at what it computes, on a CPU, with
    weights that were never written and so take no memory."""
    from transformers.initialization import no_init_weights

    _refuse(config)
    dtype = torch.bfloat16  # some products exist for no other
    with torch.device("meta"):
        model = _from_config(config, dtype, trust_remote_code)
    try:
        return _probe(model, torch.device("meta"))
    except _TrialFailed:
        with no_init_weights():
            model = _from_config(config, dtype, trust_remote_code)
        return _probe(model, torch.device("cpu"))


@torch.inference_mode()
def _probe(model: Any, device: torch.device) -> _Calls:
    calls = _Calls()
    ids = torch.zeros(1, _PROBED_TOKENS, dtype=torch.int64, device=device)
    positions = torch.arange(_PROBED_TOKENS, device=device).unsqueeze(0)
    try:
        with _attending(calls):
            model.get_decoder()(input_ids=ids, position_ids=positions, use_cache=False)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
        raise _TrialFailed(f"a trial run fails: {_one_line(error)}") from error
    return calls


def _one_line(error: Exception) -> str:
    return textwrap.shorten(str(error), 400)


def _layout(calls: _Calls, num_layers: int) -> CacheLayout:
    if sorted(calls.layouts) != list(range(num_layers)):
        raise ValueError(
            f"{len(calls.layouts)} of its {num_layers} layers attend through the attention "
            "interface; the others keep state that is no KV cache"
        )
    kinds = set(calls.layouts.values())
    if len(kinds) > 1:
        raise ValueError(f"its layers differ in heads or head size: {sorted(kinds)}")
    ((num_heads, num_kv_heads, head_dim),) = kinds
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads share {num_kv_heads} key heads unevenly")
    return CacheLayout(num_layers, num_kv_heads, head_dim)
