from __future__ import annotations

import time

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation.graphemes import GraphemeGate

FAMILY = "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}"
THUMB = "\N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}"
FLAGS = "\N{REGIONAL INDICATOR SYMBOL LETTER N}\N{REGIONAL INDICATOR SYMBOL LETTER O}" * 2
HEART = "\N{HEAVY BLACK HEART}\ufe0f"
HINDI = "\u0928\u092e\u0938\u094d\u0924\u0947"


def clusters(text: str) -> list[str]:
    return list(regex.findall(r"\X", text))


@pytest.mark.parametrize("text", [FAMILY, THUMB, FLAGS, HEART, HINDI])
def test_no_piece_ends_within_a_cluster(text: str) -> None:
    whole = f"a{text}b{text}"
    gate = GraphemeGate()
    pieces = [*map(gate.push, whole), gate.finish()]
    assert "".join(pieces) == whole
    ends, seen = set(), 0
    for cluster in clusters(whole):
        seen += len(cluster)
        ends.add(seen)
    said = 0
    for piece in filter(None, pieces):
        said += len(piece)
        assert said in ends


@pytest.mark.parametrize("text", ["Hello", "naïve", "中文", "Привет", "한글", "", "x\n"])
def test_most_text_passes_at_once(text: str) -> None:
    assert GraphemeGate().push(text) == text


@given(pieces=st.lists(st.text(alphabet=f"ab é{FAMILY}{THUMB}{FLAGS}{HINDI}\u0301"), max_size=8))
def test_nothing_is_lost(pieces: list[str]) -> None:
    gate = GraphemeGate()
    assert "".join(map(gate.push, pieces)) + gate.finish() == "".join(pieces)


def test_marks_without_end_are_not_kept_for_ever() -> None:
    gate = GraphemeGate()
    started = time.thread_time()
    said = "".join(gate.push("\u0301") for _ in range(10_000))
    assert len(said) > 9_000
    assert time.thread_time() - started < 5
