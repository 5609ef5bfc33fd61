from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest

from engine import core
from engine.adapters import Adapters
from engine.config import Policy
from engine.errors import InvalidRequest
from engine.messages import QUEUE_TIME_BUCKETS_S, AdapterRef, Grant, Stats
from engine.sampling_params import StructuredOutputs
from tests.engine.scheduler.harness import EOS, Harness, Inline, waits_of

if TYPE_CHECKING:
    from collections.abc import Callable

OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["in-step", "overlap"])


@OVERLAP
def test_ends_by_stop_token_length_and_model_length(overlap: bool) -> None:
    harness = Harness(async_scheduling=overlap, max_model_len=60, vocab_size=20)
    harness.add("length", 3, max_tokens=2, ignore_eos=True)
    harness.add("model", 5, max_tokens=None, ignore_eos=True)
    harness.add("eos", 4, max_tokens=50)
    harness.run()
    harness.check_outputs()
    ends = {name: output.finish_reason for name, output in harness.finished.items()}
    assert ends["length"] == ends["model"] == "length"
    assert len(harness.tokens["model"]) == 55
    assert ends["eos"] == "stop"
    assert harness.tokens["eos"][-1] == EOS
    assert harness.finished["eos"].stop_reason is None


@OVERLAP
def test_min_tokens_puts_the_end_off(overlap: bool) -> None:
    harness = Harness(async_scheduling=overlap, vocab_size=20, max_model_len=100)
    harness.add("a", 4, max_tokens=40, min_tokens=30)
    harness.run()
    harness.check_outputs()
    assert len(harness.tokens["a"]) > 30
    assert EOS not in harness.tokens["a"][:30]


def test_each_step_says_what_it_sampled() -> None:
    harness = Harness(max_num_batched_tokens=4, max_num_seqs=4)
    harness.add("a", 6, max_tokens=2, ignore_eos=True)
    assert harness.step() == [], "the prompt is not through yet"
    (first,) = harness.step()
    assert len(first.new_token_ids) == 1
    assert first.finish_reason is None
    (last,) = harness.step()
    assert last.finish_reason == "length"
    assert not harness.core.has_unfinished


def test_an_impossible_request_is_answered_at_once() -> None:
    harness = Harness(max_model_len=20)
    harness.add("bad", [1, 50], max_tokens=1)
    harness.add("good", 3, max_tokens=2)
    harness.run()
    output = harness.finished["bad"]
    assert (output.finish_reason, output.error_code) == ("error", "invalid_request")
    assert output.error == "prompt_token_ids must be in [0, 50), got 1 to 50"
    harness.check_outputs(errors={"bad"})


@pytest.mark.parametrize(
    ("limit", "asked"), [(50, -1), (-1, -1), (0, 0), (3, 3)], ids=lambda number: str(number)
)
def test_max_logprobs_is_what_may_be_asked_for(limit: int, asked: int) -> None:
    harness = Harness(max_logprobs=limit)
    harness.add("a", 3, max_tokens=2, logprobs=asked, prompt_logprobs=asked)
    harness.run()
    harness.check_outputs()


