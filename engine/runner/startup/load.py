"""From a config to a runner that is ready for its first plan."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from engine.attention.base import AttentionBackend
from engine.attention.select import select_backend
from engine.config import EngineConfig
from engine.executors.base import Executor
from engine.executors.select import executors_of
from engine.layers.embedding import rows_of_rank
from engine.layers.linear import Linear, TiedLinear
from engine.layers.mlp import GatedMLP
from engine.layers.module import Module
from engine.lora.shards import AdapterShards
from engine.lora.slots import AdapterSlots
from engine.messages import LoadProgress
from engine.models.base import Model
from engine.parallel.stage import WHOLE, Stage
from engine.pooling import PoolingModel
from engine.runner.block_copies import BlockCopies
from engine.runner.forward import ForwardPass
from engine.runner.graphs.prompt import MAX_TOKENS
from engine.runner.graphs.sized import capture_sizes, max_checked_tokens
from engine.runner.logprobs import LogprobRows
from engine.runner.memory import (
    PagedCache,
    block_bytes,
    choose_groups,
    count_blocks,
    fit_max_model_len,
)
from engine.runner.pictures import PictureRows
from engine.runner.pooling import EncoderRunner, PoolingRunner
from engine.runner.ranks.processes import OnLost, RankProcesses
from engine.runner.ranks.runner import RankedRunner
from engine.runner.rows import RowTable
from engine.runner.runner import Blocks, TorchRunner
from engine.runner.startup.encoder import load_encoder
from engine.runner.startup.kv_scales import load_kv_scales
from engine.runner.startup.load_drafting import (
    acceptance,
    create_drafting,
    draft_block_bytes,
    load_draft_network,
)
from engine.runner.startup.model import OnProgress, load_model, whole_model
from engine.runner.startup.profile import measure_activation_bytes
from engine.runner.startup.ranks import check_ranks, join
from engine.runner.startup.target import Target, resolve
from engine.runner.startup.vision import load_pictures, step_bytes, vision_of
from engine.runner.states import create_states
from engine.runner.swap import load_host_blocks
from engine.sampling.sampler import Sampler
from engine.spec.draft_network import DraftNetwork
from kernels import cpu, cuda, cuda_experts, cuda_lora, tuning
from kernels.build import cache_dir
from kernels.kept_choices import KeptChoices

LATE_BYTES = 256 * 1024 * 1024
"""GPU memory for what is loaded after the KV cache: kernels at their first use, workspaces."""


def load_runner(
    config: EngineConfig,
    *,
    on_progress: OnProgress | None = None,
    on_lost: OnLost | None = None,
) -> TorchRunner:
    """Load the model and lay out its memory, on all ranks.

    on_lost: as for ``RankProcesses``. Raises ``ModelLoadError`` or ``ConfigError`` with the cause
    and the mend in one line.
    """
    report = on_progress or (lambda _progress: None)
    report(LoadProgress(f"Reading {config.model}", 0.0))
    if config.num_ranks == 1:
        return _load(config, WHOLE, report)
    check_ranks(config)
    processes = RankProcesses(config, on_lost)
    try:
        with processes.checked():
            processes.stage = stage = join(config, 0, processes.rendezvous)
            runner = _load(config, stage, report, RankedRunner)
    except BaseException:
        processes.close()
        raise
    assert isinstance(runner, RankedRunner)
    runner.lead(processes)
    return runner


def load_pooling_runner(
    config: EngineConfig, pooling: PoolingModel, *, on_progress: OnProgress | None = None
) -> PoolingRunner | EncoderRunner:
    """As ``load_runner``, for a model that pools. config: from ``EngineConfig.for_pooling``."""
    report = on_progress or (lambda _progress: None)
    report(LoadProgress(f"Reading {config.model}", 0.0))
    if pooling.is_encoder:
        return load_encoder(config, pooling, report)
    runner = _load(config, WHOLE, report, PoolingRunner)
    assert isinstance(runner, PoolingRunner)
    return runner


def load_rank(config: EngineConfig, rank: int, rendezvous: int) -> TorchRunner:
    """As ``load_runner``, for another rank than the first."""
    return _load(config, join(config, rank, rendezvous), lambda _progress: None)


def _load(
    config: EngineConfig,
    stage: Stage,
    report: OnProgress,
    runner_class: type[TorchRunner] = TorchRunner,
) -> TorchRunner:
    target = resolve(config, stage)
    config, facts, asked_len = target.config, target.facts, target.asked_len
    device, dtype, shape = target.device, target.dtype, target.attention_shape
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    elif config.num_ranks > 1 and device.type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // config.num_ranks))
    report(LoadProgress("Preparing the kernels, compiled at the first start", 0.02))
    has_kernels = _register_kernels(device)
    attention = select_backend(config.attention_backend, device, shape)
    model = load_model(
        config, facts, max_model_len=asked_len, dtype=dtype, device=device, report=report
    )
    executors = executors_of(model)
    vision = vision_of(target)
    pictures = None if vision is None or vision.refusal else load_pictures(target, vision)
    adapters = _adapter_slots(target, model)
    if shape.is_fp8:
        report(LoadProgress("Scaling the KV cache", 0.9))
        model.set_kv_scales(load_kv_scales(target, executors.eager))
    network = None
    if stage.is_last:
        network = load_draft_network(
            config, model, facts, max_model_len=asked_len, dtype=dtype, device=device
        )
    cache, max_model_len = _allocate_cache(
        target, executors.eager, attention, adapters, network, pictures, report
    )
    table = RowTable(config.num_seqs, max_model_len, config.block_size, device, cache.groups)
    sampler = Sampler(
        config.num_seqs, facts.vocab_size, facts.eos_token_ids, seed=config.seed, device=device
    )
    if device.type == "cuda" and has_kernels:
        _measure_gemms(target, model, network, report)
    made = create_drafting(network, executors, config, cache, table, sampler, dtype)
    swap_space = config.swap_space if cache.states is None else 0.0
    stored = [*cache.tensors, *made.swapped]
    host_blocks = load_host_blocks(swap_space, stored, stage.least)
    steps_by = made.executors
    if stage.count > 1:
        # All stages must record the same graphs, and only the last one has a draft network.
        steps_by = replace(steps_by, resting=None)
    forward_pass = ForwardPass(
        steps_by,
        cache,
        table,
        attention,
        LogprobRows(config.num_seqs, facts.vocab_size),
        adapters,
        stage,
        pictures,
    )
    speculative = config.speculative_config
    num_drafts = 0 if speculative is None else speculative.num_tokens
    if model.is_capturable and not config.enforce_eager:
        forward_pass.capture(
            num_drafts,
            config.step_tokens,
            lambda done: report(LoadProgress("Capturing CUDA graphs", 0.95 + 0.05 * done)),
        )
    blocks = Blocks(cache, BlockCopies([cache.stack, *made.copied]), host_blocks)
    runner = runner_class(
        facts, forward_pass, blocks, table, sampler, made.drafting, acceptance(config)
    )
    runner.vision = vision
    runner.pooling = config.pooling
    report(LoadProgress("Warming up", 0.99))
    runner.warm_up()
    if speculative is not None and speculative.adaptive:
        runner.measure_step_costs(num_drafts, config.step_tokens)
    report(LoadProgress("Model loaded", 1.0))
    return runner


def _allocate_cache(
    target: Target,
    executor: Executor,
    attention: AttentionBackend,
    adapters: AdapterSlots | None,
    network: DraftNetwork | None,
    pictures: PictureRows | None,
    report: OnProgress,
) -> tuple[PagedCache, int]:
    """As many blocks as fit beside the weights and the largest step, and ``max_model_len``."""
    config, facts, device, kv_dtype = target.config, target.facts, target.device, target.kv_dtype

    def needed_bytes() -> int:
        report(LoadProgress("Measuring the largest step", 0.9))
        peak = measure_activation_bytes(target, executor, attention)
        # CUDA graphs keep memory of their own, for a step that is no larger.
        num_peaks = 1 if config.enforce_eager else 2
        adapter_bytes = 0 if adapters is None else adapters.step_bytes(config.step_tokens)
        picture_bytes = 0 if pictures is None else step_bytes(pictures, config)
        return LATE_BYTES + adapter_bytes + picture_bytes + num_peaks * peak

    states = None
    if facts.recurrent is not None:
        states = create_states(config, facts.recurrent, dtype=target.dtype, device=device)
    draft_bytes = draft_block_bytes(network, config.block_size, target.dtype, device)
    layer_bytes = block_bytes(facts, config.block_size, kv_dtype) / facts.cache_layout.num_stored
    # Only the last stage has a draft network; all divide the layers alike.
    draft_layers = -target.stage.least(-draft_bytes / layer_bytes) or None
    groups = choose_groups(config, facts, target.asked_len, device, draft_layers=draft_layers)
    num_blocks = count_blocks(config, facts, kv_dtype, device, needed_bytes, draft_bytes, groups)
    num_blocks = int(target.stage.least(num_blocks))
    max_model_len = fit_max_model_len(config, facts, num_blocks, groups)
    report(LoadProgress(f"Allocating {num_blocks} blocks of KV cache", 0.95))
    cache = PagedCache(
        facts,
        num_blocks,
        config.block_size,
        groups,
        states=states,
        dtype=kv_dtype,
        device=device,
    )
    return cache, max_model_len


def _adapter_slots(target: Target, model: Model) -> AdapterSlots | None:
    config, device = target.config, target.device
    if not config.enable_lora:
        return None
    shards = None
    group = target.stage.group
    if config.num_ranks > 1:
        whole = whole_model(config, max_model_len=target.asked_len, dtype=target.dtype)
        shards = AdapterShards(model, whole, group, pin=device.type == "cuda")
    speculative = config.speculative_config
    num_drafts = 0 if speculative is None else speculative.num_tokens
    most_checked = max_checked_tokens(config.num_seqs, num_drafts)
    adapters = AdapterSlots(
        model,
        max_loras=config.max_loras,
        max_lora_rank=config.max_lora_rank,
        max_num_rows=config.num_seqs,
        max_graph_tokens=max(config.num_seqs, most_checked, MAX_TOKENS),
        shards=shards,
        dtype=target.dtype,
        device=device,
    )
    adapters.warm_up()
    return adapters


def _register_kernels(device: torch.device) -> bool:
    """Offer our own kernels for the device to ``ops``; False where they cannot be built."""
    kernels = cuda if device.type == "cuda" else cpu
    if not kernels.available():
        return False
    kernels.register()
    if device.type == "cuda":
        cuda_experts.register()
        cuda_lora.register()
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from kernels.triton import fp8_linear, grouped_gemm, lora, quantize

        fp8_linear.register()
        grouped_gemm.register()
        lora.register()
        quantize.register()
    return True


def _measure_gemms(
    target: Target, model: Model, network: DraftNetwork | None, report: OnProgress
) -> None:
    """Before graphs are captured, those of drafts, too: they keep the GEMMs that they began
    with."""

    def tell() -> None:
        words = f"Measuring GEMMs, once for this model; kept in {cache_dir()}"
        report(LoadProgress(words, 0.95))

    report(LoadProgress("Loading GEMMs", 0.95))
    parts = [model] if network is None else [model, network]
    modules = [module for part in parts for module in part.modules()]
    config = target.config
    uses = _uses(target, modules)
    batches = [] if config.enforce_eager else capture_sizes(config.num_seqs)
    fastest = tuning.measure(uses, KeptChoices.of(target.device), batches, tell)
    for module in modules:
        if isinstance(module, Linear | TiedLinear):
            module.gemms = fastest


def _uses(target: Target, modules: Iterable[Module]) -> Iterator[tuning.Use]:
    """The weights that are multiplied as they are, quantized ones left out."""
    config, vocab_size = target.config, target.facts.vocab_size
    of_heads = vocab_size, rows_of_rank(vocab_size, target.stage.group)
    gated: set[Linear] = set()
    for module in modules:
        match module:
            case GatedMLP() if module.activation == "silu":
                gated.add(module.gate_up_proj)
            case Linear() | TiedLinear() if module.quantized is not None:
                pass
            case Linear() | TiedLinear():
                weight = module.weight.data
                rows = config.num_seqs if weight.shape[0] in of_heads else config.step_tokens
                bias = module.bias if isinstance(module, Linear) else None
                added = None if bias is None else bias.data
                yield tuning.Use(weight, module in gated, rows, added)
