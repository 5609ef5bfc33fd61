from __future__ import annotations

import time
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import RequestOutput
from engine.text.detokenize import Detokenizer, StopStrings
from engine.text.tokenizer import Tokenizer
from tests.engine import toys

TOKENIZER = Tokenizer(toys.byte_level(), eos_token_ids=frozenset([2]))
BYTE_IDS = {data[0]: i for i, data in enumerate(TOKENIZER.vocabulary()) if len(data) == 1}


def ids(text: str) -> list[int]:
    """One token per byte."""
    return [BYTE_IDS[byte] for byte in text.encode()]


def by_hand(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The definition: the first end wins, then the longest."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            hit = max(hits, key=len)
            return (text[:end] if include else text[: end - len(hit)]), hit
    return text, None


@given(
    chunks=st.lists(st.text("ab", max_size=5), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=6), max_size=4),
    include=st.booleans(),
)
def test_stop_strings_do_not_depend_on_the_split(
    chunks: list[str], stops: list[str], include: bool
) -> None:
    detokenizer = Detokenizer(TOKENIZER, stop=stops, include_stop_str_in_output=include)
    text = "".join([detokenizer.push(ids(chunk)) for chunk in chunks]) + detokenizer.finish()
    assert (text, detokenizer.stopped) == by_hand("".join(chunks), stops, include)


@given(data=st.data(), include=st.booleans())
def test_pieces_of_any_length_and_stop_strings_that_nearly_come(
    data: st.DataObject, include: bool
) -> None:
    """A token may bring the ends of several stop strings, and most of one that then does not
    come."""
    stops = data.draw(st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=3))
    beginnings = [stop[:end] for stop in stops for end in range(len(stop) + 1)]
    pieces = data.draw(st.lists(st.sampled_from([*beginnings, "a", "b", "c"]), max_size=8))
    found = StopStrings(stops, include_in_output=include)
    text = "".join([found.push(piece) for piece in pieces])
    held = found.finish()
    assert (text + held, found.stopped) == by_hand("".join(pieces), stops, include)
    prefixes = [stop[:n] for stop in stops for n in range(len(stop))]
    assert held == ("" if found.stopped else max(filter((text + held).endswith, prefixes), key=len))


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("aabaaac", "aabaabaaac"),
        ("aabaab", "aabaaabaab"),
        ("abacabad", "abacabacabad"),
        ("aaab", "aaaaaab"),
    ],
)
def test_a_stop_string_that_begins_within_one_that_did_not_come(stop: str, text: str) -> None:
    found = StopStrings([stop])
    assert found.push(text) == text.removesuffix(stop)
    assert found.stopped == stop


def test_the_first_to_end_wins_wherever_it_stands_in_a_piece() -> None:
    found = StopStrings(["wxyz", "xy", "a"])
    assert (found.push("-wxyza"), found.stopped) == ("-w", "xy")


@pytest.mark.parametrize("split", [False, True])
def test_of_those_that_end_together_the_longest_wins(split: bool) -> None:
    stops = ["b" * n + "a" for n in range(9)]
    found = StopStrings(stops)
    text = "-" + stops[5]
    assert "".join([found.push(piece) for piece in (text if split else [text])]) == "-"
    assert found.stopped == stops[5]


@given(text=st.text("ab", max_size=20), stops=st.lists(st.text("ab", min_size=1, max_size=6)))
def test_no_more_is_held_back_than_must_be(text: str, stops: list[str]) -> None:
    detokenizer = Detokenizer(TOKENIZER, stop=stops)
    emitted = ""
    for end, char in enumerate(text, 1):
        emitted += detokenizer.push(ids(char))
        if detokenizer.stopped is not None:
            return
        prefixes = {stop[:n] for stop in stops for n in range(len(stop))}
        held = max((len(p) for p in prefixes if text[:end].endswith(p)), default=0)
        assert emitted == text[: end - held]


@given(chunks=st.lists(st.lists(st.integers(0, TOKENIZER.vocab_size), max_size=6), max_size=8))
def test_without_stops_the_text_is_the_tokenizers(chunks: list[list[int]]) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    parts = [detokenizer.push(chunk) for chunk in chunks]
    assert "".join(parts) + detokenizer.finish() == TOKENIZER.decode(list(chain(*chunks)))


def test_half_a_character_is_never_emitted() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.push([i]) for i in ids("a😀b")] == ["a", "", "", "", "😀", "b"]


def test_a_stop_string_may_be_more_than_ascii() -> None:
    detokenizer = Detokenizer(TOKENIZER, stop=["好世"])
    parts = [detokenizer.push([i]) for i in ids("你好世界")]
    assert ("".join(parts), detokenizer.stopped) == ("你", "好世")
    assert detokenizer.push(ids("more")) == detokenizer.finish() == ""


