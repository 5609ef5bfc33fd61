from __future__ import annotations

from gateway.peers.routed_ids import mint, new_worker_id, worker_of


def test_an_id_names_its_worker() -> None:
    worker_id = new_worker_id()
    ids = {mint("stream", worker_id) for _ in range(1000)}
    assert len(ids) == 1000
    assert {worker_of(name) for name in ids} == {worker_id}


def test_other_ids_name_none() -> None:
    for name in ("", "stream_x", "stream_" + "g" * 52, mint("resp", new_worker_id()) + "0"):
        assert worker_of(name) is None
