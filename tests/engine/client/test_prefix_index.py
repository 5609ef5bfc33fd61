"""The index of prefixes, beside one that remembers everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.client.prefix_index import BOUNDARIES, PrefixIndex, prefixes
from engine.messages import GenerateRequest, Image
from engine.sampling_params import SamplingParams

PROMPTS = [
    [*range(common), *range(5000 + branch, 5000 + branch + own)]
    for common in (0, 64, 300, 1100)
    for branch in (0, 7)
    for own in (70, 400)
]


def asked(number: int) -> GenerateRequest:
    prompt = PROMPTS[number]
    return GenerateRequest(request_id="r", prompt_token_ids=prompt, params=SamplingParams())


prompts = st.integers(0, len(PROMPTS) - 1)
engines = st.sampled_from(["a", "b", "c"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), engines, prompts), st.tuples(st.just("forget"), engines, prompts)
    )
)


def common(one: list[int], other: list[int]) -> int:
    """The longest boundary up to which two prompts are the same."""
    return max((n for n in BOUNDARIES if len(one) >= n and one[:n] == other[:n]), default=0)


@given(steps)
def test_it_finds_the_longest_prefix_of_each_engine(steps: list[tuple[str, str, int]]) -> None:
    index, known = PrefixIndex(), dict[str, list[int]]()
    for step, engine, number in steps:
        if step == "add":
            index.add(engine, prefixes(asked(number)), 1 << 20)
            known.setdefault(engine, []).append(number)
        else:
            index.forget(engine)
            known.pop(engine, None)
        for wanted, prompt in enumerate(PROMPTS):
            longest = {
                name: max(common(prompt, PROMPTS[one]) for one in sent)
                for name, sent in known.items()
            }
            expected = {name: length for name, length in longest.items() if length}
            assert index.find(prefixes(asked(wanted))) == expected


@given(steps, st.integers(3, 60), st.integers(100, 4000))
def test_it_is_bounded(steps: list[tuple[str, str, int]], max_entries: int, capacity: int) -> None:
    index = PrefixIndex(max_entries)
    for step, engine, number in steps:
        if step == "add":
            index.add(engine, prefixes(asked(number)), capacity)
        else:
            index.forget(engine)
        assert len(index) <= max_entries
        assert all(tokens <= capacity for tokens in index._num_tokens.values())
        held = {key for sent in index._sent.values() for key in sent}
        assert index._masks.keys() == held


def test_prompts_that_differ_early_have_nothing_in_common() -> None:
    one, other = [1] * 100, [1] * 63 + [2] * 37
    found = [
        prefixes(GenerateRequest(request_id="r", prompt_token_ids=ids, params=SamplingParams()))
        for ids in (one, other)
    ]
    assert [len(each) for each in found] == [1, 1]
    assert found[0][0] != found[1][0]


def test_prompts_whose_pictures_differ_have_nothing_in_common_behind_them() -> None:
    found = []
    for digest in (b"a" * 32, b"b" * 32):
        image = Image(offset=80, num_tokens=9, height=1, width=1, digest=digest)
        request = GenerateRequest(
            request_id="r", prompt_token_ids=[1] * 200, params=SamplingParams(), images=[image]
        )
        found.append(prefixes(request))
    assert [one == other for one, other in zip(*found, strict=True)] == [True, False]
