"""How much memory the largest step takes beside weights and KV cache."""

from __future__ import annotations

import torch

from engine.attention.base import AttentionBackend
from engine.config import EngineConfig
from engine.layers.attention import StepContext
from engine.messages import SamplingParams
from engine.models.base import Model, ModelFacts
from engine.runner.inputs import ChunkFields, build_inputs
from engine.runner.memory import PagedCache
from engine.runner.rows import RowTable
from engine.scheduler.plan import Admission, Chunk


@torch.inference_mode()
def measure_activation_bytes(
    model: Model,
    model_config: ModelFacts,
    config: EngineConfig,
    attention: AttentionBackend,
    *,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Run one step of ``max_num_batched_tokens`` on a GPU and read the allocator's peak.

    The step's tokens are one prompt as long as the model takes, or several; then the logits of
    ``max_num_seqs`` rows are computed, as when everybody decodes, and of their drafts.
    """
    lengths = _split(config.step_tokens, max_model_len)
    blocks_each = -(-lengths[0] // config.block_size)
    cache = PagedCache(
        model_config, blocks_each * len(lengths), config.block_size, dtype=dtype, device=device
    )
    table = RowTable(len(lengths), lengths[0], config.block_size, device)
    for row, length in enumerate(lengths):
        first = row * blocks_each
        table.admit(
            Admission(
                row=row,
                request_id="profile",
                token_ids=[0] * length,
                num_prompt_tokens=length,
                block_ids=range(first, first + blocks_each),
                params=SamplingParams(),
            )
        )
    chunks = [Chunk(row, "profile", 0, length, True) for row, length in enumerate(lengths)]
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    inputs = build_inputs(ChunkFields.read(chunks), table, config.block_size)
    step = StepContext(
        inputs.positions,
        inputs.slots,
        attention.prepare(inputs.attention, config.block_size),
        cache.layers,
    )
    hidden = model.hidden_states(inputs.token_ids, step)
    speculative = config.speculative_config
    places = 1 if speculative is None else 1 + speculative.num_tokens
    num_sampled = min(config.max_num_seqs * places, config.step_tokens)
    model.logits(hidden[:1].expand(num_sampled, -1))
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    del cache, table, inputs, step, hidden
    torch.cuda.empty_cache()
    return peak


def _split(num_tokens: int, max_model_len: int) -> list[int]:
    whole, rest = divmod(num_tokens, max_model_len)
    return [max_model_len] * whole + ([rest] if rest else [])