@OVERLAP
def test_a_request_leaves_no_more_blocks_than_its_groups_may_have(overlap: bool) -> None:
    harness = Harness(async_scheduling=overlap)
    left = []
    for name, bounds in (("free", {}), ("bound", {"key": 3, "tenant": 5}), ("more", {"tenant": 5})):
        before = harness.core.stats().num_cached_blocks
        harness.add(name, 40, max_tokens=8, ignore_eos=True, max_cached_blocks=bounds)
        harness.run()
        left.append(harness.core.stats().num_cached_blocks - before)
    # 40 + 7 tokens are 11 full blocks and a rest; the last request drives out what is the key's.
    assert left == [12, 3, 2]
    harness.check_outputs()


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("chunk", [1000, 9])
@pytest.mark.parametrize("asking", [None, 0])
def test_branches_share_the_blocks_of_their_prompt(
    cached: bool, chunk: int, asking: int | None
) -> None:
    harness = Harness(
        enable_prefix_caching=cached, max_num_batched_tokens=chunk, num_blocks=100, vocab_size=60
    )
    prompt = list(range(4, 46))
    for i in range(5):
        logprobs = asking if i == 0 else None
        harness.add(
            str(i), prompt, group="g", max_tokens=9, ignore_eos=True, prompt_logprobs=logprobs
        )
    alone = -(-len(prompt) // 4)
    fewest_free = 100
    while harness.core.has_unfinished:
        harness.step()
        fewest_free = min(fewest_free, harness.core.stats().num_free_blocks)
    # Ten full blocks of the prompt are shared; each has its own for the rest and the output.
    assert 100 - fewest_free <= alone + 5 * 3
    prompt_tokens = harness.core.stats().scheduled_tokens - 5 * 8
    assert prompt_tokens <= len(prompt) + 4 * 2
    harness.check_outputs()


def test_groups_share_with_nobody_else_where_prefix_caching_is_off() -> None:
    harness = Harness(enable_prefix_caching=False, vocab_size=60)
    prompt = list(range(4, 46))
    for i, (group, salt) in enumerate([("g", ""), ("h", ""), ("", ""), ("g", "other")]):
        harness.add(str(i), prompt, group=group, salt=salt, max_tokens=2, num_public_tokens=8)
    harness.run()
    assert {output.num_cached_tokens for output in harness.finished.values()} == {0}


def test_prompt_logprobs_compute_what_is_cached() -> None:
    harness = Harness()
    harness.add("first", list(range(4, 30)), max_tokens=2)
    harness.run()
    harness.add("again", list(range(4, 30)), max_tokens=2, prompt_logprobs=0)
    harness.run()
    assert harness.finished["again"].num_cached_tokens == 0
    harness.add("third", list(range(4, 30)), max_tokens=2, logprobs=0)
    harness.run()
    assert harness.finished["third"].num_cached_tokens == 25
    harness.check_outputs()


def test_a_request_that_outgrows_the_cache_is_refused() -> None:
    harness = Harness(num_blocks=3, block_size=4, max_model_len=100)
    harness.add("fits", 10, max_tokens=3)
    harness.add("too long", 10, max_tokens=4)
    harness.run()
    assert "the size of the KV cache leaves room for 3" in str(harness.finished["too long"].error)
    harness.check_outputs(errors={"too long"})


def test_an_open_request_ends_where_the_cache_does() -> None:
    harness = Harness(num_blocks=3, block_size=4, max_model_len=100)
    harness.add("a", 2, max_tokens=None, ignore_eos=True)
    harness.run()
    assert len(harness.tokens["a"]) == 11
    assert harness.finished["a"].finish_reason == "length"


def test_an_id_in_use_is_refused_and_a_finished_one_is_not() -> None:
    harness = Harness()
    harness.add("a", 3, max_tokens=2)
    with pytest.raises(InvalidRequest, match="'a' is in use"):
        harness.core.add_request(harness.messages["a"])
    harness.run()
    harness.core.add_request(harness.messages["a"])
    assert harness.core.has_unfinished


class TestAbort:
    def test_unknown_finished_and_repeated_ids_pass(self) -> None:
        harness = Harness()
        harness.add("a", 3, max_tokens=1)
        harness.run()
        harness.core.abort(["a", "nobody"])
        harness.add("b", 3, max_tokens=9)
        harness.core.abort(["b", "b"])
        harness.run()
        assert harness.finished["b"].finish_reason == "abort"

    def test_the_answer_comes_although_nothing_runs(self) -> None:
        harness = Harness()
        harness.add("a", 3, max_tokens=5)
        harness.core.abort(["a"])
        assert harness.core.has_unfinished
        (output,) = harness.step()
        assert (output.request_id, output.finish_reason) == ("a", "abort")

    def test_only_what_waits_can_be_taken_back(self) -> None:
        harness = Harness(max_num_seqs=1)
        harness.add("runs", 3, max_tokens=5)
        harness.add("waits", 3, max_tokens=5)
        harness.step()
        harness.core.abort(["runs", "waits", "nobody"], if_waiting=True)
        harness.run()
        ends = {name: output.finish_reason for name, output in harness.finished.items()}
        assert ends == {"runs": "length", "waits": "abort"}


def test_stats_count_what_happened() -> None:
    harness = Harness(max_num_seqs=2)
    for i in range(3):
        harness.add(f"r{i}", 5, max_tokens=4, ignore_eos=True)
    harness.step()
    stats = harness.core.stats()
    assert (stats.num_running, stats.num_waiting) == (2, 1)
    assert stats.num_free_blocks < stats.num_total_blocks == 64
    harness.run()
    stats = harness.core.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.prompt_tokens == 15
    assert stats.generation_tokens == 12
    assert stats.num_steps == len(harness.runner.plans)
    assert stats.scheduled_tokens == 3 * (5 + 3)
    assert stats.recomputed_tokens == 0
    assert stats.num_cached_blocks > 0
    assert sum(stats.queue_time_counts) == 3


def test_each_gauge_and_counter_moves() -> None:
    """With two tenants, too few blocks and rows, drafts, an adapter, and a reader that stalls."""
    harness = Harness(
        policy="fair_share", num_blocks=14, num_swap_blocks=16, max_num_seqs=3, draft_hits=0.8
    )
    harness.adapters.num_swaps = 1
    for number in range(4):
        harness.add(
            f"r{number}",
            list(range(10, 18)),
            fair_key="ab"[number % 2],
            adapter="x" if number == 0 else "",
            max_tokens=30,
            ignore_eos=True,
        )
    seen = [harness.core.stats()]
    while harness.core.has_unfinished:
        harness.step()
        if harness.core.stats().num_steps == 9:
            harness.core.park(harness.messages)
            seen.append(harness.core.stats())
            harness.core.unpark(harness.messages)
        seen.append(harness.core.stats())
    harness.add("last", list(range(10, 18)), max_tokens=12)
    harness.run()
    seen.append(harness.core.stats())
    harness.check_outputs()
    never_set = Stats()
    for name in Stats.__struct_fields__:
        assert any(getattr(stats, name) != getattr(never_set, name) for stats in seen), name


def test_stats_per_tenant() -> None:
    harness = Harness(policy="fair_share", max_num_seqs=1)
    harness.add("a1", 6, max_tokens=4, ignore_eos=True, fair_key="a")
    harness.add("a2", 6, max_tokens=4, ignore_eos=True, fair_key="a")
    harness.add("b1", 6, max_tokens=4, ignore_eos=True, fair_key="b")
    harness.step(2)
    tenants = {tenant.fair_key: tenant for tenant in harness.core.stats().tenants}
    assert (tenants["a"].num_running, tenants["a"].num_queued) == (1, 1)
    assert (tenants["a"].computed_tokens, tenants["a"].generation_tokens) == (6, 2)
    assert harness.core.stats().num_queued_tokens == 12
    # The lift brought b to a's counter when it joined; neither of the two waiting was charged more.
    assert harness.core.stats().fairness_gap == pytest.approx(6 + 2 * 2)
    harness.run()


@pytest.mark.parametrize(
    ("policy", "order"), [("fcfs", "a2 a1 a3 b"), ("fair_share", "b a1 a2 a3")]
)
def test_a_request_that_moved_here_goes_on_before_its_tenants_new_ones(
    policy: Policy, order: str
) -> None:
    harness = Harness(policy=policy, max_num_seqs=1)
    for name in ("a1", "a2", "a3", "b"):
        harness.add(name, 6, max_tokens=4, ignore_eos=True, fair_key=name[0])
    harness.step(3)
    harness.move("a1")
    harness.run()
    assert list(harness.finished) == order.split()
    assert len(harness.tokens["a1"]) == 4


def test_queue_time_is_measured_on_the_clock() -> None:
    now = [100.0]
    harness = Harness(max_num_seqs=1, clock=lambda: now[0])
    harness.add("a", 3, max_tokens=2, ignore_eos=True)
    harness.add("b", 3, max_tokens=1)
    harness.step()
    now[0] += 7.0
    harness.run()
    stats = harness.core.stats()
    assert stats.queue_time_sum_s == 7.0
    slowest = max(i for i, count in enumerate(stats.queue_time_counts) if count)
    assert QUEUE_TIME_BUCKETS_S[slowest - 1] < 7.0 <= QUEUE_TIME_BUCKETS_S[slowest]


class TestGrants:
    """The harness checks after each step that nobody generated more than was granted."""

    @OVERLAP
    @pytest.mark.parametrize("draft_hits", [None, 1.0])
    def test_a_request_waits_for_its_grants(self, overlap: bool, draft_hits: float | None) -> None:
        harness = Harness(async_scheduling=overlap, draft_hits=draft_hits)
        harness.add("a", 6, max_tokens=20, ignore_eos=True, num_granted_tokens=3)
        harness.add("free", 6, max_tokens=30, ignore_eos=True)
        for granted in (3, 4, 11, 50):
            while harness.core.has_unfinished and len(harness.tokens["a"]) < min(granted, 20):
                harness.step()
            harness.step(2)
            assert len(harness.tokens["a"]) == min(granted, 20)
            harness.grant("a", {3: 4, 4: 11, 11: 50, 50: 50}[granted])
        harness.run()
        assert harness.finished["a"].finish_reason == "length"
        harness.check_outputs()

    @OVERLAP
    def test_the_last_grant_ends_it(self, overlap: bool) -> None:
        harness = Harness(async_scheduling=overlap)
        harness.add("there", 6, max_tokens=20, ignore_eos=True, num_granted_tokens=4)
        harness.add("on the way", 6, max_tokens=20, ignore_eos=True, num_granted_tokens=9)
        harness.add("at the start", 6, max_tokens=20, ignore_eos=True, num_granted_tokens=0)
        while len(harness.tokens["there"]) < 4:
            harness.step()
        harness.grant("there", 4, is_last=True)
        harness.grant("on the way", 12, is_last=True)
        harness.grant("at the start", 0, is_last=True)
        harness.grant("nobody", 12, is_last=True)
        del harness.granted["nobody"]
        harness.run()
        assert {len(tokens) for tokens in harness.tokens.values()} == {4, 12, 0}
        assert {output.finish_reason for output in harness.finished.values()} == {"length"}
        harness.check_outputs()

    @pytest.mark.parametrize("has_adapters", [False, True])
    def test_a_message_may_name_requests_that_have_ended(self, has_adapters: bool) -> None:
        """Whatever it says of the others holds: grants, and what parks, unparks and aborts."""
        harness = Harness()
        if not has_adapters:
            harness.core._adapters = None
        for name in ("a", "b"):
            harness.add(name, 6, max_tokens=20, ignore_eos=True, num_granted_tokens=2)
        while harness.core.has_unfinished:
            harness.step()
        grants = [Grant(name, 9) for name in ("gone", "a", "gone", "b")]
        harness.granted |= {"a": grants[1], "b": grants[3]}
        harness.core.grant(grants)
        while any(len(harness.tokens[name]) < 5 for name in "ab"):
            harness.step()
        harness.core.park(["gone", "a", "b"])
        assert harness.core.stats().num_parked == 2
        assert not harness.core.has_unfinished
        harness.core.unpark(["gone", "a", "b"])
        while any(len(harness.tokens[name]) < 9 for name in "ab"):
            harness.step()
        harness.core.abort(["gone", "a", "gone", "b"])
        harness.run()
        assert {output.finish_reason for output in harness.finished.values()} == {"abort"}
        assert len(harness.finished) == 2

    def test_who_is_refused_waits_for_no_grant(self) -> None:
        """As a request with a grammar is, of an engine that was started without a tokenizer."""
        harness = Harness()
        outputs = StructuredOutputs(regex="x")
        harness.add("a", 6, structured_outputs=outputs, num_granted_tokens=0)
        harness.run()
        output = harness.finished["a"]
        assert (output.finish_reason, output.error_code) == ("error", "invalid_request")
        assert "tokenizer" in str(output.error)
        assert harness.core.stats().num_parked == 0

    def test_who_waits_for_a_grant_is_no_work(self) -> None:
        harness = Harness()
        harness.add("a", 6, max_tokens=9, ignore_eos=True, num_granted_tokens=2)
        while harness.core.has_unfinished:
            harness.step()
        assert len(harness.tokens["a"]) == 2
        stats = harness.core.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_parked) == (0, 0, 1)
        harness.grant("a", 9)
        assert harness.core.has_unfinished
        harness.run()
        harness.check_outputs()

    @OVERLAP
    @pytest.mark.parametrize("num_swap_blocks", [0, 20])
    def test_preempted_without_a_grant_it_lets_others_by(
        self, overlap: bool, num_swap_blocks: int
    ) -> None:
        harness = Harness(
            async_scheduling=overlap,
            num_blocks=8,
            num_swap_blocks=num_swap_blocks,
            policy="priority",
            max_num_seqs=3,
        )
        harness.add("low", 10, max_tokens=10, ignore_eos=True, priority=5, num_granted_tokens=4)
        while harness.core.has_unfinished:
            harness.step()
        harness.add("high", 20, max_tokens=10, ignore_eos=True)
        harness.add("lowest", 4, max_tokens=3, ignore_eos=True, priority=9)
        while harness.core.has_unfinished:
            harness.step()
        assert harness.core.stats().num_preemptions == 1
        assert harness.finished.keys() == {"high", "lowest"}
        harness.grant("low", 10)
        harness.run()
        harness.check_outputs()

    def test_parked_without_a_grant(self) -> None:
        harness = Harness()
        harness.add("a", 6, max_tokens=9, ignore_eos=True, num_granted_tokens=2)
        while harness.core.has_unfinished:
            harness.step()
        harness.core.park(["a"])
        harness.core.check_integrity()
        assert harness.core.stats().num_parked == 1
        harness.core.unpark(["a"])
        harness.core.check_integrity()
        harness.step(3)
        assert len(harness.tokens["a"]) == 2
        harness.core.park(["a"])
        harness.grant("a", 2)  # no more than it had
        assert not harness.core.has_unfinished
        harness.grant("a", 9)
        harness.core.unpark(["a"])
        harness.run()
        harness.check_outputs()


