from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tenants.journal import SUFFIX, Journal
from tenants.limits import Price
from tenants.progress import Progress, Running
from tenants.types import UsageEvent
from tests.tenants.full_disk import no_file_above
from tests.tenants.samples import make_event


def leave(folder: Path, *contents: bytes) -> None:
    """Files of processes that are no more."""
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(contents):
        (folder / f"{number}{SUFFIX}").write_bytes(content)


def inherit(folder: Path) -> list[UsageEvent]:
    """What the next process finds."""
    journal = Journal(folder)
    events = list(journal.adopt())
    journal.close()
    return events


def test_events_come_back_as_they_were(tmp_path: Path) -> None:
    events = [make_event(end_user="名前 \u2028 \n", cost_micro=7), make_event(status="error")]
    journal = Journal(tmp_path / "new" / "folder")
    assert journal.is_empty
    journal.append(events[:1])
    journal.append(events[1:])
    assert not journal.is_empty
    journal.close()
    journal.close()
    assert inherit(tmp_path / "new" / "folder") == events


def test_a_full_disk_takes_whole_events_or_none(tmp_path: Path) -> None:
    events = [make_event() for _ in range(4)]
    journal = Journal(tmp_path)
    journal.append(events[:1])
    (path,) = tmp_path.glob(f"*{SUFFIX}")
    size = path.stat().st_size
    with no_file_above(size + size // 2):
        for _ in range(2):
            with pytest.raises(OSError, match="File too large"):
                journal.append(events[1:3])
            assert path.stat().st_size == size
    journal.append(events[3:])
    with no_file_above(0):
        journal.close()
    assert inherit(tmp_path) == [events[0], events[3]]


def test_a_disk_without_room_for_the_counts_is_left_as_it_was(tmp_path: Path) -> None:
    with no_file_above(4096), pytest.raises(OSError, match="File too large"):
        Journal(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_files_of_living_processes_are_left_alone(tmp_path: Path) -> None:
    living = Journal(tmp_path)
    living.append([make_event()])
    other = Journal(tmp_path)
    assert list(other.adopt()) == []
    assert other.is_empty
    living.close()
    assert len(list(other.adopt())) == 1
    other.close()


def test_adopted_events_are_in_the_own_file_before_the_other_goes(tmp_path: Path) -> None:
    event = make_event()
    leave(tmp_path, msgspec.json.encode(event) + b"\n")
    first = Journal(tmp_path)
    assert list(first.adopt()) == [event]
    assert not (tmp_path / f"0{SUFFIX}").exists()
    first.close()
    assert inherit(tmp_path) == [event]


def test_a_neighbour_may_take_the_new_file_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted afterwards is in a file that the next process finds."""
    neighbour = Journal(tmp_path)
    taken: list[Path] = []

    class Exposed(Progress):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            if not taken:
                taken.append(self.path)
                assert list(neighbour.adopt()) == []
                assert not self.path.exists()

    monkeypatch.setattr("tenants.journal.Progress", Exposed)
    journal, event = Journal(tmp_path), make_event(prompt_tokens=10, cached_tokens=0)
    slot = journal.begin(event, Price())
    assert isinstance(slot, Running)
    slot.counts[0] = 7
    assert list(neighbour.adopt()) == []
    journal.close()
    (found,) = neighbour.adopt()
    assert (found.request_id, found.completion_tokens) == (event.request_id, 7)
    neighbour.clear()
    neighbour.close()
    slot.end()
    assert list(tmp_path.iterdir()) == []


def test_clear_makes_the_file_empty_and_usable(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append([make_event()])
    journal.clear()
    assert journal.is_empty
    last = make_event()
    journal.append([last])
    journal.close()
    assert inherit(tmp_path) == [last]


def test_line_cut_short_is_dropped_and_garbage_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    event = make_event()
    line = msgspec.json.encode(event) + b"\n"
    leave(tmp_path, b"not json\n" + line + line[:40], b"")
    assert inherit(tmp_path) == [event]
    messages = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in messages] == [logging.ERROR, logging.WARNING]
    assert "line 1 is no settlement" in messages[0][1]
    assert "line 3 was cut short" in messages[1][1]


def test_killed_process_leaves_what_it_kept(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; "
        "from tenants.journal import Journal; from tests.tenants.samples import make_event; "
        "journal = Journal(Path(sys.argv[1])); "
        "journal.append([make_event() for _ in range(100)]); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len({event.request_id for event in inherit(tmp_path)}) == 100


def test_closed_journal_takes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.close()
    with pytest.raises(AssertionError, match="closed"):
        journal.append([make_event()])
    with pytest.raises(AssertionError, match="closed"):
        journal.begin(make_event(), Price())


def test_a_new_folder_is_its_owners_only(tmp_path: Path) -> None:
    """Settlements name end users."""
    Journal(tmp_path / "sluice" / "journal").close()
    assert (tmp_path / "sluice" / "journal").stat().st_mode & 0o777 == 0o700
