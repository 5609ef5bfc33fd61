"""Speculative decoding seen from outside: usage, metrics of tenants, and what is billed."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.gateway.serving import Gateway, chat_body

pytestmark = [pytest.mark.pg, pytest.mark.asyncio(loop_scope="package")]

COPY = "Repeat after me: the quick brown fox jumps over the lazy dog, again and again and again."


async def counters(gateway: Gateway) -> dict[str, float]:
    """Counters of the tenant's drafts, and of all drafts, as Prometheus reads them."""
    await gateway.engine.fetch_stats()  # They are as old as the engine's last word.
    headers = {"authorization": f"Bearer {await gateway.key('admin')}"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as client:
        text = (await client.get(f"{gateway.url}/metrics")).text
    found = re.findall(r"^sluice_(\S*spec_decode\S*) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


async def test_usage_metrics_and_bill_agree(gateway: Gateway) -> None:
    before = await counters(gateway)
    body = chat_body(COPY, temperature=0, max_tokens=64)
    headers = {"authorization": f"Bearer {gateway.api_key}"}
    usages: list[dict[str, Any]] = []
    async with httpx.AsyncClient(timeout=60, headers=headers) as client:
        for _ in range(2):
            response = await client.post(f"{gateway.url}/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
            usages.append(response.json()["usage"])
    details = [usage["completion_tokens_details"] for usage in usages]
    accepted = sum(detail["accepted_prediction_tokens"] for detail in details)
    rejected = sum(detail["rejected_prediction_tokens"] for detail in details)
    completion = sum(usage["completion_tokens"] for usage in usages)
    assert 0 < accepted < completion, "each step gives one token that nobody drafted"
    assert rejected > 0

    tenant = gateway.tenant.id.hex
    expected = {
        "num_draft_tokens_total": accepted + rejected,
        "num_accepted_tokens_total": accepted,
    }

    now = await counters(gateway)
    for name, count in expected.items():
        assert now[f'tenant_spec_decode_{name}{{tenant="{tenant}"}}'] == count
        total = f"spec_decode_{name}"
        assert now[total] - before.get(total, 0.0) == count
    per_pos = [
        now[
            "tenant_spec_decode_num_accepted_tokens_per_pos_total"
            f'{{position="{place}",tenant="{tenant}"}}'
        ]
        for place in range(4)
    ]
    assert sum(per_pos) == accepted
    bill = await gateway.usage(2)
    assert bill.completion_tokens == completion, "what was drafted in vain is nobody's"
    assert per_pos == sorted(per_pos, reverse=True)
