"""From ``speculative_config`` to a draft network that is ready to draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.attention.base import AttentionShape, CapturableBackend
from engine.attention.select import select_backend
from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.executors.base import Executors
from engine.layers.attention import KVCache
from engine.models.base import Model, ModelConfig, ModelFacts
from engine.models.llama import ForCausalLM
from engine.runner.block_copies import as_stack
from engine.runner.drafts.drafting import ChainDrafting, Drafting, ParallelDrafting
from engine.runner.drafts.features import FeatureCache, kept_size, watched
from engine.runner.drafts.graphs import DraftGraphs
from engine.runner.memory import PagedCache, block_bytes
from engine.runner.rows import RowTable
from engine.sampling.sampler import Sampler
from engine.scheduler.plan import Chunk
from engine.spec.draft_model import load_draft_model
from engine.spec.draft_network import ChainNetwork, DraftNetwork, ParallelNetwork
from engine.spec.eagle import load_eagle, load_eagle3
from engine.spec.medusa import load_medusa
from engine.spec.rejection import SyntheticAcceptance, accept
from kernels import cuda


def load_draft_network(
    config: EngineConfig,
    model: Model,
    facts: ModelFacts,
    *,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
) -> DraftNetwork | None:
    """None where the config asks for none. Raises ``ModelLoadError`` naming what does not fit."""
    speculative = config.speculative_config
    if speculative is None or speculative.model is None:
        return None
    folder = speculative.model_dir
    if speculative.method == "draft_model":
        return load_draft_model(
            folder,
            facts.vocab_size,
            dummy=config.load_format == "dummy",
            max_model_len=max_model_len,
            dtype=dtype,
            device=device,
        )
    if not (isinstance(model, ForCausalLM) and isinstance(facts, ModelConfig)):
        raise ModelLoadError(
            f"speculative_config.method {speculative.method!r} needs a model with a native"
            " implementation"
        )
    dummy = config.load_format == "dummy"
    match speculative.method:
        case "medusa":
            network = load_medusa(folder, facts, dummy=dummy, dtype=dtype, device=device)
            if network.num_heads < speculative.num_tokens:
                raise ModelLoadError(
                    f"{folder} has {network.num_heads} heads: lower"
                    f" speculative_config.num_speculative_tokens from {speculative.num_tokens}"
                )
            return network
    load = load_eagle3 if speculative.method == "eagle3" else load_eagle
    return load(
        folder,
        model,
        facts,
        dummy=dummy,
        max_model_len=max_model_len,
        dtype=dtype,
        device=device,
    )


def acceptance(config: EngineConfig) -> Callable[[Chunk, list[int]], list[int]]:
    """How drafts are judged."""
    speculative = config.speculative_config
    rates = None if speculative is None else speculative.synthetic_rates
    return accept if rates is None else SyntheticAcceptance(rates)


def draft_block_bytes(
    network: DraftNetwork | None, block_size: int, dtype: torch.dtype, device: torch.device
) -> int:
    """What drafting adds to each block of the KV cache."""
    if network is None:
        return 0
    features = block_size * kept_size(network, device) * dtype.itemsize
    if isinstance(network, ChainNetwork):
        return features + block_bytes(network.config, block_size, dtype)
    return features


@dataclass(frozen=True, slots=True)
class Made:
    """What ``create_drafting`` returns."""

    executors: Executors
    """The target's, watched if the network needs its features."""
    drafting: Drafting | None
    swapped: KVCache
    """What must be swapped along with the target's blocks."""
    copied: list[torch.Tensor]
    """What must be copied along with them, from block to block: stacks of ``BlockCopies``."""


def create_drafting(
    network: DraftNetwork | None,
    executors: Executors,
    config: EngineConfig,
    cache: PagedCache,
    table: RowTable,
    sampler: Sampler,
    dtype: torch.dtype,
) -> Made:
    """executors, cache: the target's. Without a network the executors stay as they are."""
    if network is None:
        return Made(executors, None, [], [])
    device, block_size = table.tokens.device, config.block_size
    features: FeatureCache | None = None
    if network.feature_size:
        num_slots = cache.num_blocks * block_size
        features = FeatureCache(num_slots, block_size, network, dtype=dtype, device=device)
        executors = watched(executors, network, features)
    swapped: KVCache = [] if features is None else [(features.blocks, features.blocks)]
    copied = [] if features is None else [as_stack(features.blocks[None])]
    if isinstance(network, ParallelNetwork):
        assert features is not None
        parallel = ParallelDrafting(network, features, table, sampler, block_size)
        return Made(executors, parallel, swapped, copied)
    assert isinstance(network, ChainNetwork)
    assert config.speculative_config is not None
    draft_cache = PagedCache(
        network.config, cache.num_blocks, block_size, dtype=dtype, device=device
    )
    layout = network.config.cache_layout
    shape = AttentionShape(
        dtype,
        network.config.num_heads,
        layout.num_kv_heads,
        layout.head_dim,
        block_size,
        config.num_seqs,
        window=network.config.narrowest_window,
        softcap=network.config.attention_softcap,
    )
    attention = select_backend(config.attention_backend, device, shape)
    graphs: DraftGraphs | None = None
    num_drafts = config.speculative_config.num_tokens
    if (
        not config.enforce_eager
        and device.type == "cuda"
        and cuda.available()
        and isinstance(attention, CapturableBackend)
        and num_drafts < attention.max_decode_queries
    ):
        graphs = DraftGraphs(
            network,
            features,
            draft_cache.layers,
            table,
            sampler,
            attention,
            num_drafts=num_drafts,
        )
        graphs.capture()
    drafting = ChainDrafting(
        network,
        features,
        attention,
        draft_cache,
        table,
        sampler,
        block_size,
        graphs,
        max_num_tokens=config.step_tokens,
        num_lookahead_tokens=num_drafts,
    )
    return Made(executors, drafting, swapped, [*copied, draft_cache.stack])
