from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.cache.groups import (
    LayerGroups,
    group_layers,
    kinds_of,
    max_request_tokens,
    peak_blocks,
    single_group,
)

GEMMA3_27B = [None if (layer + 1) % 6 == 0 else 1024 for layer in range(62)]


def layers_of(groups: LayerGroups) -> list[list[int]]:
    layers: list[list[int]] = [[] for _ in groups.windows]
    for layer, (group, number) in enumerate(groups.places):
        assert number == len(layers[group])
        layers[group].append(layer)
    return layers


class TestGroupLayers:
    def test_a_model_without_windows_has_one_group(self) -> None:
        assert group_layers([None] * 5, 4096) == single_group(5)
        assert single_group(5).num_layers_each == 5

    def test_one_window_everywhere_is_one_group_as_well(self) -> None:
        assert group_layers([64] * 3, 4096) == single_group(3, 64)

    def test_a_window_as_long_as_any_request_is_none(self) -> None:
        assert group_layers([4096, None], 4096) == single_group(2)

    def test_layers_that_alternate_make_two_groups(self) -> None:
        groups = group_layers([64, None] * 3, 4096)
        assert groups.windows == (None, 64)
        assert layers_of(groups) == [[1, 3, 5], [0, 2, 4]]

    def test_five_to_one_makes_groups_of_as_many_as_see_everything(self) -> None:
        groups = group_layers(GEMMA3_27B, 8192)
        assert groups.windows == (None, *[1024] * 6)
        assert groups.num_layers_each == 10
        assert [len(layers) for layers in layers_of(groups)] == [10] * 6 + [2]

    def test_a_few_windows_among_many_layers_do_not_pad_them_all(self) -> None:
        groups = group_layers([None] * 21 + [2000] * 7, 4096)
        assert groups.windows == (None, None, None, 2000)

    def test_what_lies_beside_each_block_speaks_for_fewer_of_them(self) -> None:
        few = group_layers(GEMMA3_27B, 8192, more_layers=60.0)
        assert few.windows == (None, 1024, 1024)
        assert group_layers(GEMMA3_27B, 1200, more_layers=500.0) == single_group(62)

    def test_groups_that_save_little_are_not_made(self) -> None:
        assert group_layers([None, 4000], 4096) == single_group(2)

    def test_there_are_eight_groups_at_most(self) -> None:
        assert len(group_layers([None] + [64] * 7, 100_000).windows) == 8
        more = group_layers([None] + [64] * 20, 100_000)
        assert more.windows == (None, *[64] * 7)
        assert more.num_layers_each == 3

    @given(
        windows=st.lists(st.sampled_from([None, 4, 64, 1000]), min_size=1, max_size=40),
        max_model_len=st.integers(1, 4096),
    )
    def test_each_layer_has_a_place_of_its_own_that_sees_enough(
        self, windows: list[int | None], max_model_len: int
    ) -> None:
        groups = group_layers(windows, max_model_len)
        assert len(set(groups.places)) == len(windows)
        assert sorted(groups.windows, key=lambda w: -(w or 9999)) == list(groups.windows)
        layers_of(groups)
        for window, (group, _) in zip(windows, groups.places, strict=True):
            reach = groups.windows[group]
            assert reach is None or reach >= min(window or max_model_len, max_model_len)


class TestBlocks:
    def test_what_a_request_of_gemma_3_holds_at_8k(self) -> None:
        """Blocks of ten layers; all 62 together were 6.2 times 512 of them."""
        kinds = group_layers(GEMMA3_27B, 8192).kinds
        assert peak_blocks(kinds, 8192, 16, 0) == 512 + 6 * 66
        assert peak_blocks(kinds, 8192, 16, 2 * 2048) == 512 + 6 * 322

    def test_one_group_that_sees_all_is_limited_by_the_blocks_alone(self) -> None:
        assert max_request_tokens(kinds_of([None]), 9, 4, 100) == 36

    def test_windows_alone_set_no_limit_once_they_fit(self) -> None:
        kinds = kinds_of([8])
        need = peak_blocks(kinds, 10_000, 4, 6)
        assert max_request_tokens(kinds, need, 4, 6) is None
        assert max_request_tokens(kinds, need - 1, 4, 6) == (need - 1) * 4

    @given(
        windows=st.lists(st.sampled_from([None, 1, 5, 30]), min_size=1, max_size=4),
        num_blocks=st.integers(1, 80),
        block_size=st.sampled_from([1, 4]),
        in_flight=st.integers(1, 40),
    )
    def test_the_limit_is_the_last_that_fits(
        self, windows: list[int | None], num_blocks: int, block_size: int, in_flight: int
    ) -> None:
        kinds = kinds_of(windows)
        limit = max_request_tokens(kinds, num_blocks, block_size, in_flight)
        for tokens, fits in [(500_000, limit is None)] + (
            [] if limit is None else [(limit, True), (limit + 1, False)]
        ):
            assert (peak_blocks(kinds, tokens, block_size, in_flight) <= num_blocks) == fits
