"""What vLLM documents of its sampling parameters, one token at a time in plain Python."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from engine.sampling_params import SamplingParams


def processed(
    logits: Sequence[float],
    prompt: Sequence[int],
    output: Sequence[int],
    params: SamplingParams,
    eos_token_ids: frozenset[int] = frozenset(),
) -> list[float]:
    """The logits that the temperature is applied to; forbidden tokens are -inf."""
    result = []
    for token_id, logit in enumerate(logits):
        score = logit + (params.logit_bias or {}).get(token_id, 0.0)
        if token_id in (*prompt, *output):
            repetition = params.repetition_penalty
            score = score / repetition if score > 0 else score * repetition
        count = list(output).count(token_id)
        score -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        if _forbidden(token_id, output, params, eos_token_ids):
            score = -math.inf
        result.append(score)
    return result


def _forbidden(
    token_id: int, output: Sequence[int], params: SamplingParams, eos_token_ids: frozenset[int]
) -> bool:
    allowed = params.allowed_token_ids
    if allowed is not None and token_id not in allowed:
        return True
    if len(output) < params.min_tokens and token_id in {*params.stop_token_ids, *eos_token_ids}:
        return True
    line = [*output, token_id]
    words = map(list, params.bad_words_token_ids)
    return any(len(line) >= len(word) and line[-len(word) :] == word for word in words)


def probabilities(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """The distribution that is drawn from: top-n-sigma, temperature, top-k, top-p, min-p, in this
    order.

    For logits without ties among those that are not forbidden.
    """
    best = max(logits)
    if params.top_n_sigma > 0:
        sigma = statistics.pstdev(logit for logit in logits if logit > -math.inf)
        least = best - params.top_n_sigma * sigma
        logits = [logit if logit >= least else -math.inf for logit in logits]
    weights = [math.exp((logit - best) / params.temperature) for logit in logits]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    if params.top_k > 0:
        order = order[: params.top_k]
    total = math.fsum(weights[i] for i in order)
    kept, mass = [], 0.0
    for i in order:
        if mass < params.top_p * total:
            kept.append(i)
        mass += weights[i]
    kept = [i for i in kept if weights[i] >= params.min_p]
    total = math.fsum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(weights))]
