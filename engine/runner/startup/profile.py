"""Measures the memory that the largest step needs beside the weights and the KV cache."""

from __future__ import annotations

import torch

from engine.attention.base import AttentionBackend
from engine.executors.base import Executor
from engine.runner.startup.target import Target
from engine.runner.startup.trial import Trial


@torch.inference_mode()
def measure_activation_bytes(
    target: Target, executor: Executor, attention: AttentionBackend
) -> int:
    """The peak of the allocator in bytes, during a step of ``max_num_batched_tokens`` on a GPU.

    The step is one prompt of the model's greatest length, or several. Then the logits for
    ``max_num_seqs`` requests and their drafts are computed, as in the largest decode step.
    """
    config, device = target.config, target.device
    prompts = [[0] * length for length in _split(config.step_tokens, target.asked_len)]
    dtypes = {"dtype": target.dtype, "kv_dtype": target.kv_dtype}
    trial = Trial(target.facts, prompts, config.block_size, **dtypes, device=device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    hidden = trial.run(executor, attention)
    speculative = config.speculative_config
    num_queries = 1 if speculative is None else 1 + speculative.num_tokens
    num_sampled = min(config.num_seqs * num_queries, config.step_tokens)
    executor.logits(hidden[:1].expand(num_sampled, -1))
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    del trial, hidden
    torch.cuda.empty_cache()
    return peak


def _split(num_tokens: int, max_model_len: int) -> list[int]:
    whole, rest = divmod(num_tokens, max_model_len)
    return [max_model_len] * whole + ([rest] if rest else [])