class TestPark:
    @pytest.mark.parametrize("num_steps", [1, 3])
    def test_a_request_can_be_parked_from_its_first_token_on(self, num_steps: int) -> None:
        harness = Harness(enable_prefix_caching=False)
        harness.add("a", 6, max_tokens=9, ignore_eos=True)
        harness.core.park(["a"])
        assert harness.core.stats().num_parked == 0, "it had not begun"
        harness.step(num_steps)
        harness.core.park(["a"])
        assert harness.core.stats().num_parked == 1
        harness.core.unpark(["a"])
        harness.run()
        assert harness.core.stats().recomputed_tokens == 6 + num_steps - 1
        harness.check_outputs()

    @OVERLAP
    def test_a_parked_request_holds_nothing_and_goes_on_where_it_was(self, overlap: bool) -> None:
        harness = Harness(async_scheduling=overlap, max_num_seqs=1)
        harness.add("a", 6, max_tokens=12, ignore_eos=True)
        harness.add("b", 6, max_tokens=4, ignore_eos=True)
        harness.step(4)
        harness.core.park(["a", "nobody"])
        harness.step()
        assert harness.core.stats().num_parked == 1
        while harness.core.has_unfinished:
            harness.step()
        assert list(harness.finished) == ["b"]
        stats = harness.core.stats()
        assert stats.num_free_blocks == stats.num_total_blocks
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        harness.core.unpark(["a", "nobody"])
        harness.run()
        harness.check_outputs()

    def test_it_returns_to_its_place(self) -> None:
        harness = Harness(max_num_seqs=1)
        for name in "abc":
            harness.add(name, 6, max_tokens=6, ignore_eos=True)
        harness.step(2)
        harness.core.park(["a"])
        harness.step(2)
        harness.core.unpark(["a"])
        harness.run()
        assert list(harness.finished) == ["b", "a", "c"]
        harness.check_outputs()

    def test_who_has_no_output_yet_stays_in_the_queue(self) -> None:
        harness = Harness(max_num_seqs=2, max_num_batched_tokens=4)
        harness.add("chunked", 9, max_tokens=2)
        harness.add("waiting", 3, max_tokens=2)
        harness.step()
        harness.core.park(["chunked", "waiting"])
        assert harness.core.stats().num_parked == 0
        harness.run()
        harness.check_outputs()