def test_a_cut_character_at_the_end_is_replaced_and_held_text_comes_out() -> None:
    detokenizer = Detokenizer(TOKENIZER, stop=["xyz"])
    assert detokenizer.push(ids("axy")) == "a"
    assert detokenizer.push(ids("é")[:1]) == ""
    assert detokenizer.finish() == "xy�"


def test_min_tokens_shields_the_first_tokens_from_stop_strings() -> None:
    detokenizer = Detokenizer(TOKENIZER, stop=["ab"], min_tokens=3)
    assert detokenizer.push(ids("ab")) == "ab"
    assert detokenizer.push(ids("abc")) == "a" + "bc"
    assert detokenizer.push(ids("xabc")) == "x"
    assert detokenizer.stopped == "ab"


@pytest.mark.parametrize("include", [False, True])
class TestPushOutput:
    def test_a_stop_token_is_no_text(self, include: bool) -> None:
        detokenizer = Detokenizer(TOKENIZER, include_stop_str_in_output=include)
        (dot,) = ids(".")
        assert detokenizer.push_output(RequestOutput("r", ids("hi"))) == "hi"
        text = detokenizer.push_output(RequestOutput("r", [*ids("!?!"), dot], "stop", dot))
        assert text == ("!?!." if include else "!?!")

    def test_eos_is_no_text(self, include: bool) -> None:
        detokenizer = Detokenizer(
            TOKENIZER, include_stop_str_in_output=include, skip_special_tokens=False
        )
        text = detokenizer.push_output(RequestOutput("r", [*ids("abc"), 2], "stop"))
        assert text == ("abc</s>" if include else "abc")

    def test_an_end_without_a_stop_token_keeps_its_last_token(self, include: bool) -> None:
        """A grammar that is complete ends a request on an ordinary token."""
        detokenizer = Detokenizer(TOKENIZER, include_stop_str_in_output=include)
        assert detokenizer.push_output(RequestOutput("r", ids("{}"), "stop")) == "{}"

    def test_a_stop_without_a_token_takes_none_away(self, include: bool) -> None:
        """The token that stopped it may have come in an output before."""
        detokenizer = Detokenizer(TOKENIZER, include_stop_str_in_output=include)
        assert detokenizer.push_output(RequestOutput("r", ids("hi"))) == "hi"
        assert detokenizer.push_output(RequestOutput("r", [], "stop", 2)) == ""

    def test_eos_that_stops_nothing_is_text(self, include: bool) -> None:
        """With ``ignore_eos`` a request may end by its length on one."""
        detokenizer = Detokenizer(
            TOKENIZER, include_stop_str_in_output=include, skip_special_tokens=False
        )
        assert detokenizer.push_output(RequestOutput("r", [2, *ids("a")])) == "</s>a"
        assert detokenizer.push_output(RequestOutput("r", [2], "length")) == "</s>"

    def test_the_end_flushes(self, include: bool) -> None:
        detokenizer = Detokenizer(TOKENIZER, stop=["xy"], include_stop_str_in_output=include)
        assert detokenizer.push_output(RequestOutput("r", ids("ax"))) == "a"
        assert detokenizer.push_output(RequestOutput("r", [], "length")) == "x"


def test_special_tokens_show_only_when_asked_for() -> None:
    assert Detokenizer(TOKENIZER).push([1, *ids("a")]) == "a"
    assert Detokenizer(TOKENIZER, skip_special_tokens=False).push([1, *ids("a")]) == "<s>a"


def test_tokens_count_up_to_the_stop_string() -> None:
    plain, stopping = Detokenizer(TOKENIZER), Detokenizer(TOKENIZER, stop=["bc"])
    for detokenizer in (plain, stopping):
        detokenizer.push(ids("a"))
        detokenizer.push(ids("bcde"))
    assert (plain.num_tokens, stopping.num_tokens) == (5, 3)


def test_it_is_settled_unless_a_character_or_a_stop_string_is_under_way() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    first, second = ids("é")
    detokenizer.push(ids("a"))
    assert detokenizer.is_settled
    detokenizer.push([first])
    assert not detokenizer.is_settled
    detokenizer.push([second])
    assert detokenizer.is_settled
    assert not Detokenizer(TOKENIZER, stop=["a"]).is_settled


def test_time_per_token_does_not_grow() -> None:
    """A hostile stop string and text: every character extends the match, then breaks it."""
    detokenizer = Detokenizer(TOKENIZER, stop=["a" * 2000 + "b"])
    (a,) = ids("a")

    def seconds() -> float:
        start = time.thread_time()
        for _ in range(4000):
            detokenizer.push([a])
        return time.thread_time() - start

    first = min(seconds(), seconds())
    assert min(seconds() for _ in range(3)) < 5 * first
