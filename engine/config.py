"""The engine's settings, with vLLM's names wherever vLLM has one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec

from engine import hub
from engine.architectures import QuantizationMethod
from engine.errors import ConfigError
from engine.spec.config import SpeculativeConfig

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
ModelImpl = Literal["auto", "native", "transformers"]
LoadFormat = Literal["auto", "dummy"]
KVCacheDtype = Literal["auto", "fp8", "fp8_e4m3"]
AttentionBackendName = Literal["auto", "cuda", "flash_attn", "triton", "cpu", "torch"]
Policy = Literal["fcfs", "priority", "fair_share"]

_STEP_TOKENS = 2048
_GPU_STEP_TOKENS = 8192
_NUM_SEQS = 256
MAX_DEFAULT_NUM_SEQS = 512
"""What ``max_num_seqs`` is on a GPU with much memory, where none is set."""
_MUCH_MEMORY_BYTES = 64 * 2**30

_AT_LEAST_ONE = (
    *("block_size", "max_loras", "max_lora_rank"),
    *("max_model_len", "max_num_batched_tokens", "max_num_seqs", "max_num_partial_prefills"),
    *("num_gpu_blocks_override", "num_threads"),
    *("max_num_queued_reqs", "max_num_queued_tokens"),
    *("max_num_queued_reqs_per_tenant", "max_num_queued_tokens_per_tenant"),
)
_AT_LEAST_ZERO = (
    *("fair_share_input_cost", "fair_share_output_cost", "fair_share_cached_cost"),
    *("fair_share_quantum", "swap_space", "long_prefill_token_threshold"),
)


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the engine process needs to know. Checked on construction (``ConfigError``)."""

    model: str
    """A folder in Hugging Face layout, or the id of a repository on the hub (``owner/name``)."""
    revision: str | None = None
    """Branch, tag or commit of a hub repository; its main branch by default."""
    model_impl: ModelImpl = "auto"
    """Whose code computes the model: ``native`` ours, ``transformers`` that library's, ``auto``
    ours where there is one."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model, which can do anything."""
    device: Device = "auto"
    """Where the model runs; ``auto`` takes a GPU when there is one."""
    dtype: Dtype = "auto"
    """``auto``: float32 on a CPU, the checkpoint's own on a GPU."""
    quantization: QuantizationMethod | None = None
    """How the weights of linear layers are stored. None: as the checkpoint's quantization_config
    says; ``fp8`` quantizes a checkpoint that has none while it loads."""
    quantize_lm_head: bool = False
    """Round the language model head to FP8 while it loads, with a scale for each row, where the
    checkpoint has not quantized it. A head tied to the embedding becomes a copy, which takes memory
    of its own; the embedding stays as it is."""
    load_format: LoadFormat = "auto"
    """``auto`` reads safetensors files; ``dummy`` draws random weights, to measure speed without a
    checkpoint (a config.json is enough)."""
    attention_backend: AttentionBackendName = "auto"
    """``auto`` takes the best that serves the model here; one that cannot is refused by name."""
    enforce_eager: bool = False
    """Launch every kernel of a decode step by itself, without CUDA graphs."""
    skip_tokenizer_init: bool = False
    """Offline only: token ids in, token ids out, no tokenizer needed."""
    max_model_len: int | None = None
    """Tokens of prompt and output together; None takes the model's own limit."""
    block_size: int = 16
    """Tokens in a block of the KV cache."""
    num_gpu_blocks_override: int | None = None
    """Blocks in the KV cache; None sizes it from the memory."""
    gpu_memory_utilization: float = 0.92
    """Share of the GPU's memory for weights, activations and KV cache together."""
    kv_cache_dtype: KVCacheDtype = "auto"
    """How keys and values are stored: in the model's dtype (``auto``), or as ``fp8`` (the same as
    ``fp8_e4m3``), of which twice as many fit as of 16 bits. Computed with at full precision."""
    calculate_kv_scales: bool = True
    """Measure the scales of an FP8 KV cache at start-up, where the checkpoint has none; else they
    are 1."""
    kv_cache_memory_bytes: int | None = None
    """Bytes for the KV cache; on a CPU None means 512 MiB."""
    disable_hybrid_kv_cache_manager: bool | None = None
    """Keep every token in the KV cache of all layers, even of those that look back no further than
    a window. None: only beside a draft network where every layer has one."""
    swap_space: float | None = None
    """GiB of host memory for what preempted requests had computed, so that they need not compute it
    again where copying is quicker; 0 turns it off. None: for a GPU as much as its KV cache, but
    at most 4 (pinned); for a CPU, whose cache is host memory itself, 0."""
    enable_prefix_caching: bool = True
    """Keep the KV of finished requests for others of the same tenant that start alike."""
    prefix_cache_tenant_floor: float = 0.0
    """Share of the blocks that one tenant's cached prefixes keep while other tenants have more."""
    prefix_cache_tenant_ceiling: float = 1.0
    """Share of the blocks that one tenant's cached prefixes may take when no request uses them."""
    max_num_batched_tokens: int | None = None
    """Tokens computed in one step at most; None: 8192 on a GPU, 2048 on a CPU."""
    max_num_seqs: int | None = None
    """Requests running at once at most; None: 512 on a GPU with at least 64 GiB, else 256."""
    long_prefill_token_threshold: int = 0
    """A longer prefill is cut into chunks of this many tokens; 0 leaves the budget alone to cut."""
    max_num_partial_prefills: int | None = None
    """Prompts that may be partly computed at the same time; None sets no limit."""
    policy: Policy = "fcfs"
    """Who goes first: by arrival, by ``priority``, or by the least service received so far."""
    priority_aging_s: float = 30.0
    """Waiting this long counts as much as one level of priority."""
    fair_share_input_cost: float = 1.0
    """What ``fair_share`` charges for a prompt token that is computed."""
    fair_share_output_cost: float = 2.0
    """What ``fair_share`` charges for a generated token."""
    fair_share_cached_cost: float = 0.1
    """What ``fair_share`` charges for a prompt token found in the prefix cache."""
    fair_share_quantum: float = 2048.0
    """How far above the least a tenant's counter may be for its request with a longer cached prefix
    to go first; 0 never lets the cache change the order."""
    max_num_queued_reqs: int | None = None
    """Requests that may wait for their first admission; more are refused (``QueueFull``)."""
    max_num_queued_tokens: int | None = None
    """Prompt tokens of the requests that wait for their first admission, in sum."""
    max_num_queued_reqs_per_tenant: int | None = None
    """As ``max_num_queued_reqs``, for the requests of one tenant."""
    max_num_queued_tokens_per_tenant: int | None = None
    """As ``max_num_queued_tokens``, for the requests of one tenant."""
    scheduler_reserve_full_isl: bool = True
    """Admit a request only when its whole prompt fits into the free blocks, and reserve them."""
    forecast_admission: bool = True
    """Admit a request only when the blocks are expected to suffice until the running ones end."""
    watermark: float = 0.01
    """Share of the blocks that admissions leave free for the requests already running."""
    async_scheduling: bool | None = None
    """Plan step N+1 while step N runs. None: on a GPU, which works beside the host."""
    speculative_config: SpeculativeConfig | None = None
    """Draft tokens and check several in one step (speculative decoding): a table such as
    `{ method = "ngram", num_speculative_tokens = 4 }`, with vLLM's keys. Never changes outputs."""
    max_logprobs: int = 20
    """The most ``logprobs`` or ``prompt_logprobs`` a request may ask for; -1 sets no limit."""
    enable_lora: bool = False
    """Serve LoRA adapters beside the model, many in one batch; for native models."""
    max_loras: int = 1
    """Different adapters in one step at most: so many fit on the device at once."""
    max_lora_rank: int = 16
    """The largest rank that an adapter may have; decides the memory of each of ``max_loras``."""
    max_cpu_loras: int | None = None
    """Adapters that stay in host memory while no request uses them, the one used least recently
    going first; one that went is read again when it is asked for. None: all that were loaded."""
    num_threads: int | None = None
    """Torch's CPU threads; None leaves torch's choice."""
    seed: int = 0
    """Decides the sampling of requests that bring no seed of their own."""

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
        self._check("priority_aging_s", self.priority_aging_s > 0, "must be positive")
        floor, ceiling = self.prefix_cache_tenant_floor, self.prefix_cache_tenant_ceiling
        self._check("prefix_cache_tenant_floor", 0 <= floor <= 1, "must be in [0, 1]")
        self._check(
            "prefix_cache_tenant_ceiling",
            floor <= ceiling <= 1,
            "must be in [prefix_cache_tenant_floor, 1]",
        )
        self._check("max_logprobs", self.max_logprobs >= -1, "must be at least -1")
        self._check("watermark", 0 <= self.watermark < 1, "must be in [0, 1)")

    def _check(self, name: str, ok: bool, rule: str) -> None:
        if not ok:
            raise ConfigError(f"{name} {rule}, got {getattr(self, name)!r}")

    def for_device(self, device_type: str, memory_bytes: int = 0) -> EngineConfig:
        """The config with what depends on the device filled in.

        device_type: "cuda" or "cpu". memory_bytes: all that a GPU has.
        """
        is_gpu = device_type == "cuda"
        has_much = is_gpu and memory_bytes >= _MUCH_MEMORY_BYTES
        return msgspec.structs.replace(
            self,
            max_num_batched_tokens=self.max_num_batched_tokens
            or (_GPU_STEP_TOKENS if is_gpu else _STEP_TOKENS),
            max_num_seqs=self.max_num_seqs or (MAX_DEFAULT_NUM_SEQS if has_much else _NUM_SEQS),
        )

    @property
    def step_tokens(self) -> int:
        """``max_num_batched_tokens``, or that of a CPU."""
        return self.max_num_batched_tokens or _STEP_TOKENS

    @property
    def num_seqs(self) -> int:
        """``max_num_seqs``, or that of a CPU."""
        return self.max_num_seqs or _NUM_SEQS

    @property
    def chunk_tokens(self) -> int:
        """Tokens of one request in a step, at most."""
        return min(self.long_prefill_token_threshold or self.step_tokens, self.step_tokens)

    @property
    def model_dir(self) -> Path:
        """Downloads a hub repository when it is first asked for (``ModelLoadError``)."""
        return hub.fetch(self.model, self.revision)
