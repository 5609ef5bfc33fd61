"""The spans of a generation, made when it is over from the times that were noted meanwhile."""

from __future__ import annotations

from gateway.admission.admitted import Admitted
from gateway.metrics.times import Times
from gateway.otlp import Attributes
from gateway.tracing import Stage
from tenants.types import UsageEvent

PROVIDER = "sluice"
"""``gen_ai.provider.name``: the server that generates is our own."""


def record(above: Stage, admitted: Admitted, event: UsageEvent, times: Times) -> None:
    """Add the spans of a generation that is settled now."""
    assert times.ended_at is not None
    operation = "text_completion" if admitted.echoes else "chat"
    own = above.begin(
        f"{operation} {admitted.model}",
        at=times.began_at,
        attributes=_attributes(operation, admitted, event, times),
    )
    if times.first_token_at is None:
        own.add("queue", times.began_at, times.ended_at)
    else:
        admitted_at = min(times.began_at + times.queue_s, times.first_token_at)
        own.add("queue", times.began_at, admitted_at)
        own.add("prefill", admitted_at, times.first_token_at)
        own.add("decode", times.first_token_at, times.ended_at)
    own.add("settle", times.ended_at)
    own.end(error="error" if event.status == "error" else None)


def _attributes(operation: str, admitted: Admitted, event: UsageEvent, times: Times) -> Attributes:
    """By version 1.37 of the semantic conventions."""
    params = admitted.params
    attributes: dict[str, str | bool | int | float | list[str]] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": admitted.model,
        "gen_ai.response.model": admitted.model,
        "gen_ai.response.id": str(admitted.id),
        "gen_ai.response.finish_reasons": [event.status],
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.usage.input_tokens": event.prompt_tokens,
        "gen_ai.usage.output_tokens": event.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": event.cached_tokens,
    }
    if params.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = params.max_tokens
    if params.seed is not None:
        attributes["gen_ai.request.seed"] = params.seed
    if admitted.num_choices > 1:
        attributes["gen_ai.request.choice.count"] = admitted.num_choices
    if times.first_token_at is not None:
        first_chunk_s = times.first_token_at - times.began_at
        attributes["gen_ai.response.time_to_first_chunk"] = first_chunk_s
    if times.num_moves:
        attributes["sluice.request.moves"] = times.num_moves
    return attributes
