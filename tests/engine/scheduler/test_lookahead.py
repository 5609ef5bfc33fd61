from __future__ import annotations

import pytest

from engine.cache.groups import FullAttention
from engine.cache.manager import CacheManager, create_cache_manager
from engine.cache.table import BlockTable, PrefixHit
from engine.config import EngineConfig
from engine.scheduler.drafts import Lookahead

BLOCK = 4


def cache(num_blocks: int = 10) -> CacheManager:
    config = EngineConfig(model="toy", block_size=BLOCK, enable_prefix_caching=False)
    return create_cache_manager(config, num_blocks, 0, (FullAttention(),))


def admitted(manager: CacheManager, num_tokens: int = 0) -> BlockTable:
    table = BlockTable({})
    manager.admit(table, PrefixHit(), num_tokens)
    return table


@pytest.mark.parametrize(
    ("end", "num_logical_blocks"), [(3, 2), (5, 2), (6, 3), (16, 5), (18, 5), (20, 5)]
)
def test_there_are_slots_to_draft_behind_a_step_up_to_the_longest_request(
    end: int, num_logical_blocks: int
) -> None:
    manager = cache()
    assert Lookahead(manager, 3, 18).num_logical_blocks(BlockTable({}), end) == num_logical_blocks


def test_nobody_waits_for_them() -> None:
    manager = cache(num_blocks=2)
    table = admitted(manager)
    lookahead = Lookahead(manager, 3, 100)
    assert lookahead.num_logical_blocks(table, 4) == 2
    assert lookahead.num_logical_blocks(table, 4, num_missing=1) == 1, (
        "another request needs the second"
    )
    manager.grow(table, 2)
    assert lookahead.num_logical_blocks(table, 8) == 2


def test_a_request_has_them_from_the_start() -> None:
    manager = cache()
    lookahead, tables = Lookahead(manager, 3, 100), list[BlockTable]()
    for end in (4, 5, 6):
        tables.append(admitted(manager, end))
        lookahead.extend(tables[-1], end)
    assert [table.num_logical_blocks for table in tables] == [2, 2, 3]


def test_who_does_not_draft_needs_none() -> None:
    manager = cache()
    assert [Lookahead(manager, 0, 0).num_logical_blocks(BlockTable({}), end) for end in (4, 5)] == [
        1,
        2,
    ]


def test_while_no_drafts_are_expected_there_is_none() -> None:
    lookahead, table = Lookahead(cache(), 3, 100), BlockTable({})
    lookahead.expect_drafts(expected=False)
    assert lookahead.num_logical_blocks(table, 4) == 1
    assert lookahead.num_tokens == 0
    lookahead.expect_drafts(expected=True)
    assert lookahead.num_logical_blocks(table, 4) == 2
