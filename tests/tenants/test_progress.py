"""What a process counted is found after its death, to the token."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenants.journal import Journal
from tenants.limits import Price
from tenants.progress import SLOT_BYTES, Progress, Running, read
from tenants.types import UsageEvent
from tests.tenants.full_disk import no_file_above
from tests.tenants.samples import make_event

ROOT = Path(__file__).parents[2]
PRICE = Price(prompt=3_000_000, cached=1_000_000, completion=5_000_000)


def opening(**changes: Any) -> UsageEvent:
    counts = {"prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 0}
    return make_event(status="error", **(counts | changes))


def left(progress: Progress) -> dict[object, UsageEvent]:
    with progress.path.open("rb") as file:
        return {event.request_id: event for event in read(file)}


def count(slot: Running | None, generated: int, cached: int = 0) -> None:
    assert slot is not None
    slot.counts[0], slot.counts[1] = generated, cached


def test_what_runs_is_there_and_what_has_ended_is_not(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    one, two, three = opening(), opening(), opening()
    slots = [progress.begin(event, PRICE) for event in (one, two, three)]
    assert all(slots)
    count(slots[0], 7, 4)
    count(slots[1], 1)
    slots[1].end()  # type: ignore[union-attr]
    slots[1].end()  # type: ignore[union-attr]
    found = left(progress)
    assert set(found) == {one.request_id, three.request_id}
    assert found[one.request_id] == msgspec.structs.replace(
        one, cached_tokens=4, completion_tokens=7, cost_micro=(10 - 4) * 3 + 4 + 7 * 5
    )
    # It had generated nothing: nothing is charged.
    nothing = found[three.request_id]
    assert (nothing.prompt_tokens, nothing.completion_tokens, nothing.cost_micro) == (0, 0, 0)
    slots[0].end()  # type: ignore[union-attr]
    slots[2].end()  # type: ignore[union-attr]
    progress.close()
    progress.close()
    assert not list(tmp_path.iterdir())


def test_a_slot_that_is_used_again_begins_at_zero(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    first = progress.begin(opening(), PRICE)
    count(first, 7, 4)
    first.end()  # type: ignore[union-attr]
    event = opening()
    slot = progress.begin(event, PRICE)
    assert slot is not None
    assert list(slot.counts) == [0, 0]
    slot.counts[0] = 1
    assert left(progress)[event.request_id].cached_tokens == 0
    slot.end()
    progress.close()


def test_a_file_that_was_removed_is_no_reason_not_to_close(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.path.unlink()
    progress.close()
    assert progress.file.closed


def test_what_nobody_could_settle_stays_for_the_next_process(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    settled, unsettled = opening(), opening()
    slots = [journal.begin(event, PRICE) for event in (settled, unsettled)]
    for slot in slots:
        count(slot, 7)
    slots[0].end()  # type: ignore[union-attr]
    journal.close()
    slots[1].end()  # type: ignore[union-attr]  # too late: the file may be another's by now
    after = Journal(tmp_path)
    (found,) = after.adopt()
    assert (found.request_id, found.completion_tokens) == (unsettled.request_id, 7)
    after.clear()
    after.close()
    assert not list(tmp_path.iterdir())


def test_a_name_that_does_not_fit_is_left_to_the_lease(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    names = ["m" * length for length in range(SLOT_BYTES)]
    events = [opening(model=name) for name in names]
    fit = [progress.begin(event, PRICE) is not None for event in events]
    num_fit = fit.index(False)
    assert not any(fit[num_fit:])
    found = left(progress)
    assert [found[event.request_id].model for event in events[:num_fit]] == names[:num_fit]
    assert len(found) == num_fit
    slot = progress.memory[(num_fit - 1) * SLOT_BYTES : num_fit * SLOT_BYTES]
    assert slot.endswith(b"}"), "the longest fills its slot to the last byte"
    progress.close()


def test_a_full_disk_costs_the_count_and_not_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    progress = Progress(tmp_path)
    status = progress.path.stat()
    assert status.st_blocks * 512 >= status.st_size, "no holes, in which a store would be SIGBUS"
    num_slots = status.st_size // SLOT_BYTES
    with no_file_above(status.st_size):
        slots = [progress.begin(opening(), PRICE) for _ in range(num_slots)]
        assert None not in slots
        assert [progress.begin(opening(), PRICE) for _ in range(3)] == [None] * 3
        assert caplog.text.count("a crash would not settle") == 1
        count(slots[0], 7)
        assert slots[1] is not None
        slots[1].end()
        assert progress.begin(opening(), PRICE) is not None
    assert progress.begin(opening(), PRICE) is not None  # there is room again
    assert max(event.completion_tokens for event in left(progress).values()) == 7
    with no_file_above(progress.path.stat().st_size):
        while progress.begin(opening(), PRICE) is not None:
            pass
    assert caplog.text.count("a crash would not settle") == 2, "once for each time it is full"
    progress.close()


def test_no_room_for_the_file_is_an_error(tmp_path: Path) -> None:
    with no_file_above(SLOT_BYTES), pytest.raises(OSError, match="File too large"):
        Progress(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_counting_after_the_end_is_a_mistake(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    slot = progress.begin(opening(), PRICE)
    assert slot is not None
    slot.end()
    with pytest.raises(ValueError, match="released"):
        slot.counts[0] = 1
    progress.close()


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["begin", "count", "end"]), st.integers(1, 3), st.integers(1, 10**6)
        )
    )
)
def test_slots_are_used_again_and_never_shared(
    tmp_path: Path, steps: list[tuple[str, int, int]]
) -> None:
    progress = Progress(tmp_path)
    open_: list[tuple[UsageEvent, Running, int]] = []
    for step, which, value in [("begin", 1, 0)] * 600 + steps:
        if step == "begin":
            event = opening()
            slot = progress.begin(event, PRICE)
            assert slot is not None
            open_.append((event, slot, 0))
        elif len(open_) >= which:
            event, slot, _ = open_.pop(-which)  # a few, so that what counted ends, too
            if step == "count":
                count(slot, value)
                open_.append((event, slot, value))
            else:
                slot.end()
    found = left(progress)
    assert {event.request_id: value for event, _, value in open_} == {
        request_id: event.completion_tokens for request_id, event in found.items()
    }
    progress.close()


CHILD = """
import sys, time
from pathlib import Path
import msgspec
from tenants.journal import Journal
from tenants.limits import Price
from tenants.types import UsageEvent
journal = Journal(Path(sys.argv[1]))
event = msgspec.json.decode(sys.argv[2], type=UsageEvent)
slot = journal.begin(event, Price(completion=1_000_000))
for count in range(1, 43):
    slot.counts[1] = 3
    slot.counts[0] = count
print("counted", flush=True)
time.sleep(60)
"""


def test_a_killed_process_is_settled_by_another(tmp_path: Path) -> None:
    event = opening()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), msgspec.json.encode(event).decode()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "counted\n"
    journal = Journal(tmp_path)
    assert list(journal.adopt()) == []  # it lives
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    (found,) = journal.adopt()
    assert (found.request_id, found.status) == (event.request_id, "error")
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (10, 3, 42)
    assert found.cost_micro == 42
    assert list(journal.adopt()) == []
    assert not journal.is_empty  # it is this process's to keep now
    journal.clear()
    journal.close()
    assert not list(tmp_path.iterdir())
