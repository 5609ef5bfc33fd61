from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request
from engine.spec.config import SpeculativeConfig
from engine.spec.suffix import SuffixProposer
from tests.engine.scheduler.making import make_request


def proposer(**options: Any) -> SuffixProposer:
    named = {f"suffix_decoding_{name}": value for name, value in options.items()}
    return SuffixProposer(SpeculativeConfig(method="suffix", **named))


def request_of(number: int, prompt: list[int], output: list[int], salt: str = "") -> Request:
    request = make_request(number, num_prompt_tokens=len(prompt), cache_salt=salt)
    request.token_ids[:] = prompt + output
    return request


def teach(suffix: SuffixProposer, *outputs: list[int], salt: str = "") -> None:
    for number, output in enumerate(outputs):
        request = request_of(1000 + number, [7], output, salt)
        suffix.continue_text(request, 1)
        suffix.drop(request)


def test_a_draft_is_as_long_as_the_repetition_behind_it() -> None:
    request = request_of(0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3], [])
    assert proposer().continue_text(request, 9) == [4, 5, 6]
    assert proposer(max_spec_factor=2.0).continue_text(request, 9) == [4, 5, 6, 7, 8, 9]
    assert proposer(max_spec_factor=2.0).continue_text(request, 4) == [4, 5, 6, 7]
    assert proposer(max_tree_depth=2).continue_text(request, 9) == [4, 5]


def test_the_commonest_continuation_wins() -> None:
    prompt = [1, 2, 5, 0, 1, 2, 6, 0, 1, 2, 6, 0, 1, 2]
    assert proposer().continue_text(request_of(0, prompt, []), 1) == [6]


def test_what_followed_a_longer_match_may_be_worth_more_than_what_followed_often() -> None:
    prompt = [1, 2, 3, 4, 9, 8, 6, 5, *[3, 4, 7] * 3, 1, 2, 3, 4]
    assert proposer().continue_text(request_of(0, prompt, []), 9) == [9, 8, 6, 5]


def test_a_repetition_is_drafted_as_far_as_it_is_known() -> None:
    assert proposer().continue_text(request_of(0, [5, 5, 5], []), 9) == [5]
    assert proposer().continue_text(request_of(0, [1, 2, 1, 2], []), 9) == [1, 2]


def test_unlikely_tokens_are_not_drafted() -> None:
    prompt = [8, 1, 2, 3, 9, 1, 2, 4, 7, 1, 2]
    assert proposer(min_token_prob=0.6).continue_text(request_of(0, prompt, []), 2) == []
    assert len(proposer(min_token_prob=0.5).continue_text(request_of(0, prompt, []), 2)) == 2


def test_it_learns_from_finished_outputs() -> None:
    suffix = proposer()
    request = request_of(0, [9], [1, 2, 3])
    assert suffix.continue_text(request, 3) == []
    teach(suffix, [1, 2, 3, 4, 5, 6, 7])
    assert suffix.continue_text(request, 3) == [4, 5, 6]


def test_an_output_ends_where_it_ends() -> None:
    suffix = proposer()
    teach(suffix, [1, 2, 3], [4, 5, 6])
    assert suffix.continue_text(request_of(0, [9], [1, 2, 3]), 3) == []
    assert suffix.continue_text(request_of(1, [9], [1, 2]), 3) == [3]


def test_no_salt_learns_from_another() -> None:
    suffix = proposer()
    teach(suffix, [1, 2, 3, 4, 5], salt="one")
    assert suffix.continue_text(request_of(0, [9], [1, 2, 3], salt="two"), 3) == []
    assert suffix.continue_text(request_of(1, [9], [1, 2, 3], salt="one"), 3) == [4, 5]


def test_prompts_are_not_kept() -> None:
    suffix = proposer()
    done = request_of(0, [1, 2, 3, 4, 5], [6, 7, 8])
    suffix.continue_text(done, 1)
    suffix.drop(done)
    assert suffix.continue_text(request_of(1, [9], [1, 2, 3]), 3) == []


def test_at_least_the_latest_half_is_kept() -> None:
    suffix, counts = proposer(max_cached_requests=10), []
    for number in range(20):
        teach(suffix, [number, 1, 2, 3])
        (corpus,) = suffix._corpora.values()
        counts.append(corpus.count)
    assert counts == [*range(1, 11), *range(6, 11), *range(6, 11)]


def test_outputs_without_anything_behind_a_match_are_not_kept() -> None:
    suffix = proposer()
    teach(suffix, [], [1], [1, 2])
    assert not suffix._corpora


def test_what_is_kept_is_bounded_and_the_oldest_goes() -> None:
    suffix = proposer(max_cached_requests=4)
    teach(suffix, *([10 * i + 1, 10 * i + 2, 10 * i + 3, 10 * i + 4] for i in range(9)))
    (corpus,) = suffix._corpora.values()
    assert 2 <= corpus.count <= 4
    assert suffix.continue_text(request_of(0, [9], [81, 82, 83]), 3) == [84]
    assert suffix.continue_text(request_of(1, [9], [1, 2, 3]), 3) == []
    teach(suffix, [1, 2, 3, 4], [5, 6, 7, 8], salt="other")
    assert sum(corpus.count for corpus in suffix._corpora.values()) <= 4


@given(
    max_count=st.integers(1, 5),
    done=st.lists(
        st.tuples(st.lists(st.integers(1, 5), max_size=5), st.sampled_from(["", "one", "two"])),
        min_size=1,
        max_size=12,
    ),
)
def test_however_few_are_kept_the_last_is_among_them(
    max_count: int, done: list[tuple[list[int], str]]
) -> None:
    suffix = proposer(max_cached_requests=max_count, min_token_prob=0.01)
    for output, salt in done:
        teach(suffix, output, salt=salt)
        assert sum(corpus.count for corpus in suffix._corpora.values()) <= max_count
        if len(output) > 2:  # shorter ones have nothing behind a match
            request = request_of(0, [9], output[:2], salt)
            assert suffix.continue_text(request, 1) != []
            suffix._own.clear()


def test_nothing_is_kept_where_that_is_asked_for() -> None:
    suffix = proposer(max_cached_requests=0)
    teach(suffix, [1, 2, 3, 4])
    assert not suffix._corpora
    assert not suffix._own
