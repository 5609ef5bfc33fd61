from __future__ import annotations

from typing import Any

from engine.client.backlog import Backlog
from engine.config import EngineConfig
from engine.messages import GenerateRequest, Stats, TenantStats
from engine.sampling_params import SamplingParams


def backlog(**limits: Any) -> Backlog:
    return Backlog(EngineConfig(model="any", **limits))


def request(fair_key: str = "a", num_tokens: int = 10) -> GenerateRequest:
    return GenerateRequest(
        request_id="r",
        prompt_token_ids=[1] * num_tokens,
        params=SamplingParams(),
        fair_key=fair_key,
    )


def test_what_was_sent_counts_until_the_engine_speaks_of_it() -> None:
    known = backlog(max_num_queued_reqs=2)
    known.send(request())
    assert known.refusal("b") is None
    mark = known.mark()
    known.send(request())
    assert "3 would exceed max_num_queued_reqs = 2" in str(known.refusal("a"))
    # The answer to a question asked between the two: the first was admitted already.
    known.report(Stats(num_queued_reqs=0), mark)
    assert known.refusal("a") is None
    known.send(request())
    assert "3 would exceed" in str(known.refusal("a"))  # the second still counts
    known.report(Stats(num_queued_reqs=2, tenants=[TenantStats("a", num_queued=2)]), known.mark())
    assert known.refusal("a") is not None


def test_only_who_has_its_part_is_refused() -> None:
    known = backlog(max_num_queued_reqs=4)
    known.report(Stats(num_queued_reqs=4, tenants=[TenantStats("a", num_queued=4)]), known.mark())
    assert known.refusal("a") is not None
    for _ in range(2):
        assert known.refusal("b") is None
        known.send(request("b"))
    assert known.refusal("b") is not None
    assert known.refusal("c") is None
    known.send(request("c"))
    assert known.refusal("c") is not None


def test_tenants_have_limits_of_their_own() -> None:
    known = backlog(max_num_queued_reqs_per_tenant=2, max_num_queued_tokens_per_tenant=100)
    stats = Stats(
        num_queued_reqs=3,
        tenants=[TenantStats("many", num_queued=2), TenantStats("long", queued_tokens=100)],
    )
    known.report(stats, known.mark())
    assert "max_num_queued_reqs_per_tenant = 2" in str(known.refusal("many"))
    assert "max_num_queued_tokens_per_tenant = 100" in str(known.refusal("long"))
    assert known.refusal("another") is None
    known.send(request("another", 99))
    assert known.refusal("another") is None
    known.send(request("another", 1))
    assert known.refusal("another") is not None


def test_one_more_token_counts_towards_all_that_may_be_queued() -> None:
    known = backlog(max_num_queued_tokens=100)
    stats = Stats(num_queued_tokens=90, tenants=[TenantStats("a", queued_tokens=90)])
    known.report(stats, known.mark())
    known.send(request(num_tokens=9))
    assert known.refusal("a") is None
    known.send(request(num_tokens=1))
    assert "101 would exceed max_num_queued_tokens = 100" in str(known.refusal("a"))


def test_without_limits_nothing_is_refused() -> None:
    known = backlog()
    known.report(Stats(num_queued_reqs=10**6, num_queued_tokens=10**9), known.mark())
    assert known.refusal("a") is None


def test_nothing_is_kept_of_what_was_heard_of() -> None:
    known = backlog()
    assert known.age_s == float("inf")
    for i in range(5):
        known.send(request(str(i)))
    known.report(Stats(), known.mark())
    assert (len(known._sent), len(known._unreported)) == (0, 0)
    assert (known._unreported_in_all.num_reqs, known._unreported_in_all.num_tokens) == (0, 0)
    assert 0 <= known.age_s < 5
