from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.demo.data.text_blocks import phrase_list, rows, word_list

PHRASE = st.sampled_from(["a", "What is {x}?", "don't", 'say "{y}"', "{}", "×", "1. no"])


def test_words_are_parted_by_any_white_space() -> None:
    assert word_list("\n  red green\n\tblue\n") == ["red", "green", "blue"]


def test_phrases_are_parted_by_bars_and_line_ends() -> None:
    block = """
        How are you? | What's up?
        Fine, {x}.
    """
    assert phrase_list(block) == ("How are you?", "What's up?", "Fine, {x}.")


def test_rows_are_lines_and_columns() -> None:
    assert rows("\nFrance|Paris\nthe Congo | Kinshasa\n") == [
        ("France", "Paris"),
        ("the Congo", "Kinshasa"),
    ]


def test_a_line_that_starts_with_a_bar_goes_on_with_the_row_above() -> None:
    assert rows("""
        {"t": {t}}
        | It is {t} degrees.
        b | c
    """) == [('{"t": {t}}', "It is {t} degrees."), ("b", "c")]


@given(
    st.lists(st.tuples(PHRASE, PHRASE), min_size=1, max_size=8),
    st.sampled_from(["|", " | ", "\n  | "]),
)
def test_rows_come_back_however_they_are_written(pairs: list[tuple[str, str]], bar: str) -> None:
    assert rows("\n".join(bar.join(pair) for pair in pairs)) == pairs


@given(st.lists(PHRASE, min_size=1, max_size=12), st.data())
def test_phrases_come_back_however_they_are_laid_out(
    phrases: list[str], data: st.DataObject
) -> None:
    block = phrases[0]
    for phrase in phrases[1:]:
        block += data.draw(st.sampled_from([" | ", "\n", "\n    "])) + phrase
    assert phrase_list(f"\n{block}\n") == tuple(phrases)
