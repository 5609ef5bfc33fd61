from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.adapters import Adapters, LoadedAdapter, Released
from engine.errors import AdapterLoadError, AdapterUnloaded, InvalidRequest
from engine.messages import AdapterRef, GenerateRequest
from engine.sampling_params import SamplingParams


class Content(NamedTuple):
    rank: int
    digest: str
    base_model: str | None = None


class Memory:
    """Files that are read at once, or when ``gate`` opens."""

    def __init__(self) -> None:
        self.files: dict[str, Content | Exception] = {}
        self.kept: dict[str, Content] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.num_swaps = 0

    def read(self, folder: Path) -> Content:
        self.gate.wait(10)
        found = self.files.get(str(folder), AdapterLoadError(f"{folder}: no such file"))
        if isinstance(found, Exception):
            raise found
        return found

    def keep(self, name: str, adapter: Content) -> None:
        assert name not in self.kept
        self.kept[name] = adapter

    def drop(self, name: str) -> None:
        del self.kept[name]


def ref(name: str, digest: str = "") -> AdapterRef:
    return AdapterRef(name=name, path=f"/adapters/{name}", digest=digest)


def request(adapter: AdapterRef, request_id: str = "r") -> GenerateRequest:
    return GenerateRequest(
        request_id=request_id, prompt_token_ids=[1], params=SamplingParams(), adapter=adapter
    )


@pytest.fixture
def memory() -> Iterator[Memory]:
    memory = Memory()
    for name in "abcd":
        memory.files[f"/adapters/{name}"] = Content(8, f"digest {name}")
    yield memory
    memory.gate.set()


def settle(adapters: Adapters) -> list[Released]:
    released: list[Released] = []
    while adapters.is_reading:
        released += adapters.released(wait_s=5)
    return released


def load(adapters: Adapters, wanted: AdapterRef) -> LoadedAdapter | AdapterLoadError:
    results: list[LoadedAdapter | AdapterLoadError] = []
    adapters.load(wanted, results.append)
    settle(adapters)
    (result,) = results
    return result


def test_what_is_loaded_is_used_at_once(memory: Memory) -> None:
    adapters = Adapters(memory)
    assert load(adapters, ref("a")) == Content(8, "digest a")
    assert load(adapters, ref("a")) == Content(8, "digest a")
    assert adapters.admit(request(ref("a", "digest a"))) == "digest a"
    assert (adapters.num_reads, adapters.num_users, adapters.num_held) == (1, 1, 0)
    adapters.release("a")
    assert adapters.num_users == 0


def test_a_request_waits_for_its_adapter_and_the_loop_does_not(memory: Memory) -> None:
    adapters = Adapters(memory)
    memory.gate.clear()
    assert adapters.admit(request(ref("a"), "one")) is None
    assert adapters.admit(request(ref("a"), "two")) is None
    assert adapters.holds("two")
    assert adapters.num_held == 2
    began = time.monotonic()
    assert adapters.released() == []
    assert adapters.released(wait_s=0.01) == []
    assert time.monotonic() - began < 5
    memory.gate.set()
    released = settle(adapters)
    assert [(a.request.request_id, a.outcome) for a in released] == [
        ("one", "digest a"),
        ("two", "digest a"),
    ]
    assert (adapters.num_reads, adapters.num_users, adapters.num_held) == (1, 2, 0)