class Late(Inline):
    """Does what it is asked for when it is told to."""

    def __init__(self) -> None:
        self._asked: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._asked.append(lambda: future.set_result(fn(*args, **kwargs)))
        return future

    def finish(self) -> None:
        for do in self._asked:
            do()


class TestAdapters:
    def test_one_that_does_not_load_is_answered_without_its_path(self) -> None:
        harness = Harness()
        harness.add("a", 3, adapter="bad")
        (output,) = harness.step()
        assert output.error == "the adapter's files cannot be used at the moment"
        assert output.error_code == "adapter_unavailable"
        assert not harness.core.has_unfinished

    def test_one_that_was_unloaded_is_refused_and_its_running_request_ends(self) -> None:
        harness = Harness()
        harness.add("a", 3, adapter="x", max_tokens=9, ignore_eos=True)
        harness.step(2)
        harness.core.unload_adapter("x")
        harness.add("b", 3, adapter="x")
        harness.step()
        assert harness.finished["b"].error_code == "adapter_unloaded"
        harness.run()
        harness.check_outputs(errors={"b"})
        assert harness.adapters.kept == set()

    def test_a_request_that_can_never_run_reads_nothing(self) -> None:
        harness = Harness()
        harness.add("a", 500, adapter="x")
        harness.step()
        assert harness.finished["a"].error_code == "invalid_request"
        assert harness.core.stats().num_adapter_reads == 0

    def test_a_full_queue_lets_go_of_it(self) -> None:
        harness = Harness(max_num_queued_reqs=1, max_num_seqs=1)
        harness.add("a", 3, adapter="x", max_tokens=5, ignore_eos=True)
        harness.step()
        for request_id in "bc":
            harness.add(request_id, 3, adapter="x", max_tokens=5)
        harness.run()
        harness.check_outputs(errors={"c"})
        assert harness.finished["c"].error_code == "queue_full"

    def test_a_held_request_is_aborted(self) -> None:
        harness = Harness()
        harness.add("a", 3, adapter="x")
        assert harness.core.stats().num_waiting == 1
        with pytest.raises(InvalidRequest, match="'a' is in use"):
            harness.core.add_request(harness.messages["a"])
        harness.core.abort(["a"])
        (output,) = harness.step()
        assert output.finish_reason == "abort"
        assert not harness.core.has_unfinished

    def test_a_request_whose_adapter_is_read_holds_nobody_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without any other work the engine waits for the reader, and does not spin."""
        monkeypatch.setattr(core, "_IDLE_WAIT_S", 0.2)
        harness, reader = Harness(), Late()
        harness.core._adapters = Adapters(harness.adapters, max_cpu_loras=4, reader=reader)
        harness.add("held", 3, adapter="x", max_tokens=5)
        harness.add("free", 3, max_tokens=9, ignore_eos=True)
        waits = waits_of(harness.core._adapters, "released", monkeypatch)
        while "free" not in harness.finished:
            harness.step()
        harness.add("too long", 500)
        harness.step()
        assert not any(waits), "what there is to say is said at once"
        began = time.monotonic()
        harness.step()
        assert waits[-1] == 0.2
        assert time.monotonic() - began >= 0.2
        assert harness.core.has_unfinished
        reader.finish()
        harness.run()
        harness.check_outputs(errors={"too long"})

    def test_what_is_granted_meanwhile_counts(self) -> None:
        harness = Harness()
        for name in "ab":
            harness.add(name, 3, adapter="x", max_tokens=9, ignore_eos=True, num_granted_tokens=2)
            harness.grant(name, 5, is_last=True)
        harness.core.abort(["b"])
        harness.run()
        harness.check_outputs()
        assert len(harness.tokens["a"]) == 5

    def test_without_adapters_they_are_refused(self) -> None:
        harness = Harness()
        harness.core._adapters = None
        harness.add("a", 3, adapter="x")
        (output,) = harness.step()
        assert output.error == "adapter 'x' cannot be loaded: enable_lora is not set"
        results: list[object] = []
        harness.core.load_adapter(AdapterRef(name="x", path="/x"), results.append)
        harness.core.unload_adapter("x")
        assert [str(result) for result in results] == [output.error]
