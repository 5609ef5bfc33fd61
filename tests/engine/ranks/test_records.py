"""What rank 0 plans is what every rank runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.runner.ranks import records
from engine.runner.ranks.channel import Reader, Ring, Writer
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import Admission, Chunk, Encoding, Seen, StepPlan, TokenMask

SMALL = 4096
ids = st.integers(0, 2**31 - 1)
rows = st.integers(0, 511)


def lists(*parts: Any) -> Any:
    return st.lists(st.tuples(*parts), max_size=4)


params = st.builds(
    SamplingParams,
    temperature=st.floats(0, 2),
    top_p=st.floats(0.1, 1),
    seed=st.none() | st.integers(0, 2**63 - 1),
    stop_token_ids=st.none() | st.lists(ids, max_size=3),
    logprobs=st.none() | st.integers(0, 5),
)
admissions = st.builds(
    Admission,
    row=rows,
    request_id=st.text(max_size=8),
    token_ids=st.lists(ids, min_size=1, max_size=40),
    num_prompt_tokens=ids,
    block_ids=st.lists(st.lists(st.integers(-1, 1 << 20), max_size=5), max_size=3),
    params=params,
    adapter=st.text(max_size=8),
    grids=lists(ids, ids, ids),
)
blocks = st.lists(ids, max_size=3)
encodings = st.builds(Encoding, height=ids, width=ids, pixels=st.binary(max_size=40), blocks=blocks)
seen = st.builds(Seen, chunk=rows, runs=lists(ids, ids), first=ids, blocks=blocks)
chunks = st.builds(
    Chunk,
    row=rows,
    request_id=st.text(max_size=8),
    num_computed_tokens=ids,
    num_scheduled_tokens=ids,
    samples=st.booleans(),
    constrained=st.booleans(),
    draft_token_ids=st.lists(st.integers(-1, 1 << 20), max_size=4).map(tuple),
)
plans = st.builds(
    StepPlan,
    step_id=ids,
    released_rows=st.lists(rows, max_size=4),
    swap_outs=lists(ids, ids),
    swap_ins=lists(ids, ids),
    admissions=st.lists(admissions, max_size=3),
    new_blocks=lists(rows, rows, st.lists(ids, max_size=4)),
    block_copies=lists(ids, ids, ids),
    encodings=st.lists(encodings, max_size=2),
    chunks=st.lists(chunks, max_size=4),
    seen=st.lists(seen, max_size=2),
    keeps_features=st.booleans(),
)
all_records = st.one_of(
    plans.map(records.Forward),
    st.just(records.Sample.of(None)),
    st.just(records.Collect()),
    st.builds(records.DropAdapter, name=st.text(max_size=8)),
    st.builds(
        records.Draft, asked=lists(rows, ids), num_tokens=st.integers(0, 8), wait=st.booleans()
    ),
)


def channel(num_readers: int, capacity: int) -> tuple[Writer, list[Reader]]:
    memory = Ring.create(capacity)
    events = [os.eventfd(0) for _ in range(num_readers)]
    readers = [Reader(Ring(memory, capacity), i, event) for i, event in enumerate(events)]
    writer = Writer(Ring(memory, capacity), events)
    os.close(memory)
    return writer, readers


@given(st.lists(all_records, min_size=1, max_size=12), st.integers(1, 3))
def test_every_reader_gets_every_record(sent: Sequence[records.Record], num_readers: int) -> None:
    """In order, also where a record is larger than the memory or goes around its end."""
    writer, readers = channel(num_readers, SMALL)
    got: list[list[records.Record]] = [[] for _ in readers]

    def read(index: int) -> None:
        for _ in range(len(sent) + 2):
            got[index].append(records.decode(readers[index].receive()))

    threads = [threading.Thread(target=read, args=(index,)) for index in range(num_readers)]
    for thread in threads:
        thread.start()
    large = records.Draft([(i, i) for i in range(3000)], 1, False)
    for record in (*sent, large, records.Collect()):
        writer.send(records.encode(record), wake=not isinstance(record, records.Collect))
    writer.send(b"", wake=True)  # for collections at the end, which wake nobody
    for thread in threads:
        thread.join(30)
    assert got == [[*sent, large, records.Collect()]] * num_readers
    for reader in readers:
        os.close(reader._event)


@pytest.mark.parametrize("num_rows", [1, 5])
def test_a_mask(num_rows: int) -> None:
    words = np.arange(num_rows * 7, dtype=np.int32).reshape(num_rows, 7)
    mask = TokenMask([2 * i for i in range(num_rows)], words)
    record = records.decode(records.encode(records.Sample.of(mask)))
    assert isinstance(record, records.Sample)
    assert record.mask is not None
    assert record.mask.chunk_indices == mask.chunk_indices
    assert (record.mask.bitmask == words).all()
