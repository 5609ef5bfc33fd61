"""Faults of settings and bodies name the field and what would be right."""

from __future__ import annotations

from difflib import SequenceMatcher, get_close_matches
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.field_hints import choices, closest, explain, hint, names

Color = Literal["red", "green"]


class Circle(msgspec.Struct, tag="circle", forbid_unknown_fields=True):
    radius: Annotated[int, msgspec.Meta(ge=1)]
    color: Color | None = None


class Square(msgspec.Struct, tag="square", forbid_unknown_fields=True):
    sides: tuple[int, ...] = ()
    level: Literal[1, 2] = 1


class Drawing(msgspec.Struct, forbid_unknown_fields=True, rename={"kind_": "kind"}):
    name: str
    shapes: list[Circle | Square] = []
    layers: dict[str, Circle] = {}
    kind_: Annotated[Color, msgspec.Meta(description="of the paper")] = "red"
    below: Drawing | None = None


class Colored(msgspec.Struct):
    color: Color


CIRCLE = {"type": "circle", "radius": 1}


def fault(document: Any, kind: Any = Drawing) -> str:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(document, kind)
    return explain(caught.value, kind)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "name is missing"),
        ({"nam": "x"}, "nam is unknown; did you mean name?"),
        ({"zzz": "x"}, "zzz is unknown; known are below, kind, layers, name, shapes"),
        ({"name": 3}, "name: Expected `str`, got `int`"),
        ({"name": "x", "kind": "blue"}, "kind: Invalid enum value 'blue'; use one of green, red"),
        ({"name": "x", "kind": 3}, "kind: Expected `str`, got `int`; use one of green, red"),
        (
            {"name": "x", "shapes": [CIRCLE, {"type": "oval"}]},
            "shapes[1].type: Invalid value 'oval'; use one of circle, square",
        ),
        (
            {"name": "x", "shapes": [CIRCLE | {"color": "blue"}]},
            "shapes[0].color: Invalid enum value 'blue'; use one of green, red",
        ),
        (
            {"name": "x", "shapes": [{"type": "square", "level": 3}]},
            "shapes[0].level: Invalid enum value 3; use one of 1, 2",
        ),
        (
            {"name": "x", "layers": {"top": {"type": "circle", "radius": 1, "colour": "red"}}},
            "layers[...].colour is unknown; did you mean color?",
        ),
        (
            {"name": "x", "below": {"name": "y", "below": {"name": "z", "kind": ""}}},
            "below.below.kind: Invalid enum value ''; use one of green, red",
        ),
        ({"name": "x", "shapes": [{"type": "circle"}]}, "shapes[0].radius is missing"),
        (
            {"name": "x", "shapes": [{"type": "circle", "radius": 0}]},
            "shapes[0].radius: Expected `int` >= 1",
        ),
        (3, "Expected `object`, got `int`"),
    ],
)
def test_faults(document: Any, message: str) -> None:
    assert fault(document) == message


def test_the_engines_own_settings() -> None:
    assert fault({"model": "x", "max_modellen": 1}, EngineConfig) == (
        "max_modellen is unknown; did you mean max_model_len?"
    )
    speculation = {"method": "guessing", "num_speculative_tokens": 1}
    message = fault({"model": "x", "speculative_config": speculation}, EngineConfig)
    assert message.startswith(
        "speculative_config.method: Invalid enum value 'guessing'; use one of"
    )
    assert "eagle3" in message


def test_where_anything_may_stand_nothing_is_said() -> None:
    assert choices(Drawing, "name") == []
    assert choices(Drawing, "shapes") == []
    assert choices(Drawing, "nowhere.at[3].all") == []
    assert names(Drawing, "name") == []


def test_names_are_as_they_are_written() -> None:
    assert names(Drawing, "") == ["name", "shapes", "layers", "kind", "below"]
    assert set(names(Drawing, "shapes[7]")) == {"radius", "color", "sides", "level"}


def test_a_hint_is_the_nearest_word_or_all_of_them() -> None:
    assert hint("nmae", ["name", "age"]) == "; did you mean name?"
    assert hint("x", ["name", "age"]) == "; known are age, name"
    assert hint("x", map(str, range(100))) == ""
    assert "known are" in hint(100 * "name", [99 * "name"]), "a long word is not compared"


WORDS = st.text(alphabet="abc_", max_size=12)


@given(WORDS, st.lists(WORDS, max_size=8))
def test_the_closest_word_is_the_one_that_difflib_finds(word: str, names: list[str]) -> None:
    assert closest(word, names) == next(iter(get_close_matches(word, names, n=1)), None)


@given(st.data())
def test_a_mistyped_setting_is_found_as_difflib_does(data: st.DataObject) -> None:
    settings = names(EngineConfig, "")
    word = list(data.draw(st.sampled_from(settings)))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(word)))
        word[place : place + data.draw(st.integers(0, 2))] = data.draw(
            st.text("aemnt_", max_size=2)
        )
    wrong = "".join(word)
    assert closest(wrong, settings) == next(iter(get_close_matches(wrong, settings, n=1)), None)


def test_few_names_are_compared_at_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may send many wrong fields; comparing all names takes half a millisecond."""
    num_compared = 0

    class Counting(SequenceMatcher[str]):
        def ratio(self) -> float:
            nonlocal num_compared
            num_compared += 1
            return super().ratio()

    monkeypatch.setattr("engine.field_hints.difflib.SequenceMatcher", Counting)
    settings = names(EngineConfig, "")
    assert closest("max_modellen", settings) == "max_model_len"
    assert closest("user_defined_thing", settings) is None
    assert 0 < num_compared <= 4 < len(settings)


@given(st.text(max_size=30))
def test_any_path_may_be_asked_about(path: str) -> None:
    """Bodies of strangers decide what is in it."""
    choices(Drawing, path)
    names(Drawing, path)


def test_a_choice_that_is_missing_is_named_with_what_there_is() -> None:
    assert fault({}, Colored) == "color is missing; use one of green, red"
