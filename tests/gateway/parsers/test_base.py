from __future__ import annotations

from gateway.parsers.base import call_begins, call_goes_on, joined_pieces


def test_only_neighbours_of_the_same_call_are_joined() -> None:
    joined = joined_pieces(
        [
            call_begins(0, "f"),
            call_goes_on(0, "{"),
            call_goes_on(0, "}"),
            call_begins(1, "g"),
            call_goes_on(1, "{}"),
        ]
    )
    assert [piece.index for piece in joined] == [0, 1]
    assert [piece.function.name for piece in joined] == ["f", "g"]
    assert [piece.function.arguments for piece in joined] == ["{}", "{}"]
    assert joined_pieces([]) == []
