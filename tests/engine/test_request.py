from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import AdapterRef, GenerateRequest, Grant
from engine.request import Request, RequestState
from engine.sampling_params import SamplingParams, StructuredOutputs


def make(max_total_tokens: int = 100, **params: object) -> Request:
    message = GenerateRequest(
        request_id="r",
        prompt_token_ids=[1, 2, 3],
        params=SamplingParams(**params),  # type: ignore[arg-type]
    )
    return Request(
        message,
        arrival=0,
        arrival_s=0.0,
        max_total_tokens=max_total_tokens,
        eos_token_ids=frozenset({7}),
    )


def test_a_request_waits_first_for_its_grammar() -> None:
    assert make().state is RequestState.WAITING
    request = make(structured_outputs=StructuredOutputs(regex="a"))
    assert request.state is RequestState.WAITING_FOR_GRAMMAR


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        ([], RequestState.PREEMPTED),
        ([RequestState.RUNNING], RequestState.WAITING),
        ([RequestState.RUNNING, RequestState.PREEMPTED], RequestState.WAITING),
        ([RequestState.RUNNING, RequestState.PARKED], RequestState.RUNNING),
        ([RequestState.RUNNING, RequestState.SWAPPED], RequestState.PREEMPTED),
        ([], RequestState.SWAPPED),
        ([], RequestState.PARKED),
        ([RequestState.FINISHED], RequestState.RUNNING),
        ([RequestState.FINISHED], RequestState.FINISHED),
    ],
)
def test_an_impossible_change_of_state_names_both(
    path: list[RequestState], bad: RequestState
) -> None:
    request = make()
    for state in path:
        request.enter(state)
    with pytest.raises(AssertionError, match=f"{request.state.name} cannot become {bad.name}"):
        request.enter(bad)


def test_every_state_can_finish() -> None:
    for path in (
        [],
        [RequestState.RUNNING],
        [RequestState.RUNNING, RequestState.PREEMPTED],
        [RequestState.RUNNING, RequestState.PARKED],
    ):
        request = make()
        for state in path:
            request.enter(state)
        request.finish("abort")
        assert request.finished
        assert request.finish_reason == "abort"


def test_eos_stops_without_a_stop_reason() -> None:
    request = make()
    assert request.append(5) is None
    assert request.append(7) == "stop"
    assert request.stop_reason is None
    assert request.num_generated_tokens == 2


def test_a_stop_token_is_its_own_reason() -> None:
    request = make(stop_token_ids=(5,))
    assert request.append(5) == "stop"
    assert request.stop_reason == 5


def test_an_ignored_eos_may_still_be_a_stop_token() -> None:
    assert make(ignore_eos=True).append(7) is None
    request = make(ignore_eos=True, stop_token_ids=(7,))
    assert request.append(7) == "stop"
    assert request.stop_reason == 7


def test_no_stop_before_min_tokens() -> None:
    request = make(min_tokens=2, stop_token_ids=(5,))
    assert request.append(5) is None
    assert request.append(5) == "stop"


def test_the_length_ends_it_whatever_min_tokens_says() -> None:
    request = make(max_total_tokens=5, min_tokens=3)
    assert request.append(1) is None
    assert request.append(7) == "length"


def test_a_stop_on_the_last_token_is_a_stop() -> None:
    request = make(max_total_tokens=4)
    assert request.append(7) == "stop"


@given(
    token_ids=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    max_total_tokens=st.integers(4, 9),
    min_tokens=st.integers(0, 3),
    ignore_eos=st.booleans(),
)
def test_many_tokens_at_once_are_as_one_after_another(
    token_ids: list[int], max_total_tokens: int, min_tokens: int, ignore_eos: bool
) -> None:
    def request() -> Request:
        return make(
            max_total_tokens, min_tokens=min_tokens, ignore_eos=ignore_eos, stop_token_ids=(5,)
        )

    at_once, one_by_one = request(), request()
    took = at_once.extend(token_ids)
    reasons = [one_by_one.append(token_id) for token_id in token_ids]
    assert took or at_once.token_ids == [1, 2, 3]
    if took:
        assert set(reasons) == {None}
        assert at_once.token_ids == one_by_one.token_ids
    assert took or any(reasons) or {5, 7} & set(token_ids)


def test_planned_tokens_include_those_in_flight() -> None:
    request = make()
    request.num_pending = 1
    assert (request.num_tokens, request.num_planned_tokens) == (3, 4)


def test_drafts_need_a_request_that_has_only_its_last_token_to_compute() -> None:
    request = make(max_total_tokens=8)
    request.num_computed_tokens = 2
    assert request.draft_room == 4, "and the token after the drafts has a place, too"
    for num_computed_tokens in (1, 3):
        request.num_computed_tokens = num_computed_tokens
        assert request.draft_room == 0
    request.num_computed_tokens, request.num_pending = 2, 1
    assert request.draft_room == 0, "it is not known what follows"
    full = make(max_total_tokens=3)
    full.num_computed_tokens = 2
    assert full.draft_room == 0


@pytest.mark.parametrize(("num_granted", "limit"), [(None, 10), (0, 3), (5, 8), (7, 10), (9, 10)])
def test_a_grant_bounds_it_for_now_and_the_last_for_good(
    num_granted: int | None, limit: int
) -> None:
    message = GenerateRequest(
        request_id="r",
        prompt_token_ids=[1, 2, 3],
        params=SamplingParams(),
        num_granted_tokens=num_granted,
    )
    request = Request(
        message, arrival=0, arrival_s=0.0, max_total_tokens=10, eos_token_ids=frozenset()
    )
    assert (request.token_limit, request.max_total_tokens) == (limit, 10)
    assert request.awaits_grant == (limit == 3)
    request.grant(Grant("r", 6))
    assert (request.token_limit, request.max_total_tokens) == (max(limit, 9), 10)
    assert not request.awaits_grant
    request.grant(Grant("r", 2, is_last=True))
    assert (request.token_limit, request.max_total_tokens) == (max(limit, 9),) * 2


def test_what_was_asked_for_is_the_requests() -> None:
    message = GenerateRequest(
        request_id="r",
        prompt_token_ids=[1],
        params=SamplingParams(),
        fair_key="acme",
        weight=2.5,
        priority=-3,
        adapter=AdapterRef(name="mine", path="/mine"),
    )
    request = Request(
        message, arrival=0, arrival_s=0.0, max_total_tokens=10, eos_token_ids=frozenset()
    )
    found = (request.fair_key, request.weight, request.priority, request.adapter)
    assert found == ("acme", 2.5, -3, "mine")


def test_an_adapter_keeps_its_cached_prefixes_apart() -> None:
    """From the base's, from those of its name's earlier content, and from the public ones."""

    def region(digest: str) -> tuple[dict[str, str], int]:
        message = GenerateRequest(
            request_id="r",
            prompt_token_ids=[1, 2, 3],
            params=SamplingParams(),
            cache_salt="salt",
            num_public_tokens=2,
            adapter=AdapterRef(name="mine", path="/mine") if digest else None,
        )
        request = Request(
            message,
            arrival=0,
            arrival_s=0.0,
            max_total_tokens=9,
            eos_token_ids=frozenset(),
            adapter_digest=digest,
        )
        return dict(request.block_table.region), request.block_table.num_public_tokens

    assert region("") == ({"salt": "salt"}, 2)
    assert region("d1") == ({"salt": "salt", "adapter": "d1"}, 0)
    assert region("d2") == ({"salt": "salt", "adapter": "d2"}, 0)
