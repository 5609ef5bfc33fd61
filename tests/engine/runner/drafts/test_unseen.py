from __future__ import annotations

import torch

from engine.runner.drafts.unseen import UnseenDrafts
from engine.scheduler.plan import UNSEEN, Chunk


def chunk(row: int, *drafts: int) -> Chunk:
    return Chunk(row, f"of row {row}", 5, 1 + len(drafts), samples=True, draft_token_ids=drafts)


def test_chunks_get_what_was_drafted_for_their_rows() -> None:
    on_device = torch.tensor([[11, 12, 13], [21, 22, 23], [31, 32, 33]])
    drafts = UnseenDrafts([4, 0, 2], on_device)
    on_device.zero_()  # the next drafts take its place
    chunks = [chunk(0, UNSEEN, UNSEEN), chunk(1), chunk(4, UNSEEN, UNSEEN, UNSEEN), chunk(3, 7, 8)]
    seen = drafts.seen(chunks)
    assert [c.draft_token_ids for c in seen] == [(21, 22), (), (11, 12, 13), (7, 8)]
    assert [c.row for c in seen] == [0, 1, 4, 3]
    assert chunks[0].draft_token_ids == (UNSEEN, UNSEEN), "the plan stays as it is"
