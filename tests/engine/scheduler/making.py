"""Requests without an engine, for tests of one policy."""

from __future__ import annotations

from typing import Any

from engine.cache.table import GroupTable
from engine.messages import GenerateRequest
from engine.request import Request, RequestState
from engine.sampling_params import SamplingParams


def make_request(
    arrival: int,
    *,
    arrival_s: float | None = None,
    num_prompt_tokens: int = 10,
    running: bool = False,
    num_computed_tokens: int = 0,
    num_generated: int = 0,
    max_tokens: int = 1000,
    num_blocks: int = 0,
    **fields: Any,
) -> Request:
    message = GenerateRequest(
        request_id=f"r{arrival}",
        prompt_token_ids=[1] * num_prompt_tokens,
        params=SamplingParams(),
        **fields,
    )
    request = Request(
        message,
        arrival=arrival,
        arrival_s=float(arrival) if arrival_s is None else arrival_s,
        max_total_tokens=num_prompt_tokens + max_tokens,
        eos_token_ids=frozenset(),
    )
    request.token_ids += [2] * num_generated
    if num_blocks:
        request.block_table.layer_groups = [GroupTable(list(range(num_blocks)))]
    request.block_table.num_held = num_blocks
    if running:
        request.enter(RequestState.RUNNING)
    request.num_computed_tokens = num_computed_tokens
    return request


def held(arrival: int, fair_key: str, num_blocks: int, **options: Any) -> Request:
    """A running request that has so many blocks, of which each is computed."""
    return make_request(
        arrival,
        fair_key=fair_key,
        running=True,
        num_blocks=num_blocks,
        num_computed_tokens=16 * num_blocks,
        **options,
    )


def claims(policy: Any, running: list[Request]) -> list[tuple[str, list[str]]]:
    """What claims there are, and who gives way if all of them are needed."""
    return [
        (claim.request.request_id, names(list(claim.victims))) for claim in policy.claims(running)
    ]


def names(requests: list[Request]) -> list[str]:
    return [request.request_id for request in requests]


def drain(policy: Any) -> list[str]:
    """The order in which a policy admits what waits, if nothing else happens."""
    order = []
    while (request := policy.head()) is not None:
        order.append(request.request_id)
        policy.dequeue(request)
    return order
