"""The engine's settings, with vLLM's names wherever vLLM has one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec

from engine import hub, pooling
from engine.architectures import QuantizationMethod
from engine.errors import ConfigError
from engine.pooling import PoolingModel, RunnerName
from engine.spec.config import SpeculativeConfig

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
ModelImpl = Literal["auto", "native", "transformers"]
LoadFormat = Literal["auto", "dummy"]
KVCacheDtype = Literal["auto", "fp8", "fp8_e4m3"]
AttentionBackendName = Literal["auto", "cuda", "flash_attn", "triton", "cpu", "torch"]
Policy = Literal["fcfs", "priority", "fair_share"]

_STEP_TOKENS = 2048
_GPU_STEP_TOKENS = 8448
"""A multiple of 64 for each of the 132 SMs of an H100 or H200: products with tiles of 128 x 256 or
192 x 192 then leave no SM idle at the end, in tokens and energy a hundredth."""
_NUM_SEQS = 256
MAX_DEFAULT_NUM_SEQS = 512
"""The default of ``max_num_seqs`` on a GPU with much memory."""
_MUCH_MEMORY_BYTES = 64 * 2**30

_AT_LEAST_ONE = (
    *("block_size", "max_loras", "max_lora_rank"),
    *("tensor_parallel_size", "pipeline_parallel_size"),
    *("max_model_len", "max_num_batched_tokens", "max_num_seqs", "max_num_partial_prefills"),
    *("max_num_image_tokens", "image_cache_bytes"),
    *("num_gpu_blocks_override", "num_state_snapshots", "num_threads"),
    *("max_num_queued_reqs", "max_num_queued_tokens"),
    *("max_num_queued_reqs_per_tenant", "max_num_queued_tokens_per_tenant"),
)
_AT_LEAST_ZERO = (
    *("fair_share_input_cost", "fair_share_output_cost", "fair_share_cached_cost"),
    *("fair_share_quantum", "swap_space", "long_prefill_token_threshold"),
)


_GENERATING = (
    *("tensor_parallel_size", "pipeline_parallel_size", "enable_expert_parallel"),
    "quantize_lm_head",
    *("speculative_config", "enable_lora"),
)
_DECODING = ("quantization", "kv_cache_dtype", "load_format")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the engine process needs to know. Checked on construction (``ConfigError``)."""

    model: str
    """A folder in Hugging Face layout, or the id of a repository on the hub (``owner/name``)."""
    revision: str | None = None
    """Branch, tag or commit of a hub repository; its main branch by default."""
    runner: RunnerName = "auto"
    """What the model is for: to ``generate`` text, or ``pooling``, which makes a vector or a score
    of a prompt; ``auto`` decides by the checkpoint. With ``pooling``, a decoder without files of
    sentence-transformers makes embeddings of its last token."""
    model_impl: ModelImpl = "auto"
    """Whose implementation computes the model: ``native`` is ours, ``transformers`` that library's;
    ``auto`` takes ours where there is one."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Such code can do anything."""
    device: Device = "auto"
    """Where the model runs; ``auto`` takes a GPU when there is one."""
    dtype: Dtype = "auto"
    """Of weights and activations; ``auto``: float32 on a CPU, the checkpoint's own on a GPU."""
    quantization: QuantizationMethod | None = None
    """How the weights of linear layers are quantized. None: as the checkpoint's quantization_config
    says; ``fp8`` quantizes an unquantized checkpoint while it loads."""
    quantize_lm_head: bool = False
    """Round the language model head to FP8 while it loads, with a scale for each row, where the
    checkpoint has not quantized it. A head tied to the embedding becomes a copy, which takes memory
    of its own; the embedding stays as it is. Heads of draft networks are left alone."""
    load_format: LoadFormat = "auto"
    """``auto`` reads safetensors files; ``dummy`` draws random weights, to measure speed without a
    checkpoint (a config.json is enough)."""
    attention_backend: AttentionBackendName = "auto"
    """``auto`` takes the fastest that supports the model on this device; one that does not is
    refused by name."""
    tensor_parallel_size: int = 1
    """Divide each layer over this many devices, each with a process of its own, the engine's ranks.
    Sizes of memory count for each device."""
    pipeline_parallel_size: int = 1
    """Divide the layers over this many stages, which compute different requests at the same time;
    each is divided over ``tensor_parallel_size`` devices."""
    enable_expert_parallel: bool = False
    """Give each rank some of the experts as a whole, in place of a part of each. For
    ``tensor_parallel_size`` above 1."""
    enforce_eager: bool = False
    """Launch the kernels of decode steps one by one, without CUDA graphs."""
    skip_tokenizer_init: bool = False
    """Offline only: take and return token ids, without a tokenizer."""
    max_model_len: int | None = None
    """Most tokens of prompt and output together; None takes the model's own limit."""
    block_size: int = 16
    """Tokens in a block of the KV cache."""
    num_gpu_blocks_override: int | None = None
    """Blocks in the KV cache; None sizes it from the memory available."""
    gpu_memory_utilization: float = 0.92
    """Share of the GPU's memory to use for weights, activations and KV cache together."""
    kv_cache_dtype: KVCacheDtype = "auto"
    """How keys and values are stored: ``auto`` in the model's dtype, ``fp8`` (the same as
    ``fp8_e4m3``) in one byte each, so that twice as many fit as with 16 bits. Computations keep
    full precision."""
    calculate_kv_scales: bool = True
    """Measure the scales of an FP8 KV cache at start-up, where the checkpoint has none; else they
    are 1."""
    kv_cache_memory_bytes: int | None = None
    """Bytes for the KV cache; on a CPU None means 512 MiB."""
    disable_hybrid_kv_cache_manager: bool | None = None
    """Keep every token in the KV cache of every layer, also of layers with a sliding window. None:
    only when a draft network runs beside a model in which every layer has a window."""
    swap_space: float | None = None
    """GiB of host memory for the KV of preempted requests, which is copied back where that is
    quicker than computing it again; 0 turns it off. None: on a GPU as much as its KV cache, but at
    most 4 (pinned); on a CPU 0, as its cache is in host memory anyway."""
    num_state_snapshots: int | None = None
    """For models with layers that keep a recurrent state: how many snapshots of the states of
    prefixes are kept. A request can skip a cached prefix only where one was taken. None: two for
    each of ``max_num_seqs``, but at most 4 GiB, on a CPU 256 MiB."""
    enable_prefix_caching: bool = True
    """Reuse the KV of earlier requests of the same tenant that begin with the same tokens."""
    prefix_cache_tenant_floor: float = 0.0
    """Share of the blocks that a tenant's cached prefixes keep while other tenants have more."""
    prefix_cache_tenant_ceiling: float = 1.0
    """Share of the blocks that a tenant's cached prefixes may take while no request uses them."""
    max_num_batched_tokens: int | None = None
    """Most tokens computed in one step; None: 8448 on a GPU, 2048 on a CPU."""
    target_gap_ms: float | None = None
    """How long a step may take for the sake of prompts while other requests generate: about the
    longest gap between a stream's tokens. Steps are that long only where prompts wait too long
    otherwise (``target_ttft_ms``). None: only ``max_num_batched_tokens`` limits steps, which suits
    offline use."""
    target_ttft_ms: float = 500.0
    """The time to the first token that steps are made longer for, up to ``target_gap_ms``."""
    max_num_image_tokens: int | None = None
    """For models that see: most image tokens that are encoded in a step, and no more than the step
    may compute tokens. A larger picture is all that its step encodes. None: 4096 on a GPU, 256 on a
    CPU."""
    image_cache_bytes: int | None = None
    """For models that see: bytes for what the encoder makes of pictures, kept as long as there is
    room, for prompts that have them again. A picture that is larger is refused. None: 1 GiB on a
    GPU, 256 MiB on a CPU."""
    max_num_seqs: int | None = None
    """Most requests running at once; None: 512 on a GPU with at least 64 GiB, else 256, or as many
    as have their recurrent states in a quarter of the GPU's memory (on a CPU 256 MiB)."""
    long_prefill_token_threshold: int = 0
    """Split longer prompts into chunks of this many tokens; 0: only the token budget of a step
    splits them."""
    max_num_partial_prefills: int | None = None
    """Most prompts that may be partly computed at the same time; None sets no limit."""
    policy: Policy = "fcfs"
    """Who goes first: by arrival (``fcfs``), by ``priority``, or the tenant that has received the
    least service for its weight (``fair_share``)."""
    priority_aging_s: float = 30.0
    """How long a request waits to gain one level of priority."""
    fair_share_input_cost: float = 1.0
    """What ``fair_share`` charges for a prompt token that is computed."""
    fair_share_output_cost: float = 2.0
    """What ``fair_share`` charges for a generated token."""
    fair_share_cached_cost: float = 0.1
    """What ``fair_share`` charges for a prompt token found in the prefix cache."""
    fair_share_quantum: float = 2048.0
    """How far a tenant's service may be above the least served tenant's for its request with a
    longer cached prefix to go first; 0: the cache never changes the order."""
    max_num_queued_reqs: int | None = None
    """Most requests that may wait for their first admission; further ones are refused
    (``QueueFull``) to tenants that have their part of these, which is the same for all who wait."""
    max_num_queued_tokens: int | None = None
    """Most prompt tokens, in sum, of the requests that wait for their first admission; refused as
    with ``max_num_queued_reqs``."""
    max_num_queued_reqs_per_tenant: int | None = None
    """As ``max_num_queued_reqs``, for each tenant."""
    max_num_queued_tokens_per_tenant: int | None = None
    """As ``max_num_queued_tokens``, for each tenant."""
    scheduler_reserve_full_isl: bool = True
    """Admit a request only when its whole prompt fits into the free blocks, and reserve those."""
    forecast_admission: bool = True
    """Admit a request only if the blocks are expected to suffice until the running requests end."""
    watermark: float = 0.01
    """Share of the blocks that admissions leave free for requests that are already running."""
    async_scheduling: bool | None = None
    """Plan step N+1 while step N runs. None: on a GPU only, because it works independently of the
    host."""
    speculative_config: SpeculativeConfig | None = None
    """Speculative decoding: draft tokens and check several in one step. A table such as `{ method =
    "ngram", num_speculative_tokens = 4 }`, with vLLM's keys. Never changes outputs."""
    max_logprobs: int = 20
    """Largest ``logprobs`` or ``prompt_logprobs`` of a request; -1 sets no limit."""
    enable_lora: bool = False
    """Serve LoRA adapters together with the model, many in one batch; native models only."""
    max_loras: int = 1
    """Most different adapters in one step; memory for this many is reserved on the device."""
    max_lora_rank: int = 16
    """Largest rank of an adapter; determines the memory reserved for each of ``max_loras``."""
    max_cpu_loras: int | None = None
    """Adapters kept in host memory while no request uses them; the least recently used is dropped
    first, and read again when needed. None keeps all that were loaded."""
    num_threads: int | None = None
    """CPU threads for torch; None leaves the choice to torch."""
    seed: int = 0
    """Determines the sampling of requests without a seed of their own."""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            self._check(name, value is None or value >= 1, "must be at least 1")
        for name in _AT_LEAST_ZERO:
            value = getattr(self, name)
            self._check(name, value is None or 0 <= value < math.inf, "must be at least 0")
        loras_fit = self.max_cpu_loras is None or self.max_cpu_loras >= self.max_loras
        self._check("max_cpu_loras", loras_fit, "must be at least max_loras")
        self._check(
            "gpu_memory_utilization", 0 < self.gpu_memory_utilization <= 1, "must be in (0, 1]"
        )
        for name in ("priority_aging_s", "target_gap_ms", "target_ttft_ms"):
            value = getattr(self, name)
            self._check(name, value is None or value > 0, "must be positive")
        floor, ceiling = self.prefix_cache_tenant_floor, self.prefix_cache_tenant_ceiling
        self._check("prefix_cache_tenant_floor", 0 <= floor <= 1, "must be in [0, 1]")
        self._check(
            "prefix_cache_tenant_ceiling",
            floor <= ceiling <= 1,
            "must be in [prefix_cache_tenant_floor, 1]",
        )
        alone = self.enable_expert_parallel and self.tensor_parallel_size == 1
        self._check("enable_expert_parallel", not alone, "needs tensor_parallel_size above 1")
        self._check("max_logprobs", self.max_logprobs >= -1, "must be at least -1")
        self._check("watermark", 0 <= self.watermark < 1, "must be in [0, 1)")

    def _check(self, name: str, ok: bool, rule: str) -> None:
        if not ok:
            raise ConfigError(f"{name} {rule}, got {getattr(self, name)!r}")

    def for_device(self, device_type: str, memory_bytes: int = 0) -> EngineConfig:
        """The config with the device's defaults filled in.

        device_type: "cuda" or "cpu". memory_bytes: all memory of a GPU.
        """
        is_gpu = device_type == "cuda"
        has_much = is_gpu and memory_bytes >= _MUCH_MEMORY_BYTES
        overlaps = is_gpu if self.async_scheduling is None else self.async_scheduling
        return msgspec.structs.replace(
            self,
            device="cuda" if is_gpu else "cpu",
            max_num_batched_tokens=self.max_num_batched_tokens
            or (_GPU_STEP_TOKENS if is_gpu else _STEP_TOKENS),
            max_num_seqs=self.max_num_seqs or (MAX_DEFAULT_NUM_SEQS if has_much else _NUM_SEQS),
            async_scheduling=overlaps,
        )

    @property
    def pooling(self) -> PoolingModel | None:
        """What the model makes of a prompt in place of text; None if it generates. Raises
        ``ModelLoadError``."""
        return pooling.read(self.model_dir, self.runner)

    def for_pooling(self, model: PoolingModel) -> EngineConfig:
        """The config of an engine whose model pools. Raises ``ConfigError`` for a setting that
        only models that generate have."""
        for name in _GENERATING:
            value, default = getattr(self, name), getattr(_DEFAULTS, name)
            self._check(
                name, value == default, f"is not for models that pool: leave it {default!r}"
            )
        if model.is_encoder:
            for name in _DECODING:
                value, default = getattr(self, name), getattr(_DEFAULTS, name)
                self._check(name, value == default, f"is not for encoders: leave it {default!r}")
        return msgspec.structs.replace(
            self,
            # Nothing of one request serves another: no cache, so nothing to learn from timing.
            enable_prefix_caching=False,
            enforce_eager=True,  # Graphs are of steps that sample.
            target_gap_ms=None,
            forecast_admission=False,
            long_prefill_token_threshold=(
                0 if model.is_encoder else self.long_prefill_token_threshold
            ),
        )

    @property
    def num_ranks(self) -> int:
        """The devices of the engine, each with a process."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def most_in_flight(self) -> int:
        """The most steps that are launched and not collected: one in each stage, and the next."""
        return self.pipeline_parallel_size + 1

    @property
    def step_tokens(self) -> int:
        """``max_num_batched_tokens``, or its default for a CPU."""
        return self.max_num_batched_tokens or _STEP_TOKENS

    @property
    def image_tokens(self) -> int:
        """``max_num_image_tokens``, or the device's default."""
        return self.max_num_image_tokens or (4096 if self.device == "cuda" else 256)

    @property
    def num_seqs(self) -> int:
        """``max_num_seqs``, or its default for a CPU."""
        return self.max_num_seqs or _NUM_SEQS

    @property
    def chunk_tokens(self) -> int:
        """Most tokens of one request in a step."""
        return min(self.long_prefill_token_threshold or self.step_tokens, self.step_tokens)

    @property
    def model_dir(self) -> Path:
        """The model's folder; downloads a hub repository on first use (``ModelLoadError``)."""
        return hub.fetch(self.model, self.revision)


_DEFAULTS = EngineConfig(model="")