def test_a_held_request_is_discarded(memory: Memory) -> None:
    adapters = Adapters(memory)
    memory.gate.clear()
    for name in ("one", "two"):
        adapters.admit(request(ref("a"), name))
    adapters.discard("one")
    assert not adapters.holds("one")
    memory.gate.set()
    assert [a.request.request_id for a in settle(adapters)] == ["two"]
    assert adapters.num_users == 1


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (AdapterLoadError("r is 99"), "r is 99"),
        (RuntimeError("a\nbug"), "/adapters/a: RuntimeError: a"),
        (Content(8, "other"), "/adapters/a is not what was loaded"),
    ],
)
def test_what_cannot_be_read_leaves_nothing(
    memory: Memory, found: Content | Exception, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    right = memory.files["/adapters/a"]
    memory.files["/adapters/a"] = found
    adapters = Adapters(memory)
    adapters.admit(request(ref("a", "digest a")))
    with caplog.at_level(logging.CRITICAL):
        (one,) = settle(adapters)
    assert isinstance(one.outcome, AdapterLoadError)
    assert message in str(one.outcome)
    assert (adapters.num_users, adapters.num_in_memory, memory.kept) == (0, 0, {})
    memory.files["/adapters/a"] = right
    adapters.admit(request(ref("a", "digest a")))
    assert settle(adapters)[0].outcome == "digest a"


def test_an_unloaded_one_takes_no_more_requests_and_ends_with_its_last(memory: Memory) -> None:
    adapters = Adapters(memory)
    load(adapters, ref("a"))
    for name in ("one", "two"):
        adapters.admit(request(ref("a"), name))
    adapters.unload("a")
    with pytest.raises(AdapterUnloaded, match="'a' is not loaded any more"):
        adapters.admit(request(ref("a")))
    refused = load(adapters, ref("a"))
    assert "unloaded, and 2 requests still use it" in str(refused)
    adapters.release("a")
    assert memory.kept
    adapters.release("a")
    assert not memory.kept
    with pytest.raises(AdapterUnloaded):
        adapters.admit(request(ref("a")))
    assert load(adapters, ref("a")) == Content(8, "digest a")
    assert adapters.admit(request(ref("a"))) == "digest a"


def test_of_those_unloaded_the_latest_are_remembered(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.adapters.MAX_UNLOADED", 2)
    adapters = Adapters(memory)
    for name in "abac":
        adapters.unload(name)
    for name in "ac":
        with pytest.raises(AdapterUnloaded):
            adapters.admit(request(ref(name)))
    assert adapters.admit(request(ref("b"))) is None, "forgotten, so it is read"
    settle(adapters)


def test_one_unloaded_while_it_is_read_serves_those_that_were_there(memory: Memory) -> None:
    adapters = Adapters(memory)
    memory.gate.clear()
    adapters.admit(request(ref("a")))
    results: list[LoadedAdapter | AdapterLoadError] = []
    adapters.load(ref("b"), results.append)
    adapters.unload("a")
    adapters.unload("b")
    adapters.unload("unknown")
    memory.gate.set()
    (one,) = settle(adapters)
    assert one.outcome == "digest a"
    assert set(memory.kept) == {"a"}
    assert results == [Content(8, "digest b")]
    adapters.release("a")
    assert not memory.kept


def test_those_used_least_recently_are_put_away_and_read_again(memory: Memory) -> None:
    adapters = Adapters(memory, max_cpu_loras=2)
    for name in "ab":
        load(adapters, ref(name))
    adapters.admit(request(ref("a")))
    adapters.release("a")
    load(adapters, ref("c"))
    assert set(memory.kept) == {"a", "c"}
    assert adapters.admit(request(ref("b", "digest b"))) is None
    assert settle(adapters)[0].outcome == "digest b"
    assert set(memory.kept) == {"b", "c"}
    assert adapters.num_reads == 4


def test_those_in_use_stay(memory: Memory) -> None:
    adapters = Adapters(memory, max_cpu_loras=1)
    for name in "abc":
        adapters.admit(request(ref(name), name))
    settle(adapters)
    assert set(memory.kept) == {"a", "b", "c"}
    for name in "abc":
        adapters.release(name)
    assert set(memory.kept) == {"c"}


def test_a_name_stands_for_one_adapter(memory: Memory) -> None:
    adapters = Adapters(memory)
    load(adapters, ref("a"))
    for other in (ref("a", "digest b"), AdapterRef(name="a", path="/elsewhere")):
        with pytest.raises(InvalidRequest, match="'a' is loaded already, from /adapters/a"):
            adapters.admit(request(other))
        assert "loaded already" in str(load(adapters, other))


class AdaptersMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order: what requests use is in memory, and no more than that."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        for name in "abc":
            self.memory.files[f"/adapters/{name}"] = Content(8, name)
        self.adapters = Adapters(self.memory, max_cpu_loras=1)
        self.users: list[str] = []
        self.held: dict[str, str] = {}
        self.num_requests = 0

    @rule(name=st.sampled_from("abcx"))
    def ask(self, name: str) -> None:
        self.num_requests += 1
        request_id = str(self.num_requests)
        try:
            digest = self.adapters.admit(request(ref(name), request_id))
        except (AdapterUnloaded, InvalidRequest):
            return
        if digest is None:
            self.held[request_id] = name
        else:
            self.users.append(name)

    @rule(name=st.sampled_from("abcx"))
    def load(self, name: str) -> None:
        self.adapters.load(ref(name), lambda _: None)

    @rule(name=st.sampled_from("abcx"))
    def unload(self, name: str) -> None:
        self.adapters.unload(name)

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.users))
        self.users.remove(name)
        self.adapters.release(name)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[request_id]
        self.adapters.discard(request_id)

    @rule()
    def settle(self) -> None:
        logging.disable(logging.ERROR)
        for one in settle(self.adapters):
            name = self.held.pop(one.request.request_id)
            assert (one.outcome == name) is (name != "x")
            if name != "x":
                self.users.append(name)
        logging.disable(logging.NOTSET)
        assert not self.held
        assert self.adapters.num_in_memory <= max(1, len(set(self.users)))

    @invariant()
    def all_is_accounted_for(self) -> None:
        assert set(self.users) <= set(self.memory.kept)
        assert self.adapters.num_users == len(self.users)
        assert self.adapters.num_held == len(self.held)
        assert self.adapters.num_in_memory == len(self.memory.kept)


TestAdaptersMachine = AdaptersMachine.TestCase
TestAdaptersMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
