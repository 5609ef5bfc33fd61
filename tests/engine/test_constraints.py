from __future__ import annotations

import random
import re
import threading
import time
from concurrent.futures import BrokenExecutor, Future
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from engine import core
from engine.constraints import Constraints, Ending, grammar_spec
from engine.errors import InvalidRequest
from engine.messages import GenerateRequest, Stats
from engine.request import Request
from engine.sampling_params import SamplingParams, StructuredOutputs
from engine.spec.base import TextProposer
from grammar.compiler import CompiledGrammar, GrammarCompiler
from grammar.errors import MatcherFailed
from grammar.spec import GrammarSpec
from grammar.vocabulary import Vocabulary
from tests.engine.scheduler.harness import EOS, FIVE_DRAFTS, Harness, waits_of

if TYPE_CHECKING:
    from collections.abc import Iterator

OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["in-step", "overlap"])

# Id i is the i-th printable character; EOS is one of the first ids, which have no bytes.
VOCAB = [b""] * 4 + [bytes([c]) for c in range(32, 127)]


def text(token_ids: list[int]) -> str:
    return b"".join(VOCAB[i] for i in token_ids).decode()


def ids(string: str) -> list[int]:
    return [VOCAB.index(c.encode()) for c in string]


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(Vocabulary(VOCAB, {EOS}, {0, 1, 2}, len(VOCAB)))
    yield compiler
    compiler.close()


def make(regex: str = "[ab]+", *, fair_key: str = "", **params: Any) -> Request:
    message = GenerateRequest(
        request_id="r",
        fair_key=fair_key,
        prompt_token_ids=[5],
        params=SamplingParams(structured_outputs=StructuredOutputs(regex=regex), **params),
    )
    return Request(
        message, arrival=0, arrival_s=0, max_total_tokens=99, eos_token_ids=frozenset({EOS})
    )


def ready(constraints: Constraints, request: Request) -> Ending | None:
    constraints.begin(request)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for done, ending in constraints.compiled(wait_s=0.1):
            assert done is request
            return ending
    raise AssertionError("never compiled")


def allowed(bits: np.ndarray[Any, Any]) -> set[int]:
    flags = np.unpackbits(bits.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(flags).tolist())


@pytest.mark.parametrize(
    ("outputs", "spec"),
    [
        (StructuredOutputs(json="{}"), GrammarSpec("json_schema", "{}")),
        (StructuredOutputs(json_object=True), GrammarSpec("json_object")),
        (StructuredOutputs(regex="a"), GrammarSpec("regex", "a")),
        (StructuredOutputs(choice=("a", "é")), GrammarSpec("choice", '["a", "\\u00e9"]')),
        (StructuredOutputs(grammar="start: A"), GrammarSpec("ebnf", "start: A")),
        (StructuredOutputs(structural_tag="{}"), GrammarSpec("structural_tag", "{}")),
        (
            StructuredOutputs(json="{}", strict=False, disable_any_whitespace=True),
            GrammarSpec("json_schema", "{}", strict=False, any_whitespace=False),
        ),
    ],
)
def test_each_kind_of_output_is_a_kind_of_grammar(
    outputs: StructuredOutputs, spec: GrammarSpec
) -> None:
    assert grammar_spec(outputs) == spec


@pytest.mark.parametrize(
    "outputs", [StructuredOutputs(), StructuredOutputs(regex="a", json_object=True)]
)
def test_none_or_two_kinds_are_refused(outputs: StructuredOutputs) -> None:
    with pytest.raises(InvalidRequest, match="exactly one field"):
        grammar_spec(outputs)


class TestMask:
    def test_it_allows_what_may_come_next(self, compiler: GrammarCompiler) -> None:
        constraints, request = Constraints(compiler, len(VOCAB)), make("[ab]x")
        assert ready(constraints, request) is None
        mask, endings = constraints.mask([(4, request, ())])
        assert mask is not None
        assert endings == []
        assert mask.chunk_indices == [4]
        assert mask.bitmask.shape == (1, -(-len(VOCAB) // 32))
        assert mask.bitmask.dtype == np.int32
        assert allowed(mask.bitmask[0]) == set(ids("ab"))
        assert constraints.accept(request, ids("a")) is None
        mask, _ = constraints.mask([(0, request, ())])
        assert mask is not None
        assert allowed(mask.bitmask[0]) == set(ids("x"))

    def test_eos_is_allowed_where_the_grammar_may_end(self, compiler: GrammarCompiler) -> None:
        constraints, request = Constraints(compiler, len(VOCAB)), make("a?")
        ready(constraints, request)
        mask, _ = constraints.mask([(0, request, ())])
        assert mask is not None
        assert allowed(mask.bitmask[0]) == {*ids("a"), EOS}

    def test_finished_requests_have_no_row(self, compiler: GrammarCompiler) -> None:
        constraints, request, gone = Constraints(compiler, len(VOCAB)), make(), make()
        ready(constraints, request)
        ready(constraints, gone)
        gone.finish("abort")
        mask, _ = constraints.mask([(1, gone, ()), (2, request, ())])
        assert mask is not None
        assert mask.chunk_indices == [2]
        assert constraints.mask([(1, gone, ())]) == (None, [])

    def test_the_grammar_ends_before_min_tokens(self, compiler: GrammarCompiler) -> None:
        constraints, request = Constraints(compiler, len(VOCAB)), make("a", min_tokens=5)
        ready(constraints, request)
        assert constraints.accept(request, ids("a")) is None
        mask, (ending,) = constraints.mask([(0, request, ())])
        assert mask is None
        assert (ending.reason, ending.error) == ("stop", None)


class TestEndings:
    def test_a_token_the_grammar_forbids_is_an_error(self, compiler: GrammarCompiler) -> None:
        constraints, request = Constraints(compiler, len(VOCAB)), make()
        ready(constraints, request)
        ending = constraints.accept(request, ids("z"))
        assert ending is not None
        assert ending.reason == "error"
        assert "refuses" in str(ending.error)

    def test_no_token_in_common_with_the_allowed_ones_is_the_clients_error(
        self, compiler: GrammarCompiler
    ) -> None:
        constraints = Constraints(compiler, len(VOCAB))
        request = make("[ab]xx?", allowed_token_ids=ids("ac"))
        ready(constraints, request)
        mask, endings = constraints.mask([(0, request, ())])
        assert mask is not None
        assert not endings
        assert constraints.accept(request, ids("a")) is None
        assert constraints.forced_tokens(request) == []
        assert constraints.legal_prefix(request, ids("x")) == []
        mask, (ending,) = constraints.mask([(0, request, ())])
        assert mask is None
        assert (ending.reason, ending.error_code) == ("error", "invalid_request")
        assert "allowed_token_ids have no token in common" in str(ending.error)
        constraints.drop(request)
        assert constraints.is_idle

    def test_eos_needs_no_allowance(self, compiler: GrammarCompiler) -> None:
        constraints, request = (
            Constraints(compiler, len(VOCAB)),
            make("a", allowed_token_ids=ids("a")),
        )
        ready(constraints, request)
        assert constraints.accept(request, ids("a")) is None
        mask, endings = constraints.mask([(0, request, ())])
        assert mask is not None
        assert not endings
        assert constraints.accept(request, [EOS]) == Ending(request, "stop")

    def test_a_matcher_that_fails_on_a_token_is_an_error(
        self, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        constraints, request = Constraints(compiler, len(VOCAB)), make()
        ready(constraints, request)

        def fail(token_id: int) -> bool:
            raise MatcherFailed("too complex")

        monkeypatch.setattr(constraints._matchers[request], "accept", fail)
        ending = constraints.accept(request, ids("a"))
        assert ending is not None
        assert (ending.reason, ending.error_code) == ("error", "invalid_request")

    def test_a_token_refused_for_a_limit_is_the_clients_error(
        self, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        constraints, request = Constraints(compiler, len(VOCAB)), make()
        ready(constraints, request)

        def fail(row: object) -> None:
            raise MatcherFailed("too many items")

        matcher = constraints._matchers[request]
        monkeypatch.setattr(matcher, "accept", lambda token_id: False)
        monkeypatch.setattr(matcher, "fill_mask", fail)
        message = "structured_outputs: too many items"
        expected = Ending(request, "error", message, "invalid_request")
        assert constraints.accept(request, ids("a")) == expected

    def test_an_ignored_eos_still_ends_a_grammar(self, compiler: GrammarCompiler) -> None:
        constraints, request = Constraints(compiler, len(VOCAB)), make(ignore_eos=True)
        ready(constraints, request)
        ending = constraints.accept(request, [*ids("a"), EOS])
        assert ending is not None
        assert ending.reason == "stop"

    def test_a_matcher_that_gives_up_ends_its_request_alone(
        self, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        constraints, good, bad = Constraints(compiler, len(VOCAB)), make("a"), make("b")
        ready(constraints, good)
        ready(constraints, bad)

        def fail(row: object) -> None:
            raise MatcherFailed("too complex")

        monkeypatch.setattr(constraints._matchers[bad], "fill_mask", fail)
        mask, (ending,) = constraints.mask([(0, bad, ()), (1, good, ())])
        assert mask is not None
        assert mask.chunk_indices == [1]
        assert allowed(mask.bitmask[0]) == set(ids("a"))
        assert (ending.request, ending.reason) == (bad, "error")


class TestCompiling:
    def test_a_broken_grammar_is_the_clients_error(self, compiler: GrammarCompiler) -> None:
        constraints, request = Constraints(compiler, len(VOCAB)), make("(")
        ending = ready(constraints, request)
        assert ending is not None
        assert str(ending.error).startswith("structured_outputs: ")
        assert ending.error_code == "invalid_request"
        constraints.drop(request)
        assert constraints.is_idle

    def test_a_compiler_that_breaks_is_not_the_clients_error(
        self, compiler: GrammarCompiler, caplog: pytest.LogCaptureFixture
    ) -> None:
        slow = SlowCompiler(compiler)
        constraints, request = Constraints(slow, len(VOCAB)), make()  # type: ignore[arg-type]
        constraints.begin(request)
        slow.futures[0][0].set_exception(BrokenExecutor("the pool died"))
        ((_, ending),) = constraints.compiled()
        assert ending is not None
        assert (ending.reason, ending.error_code) == ("error", "internal")
        assert "the pool died" in caplog.text

    def test_without_a_tokenizer_there_are_no_grammars(self) -> None:
        with pytest.raises(InvalidRequest, match="without one"):
            Constraints(None, 10).begin(make())

    def test_each_tenants_grammars_wait_in_its_own_lane(self, compiler: GrammarCompiler) -> None:
        slow = SlowCompiler(compiler)
        constraints = Constraints(slow, len(VOCAB))  # type: ignore[arg-type]
        requests = [make(regex, fair_key=key) for regex, key in (("a", "x"), ("b", "y"))]
        for request in requests:
            constraints.begin(request)
        assert slow.lanes == ["x", "y"]

    def test_dropping_while_compiling_leaves_nothing(self, compiler: GrammarCompiler) -> None:
        constraints, request = Constraints(compiler, len(VOCAB)), make()
        constraints.begin(request)
        over = threading.Event()
        constraints._compiling[request].add_done_callback(lambda _: over.set())
        constraints.drop(request)
        assert over.wait(60), "compiled or cancelled, and handed over either way"
        assert constraints.compiled() == []
        assert constraints.is_idle

    def test_nothing_compiles_nothing_waits(self, compiler: GrammarCompiler) -> None:
        assert Constraints(compiler, len(VOCAB)).compiled(wait_s=3600.0) == []

    def test_a_vocabulary_of_another_width_is_refused(self, compiler: GrammarCompiler) -> None:
        with pytest.raises(AssertionError, match="width"):
            Constraints(compiler, len(VOCAB) + 1)


class TestDrafts:
    def test_each_place_has_a_mask(self, compiler: GrammarCompiler) -> None:
        constraints, first, second = Constraints(compiler, len(VOCAB)), make("[ab]xy?"), make("q")
        ready(constraints, first)
        ready(constraints, second)
        mask, endings = constraints.mask([(1, first, ids("ax")), (3, second, ())])
        assert mask is not None
        assert endings == []
        assert mask.chunk_indices == [1, 1, 1, 3]
        assert [allowed(row) for row in mask.bitmask] == [
            set(ids("ab")),
            set(ids("x")),
            {*ids("y"), EOS},
            set(ids("q")),
        ]
        assert constraints.accept(first, ids("b")) is None, "the state did not change"

    def test_nothing_may_follow_a_drafted_end(self, compiler: GrammarCompiler) -> None:
        constraints, request = Constraints(compiler, len(VOCAB)), make("a?")
        ready(constraints, request)
        mask, endings = constraints.mask([(0, request, [EOS])])
        assert mask is not None
        assert endings == []
        assert [allowed(row) for row in mask.bitmask] == [{*ids("a"), EOS}, set()]

    def test_a_draft_is_cut_at_the_first_illegal_token(self, compiler: GrammarCompiler) -> None:
        constraints, request = Constraints(compiler, len(VOCAB)), make("ab[cd]")
        ready(constraints, request)
        assert constraints.legal_prefix(request, ids("abxd")) == ids("ab")
        assert constraints.legal_prefix(request, ids("abd!")) == ids("abd")
        assert constraints.legal_prefix(request, []) == []
        assert constraints.legal_prefix(request, [*ids("abc"), EOS, 7]) == ids("abc")
        assert constraints.forced_tokens(request) == ids("ab")

    def test_before_min_tokens_there_are_no_drafts(self, compiler: GrammarCompiler) -> None:
        constraints, request = Constraints(compiler, len(VOCAB)), make("ab", min_tokens=1)
        ready(constraints, request)
        assert constraints.legal_prefix(request, ids("ab")) == []
        assert constraints.forced_tokens(request) == []
        request.append(ids("a")[0])
        constraints.accept(request, ids("a"))
        assert constraints.forced_tokens(request) == ids("b")


class Playback(TextProposer):
    """Drafts what the same requests said before; a token in so many is another one."""

    def __init__(self, before: Harness, hits: float) -> None:
        self._tokens, self._hits = before.tokens, hits
        self._rng = random.Random(0)

    def continue_text(self, request: Request, max_tokens: int) -> list[int]:
        future = self._tokens[request.request_id][request.num_generated_tokens :]
        return [
            token_id if self._rng.random() < self._hits else self._rng.randrange(len(VOCAB))
            for token_id in future[:max_tokens]
        ]

    def drop(self, request: Request) -> None:
        """Nothing is kept."""


class SlowCompiler:
    """The real compiler behind futures that a test completes by hand."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self.vocabulary = compiler.vocabulary
        self._compiler = compiler
        self.futures: list[tuple[Future[CompiledGrammar], GrammarSpec]] = []
        self.lanes: list[str] = []

    def submit(self, spec: GrammarSpec, *, lane: str) -> Future[CompiledGrammar]:
        self.lanes.append(lane)
        future: Future[CompiledGrammar] = Future()
        self.futures.append((future, spec))
        return future

    def finish(self) -> None:
        for future, spec in self.futures:
            if future.set_running_or_notify_cancel():
                future.set_result(self._compiler.compile(spec))
        self.futures.clear()


class TestInTheEngine:
    def harness(self, compiler: Any, **options: Any) -> Harness:
        return Harness(vocab_size=len(VOCAB), grammar=compiler, **options)

    @OVERLAP
    def test_constrained_and_free_requests_in_one_batch(
        self, compiler: GrammarCompiler, overlap: bool
    ) -> None:
        harness = self.harness(compiler, async_scheduling=overlap, max_num_batched_tokens=12)
        regexes = {"a": "[ab]{3,6}!", "b": "(yes|no)", "c": "[0-9]+[.][0-9]{2}"}
        for i, name in enumerate("abcd"):
            regex = regexes.get(name)
            outputs = None if regex is None else StructuredOutputs(regex=regex)
            harness.add(name, 3 + 5 * i, max_tokens=30, structured_outputs=outputs)
        harness.run()
        for name, regex in regexes.items():
            assert harness.finished[name].finish_reason == "stop"
            assert harness.tokens[name][-1] == EOS
            assert re.fullmatch(regex, text(harness.tokens[name]))
        assert harness.tokens["d"] == harness.expected("d")

    def test_overlap_and_preemption_change_nothing(self, compiler: GrammarCompiler) -> None:
        outcomes = []
        for options in (
            {},
            {"async_scheduling": True},
            {"async_scheduling": True, "num_blocks": 10, "max_model_len": 40},
            {"num_blocks": 10, "max_model_len": 40, "max_num_batched_tokens": 5, "max_num_seqs": 4},
        ):
            harness = self.harness(compiler, **options)
            for i, name in enumerate("abcd"):
                outputs = StructuredOutputs(regex="([a-f]{2}-){6,7}[0-9]")
                harness.add(name, 4 + i, max_tokens=24, structured_outputs=outputs)
            harness.run()
            outcomes.append(harness.tokens)
        assert harness.core.stats().num_preemptions > 0
        assert all(tokens == outcomes[0] for tokens in outcomes)

    @OVERLAP
    @pytest.mark.parametrize("hits", [1.0, 0.7])
    def test_reasoning_may_end_in_the_middle_of_a_draft(
        self, compiler: GrammarCompiler, overlap: bool, hits: float
    ) -> None:
        end = tuple(ids("!"))
        outputs = StructuredOutputs(regex="[ab]{4,9}(done)?", reasoning_end_token_ids=end)

        def harness() -> Harness:
            made = self.harness(compiler, async_scheduling=overlap, speculative_config=FIVE_DRAFTS)
            for i in range(12):
                made.add(str(i), 3 + i, max_tokens=80, structured_outputs=outputs)
            return made

        plain = harness()
        plain.core._speculator._max_forced = plain.core._speculator._max_tokens = 0
        plain.run()
        drafted = harness()
        drafted.core._speculator._proposer = Playback(plain, hits)
        drafted.run()
        assert drafted.tokens == plain.tokens
        said = [text(tokens) for tokens in plain.tokens.values()]
        ended = [answer.split("!", 1)[1] for answer in said if "!" in answer]
        assert len(ended) > 2
        assert all(re.fullmatch("[ab]*(done|don|do|d)?", answer) for answer in ended)
        accepted = drafted.core.stats().spec_decode_num_accepted_tokens
        assert accepted > 0.3 * drafted.core.stats().generation_tokens

    def test_forced_tokens_are_drafted_without_a_config(self, compiler: GrammarCompiler) -> None:
        regex = "(the beginning [ab] the end)"
        texts = []
        for overlap in (False, True):
            harness = self.harness(compiler, async_scheduling=overlap)
            outputs = StructuredOutputs(regex=regex)
            harness.add("a", 3, max_tokens=40, structured_outputs=outputs)
            harness.run()
            texts.append(text(harness.tokens["a"]))
            assert re.fullmatch(regex, texts[-1])
            stats = harness.core.stats()
            # Beside a device that works on alone, nobody waits for them.
            assert (stats.spec_decode_num_accepted_tokens > 10) == (not overlap)
        assert texts[0] == texts[1]

    @OVERLAP
    def test_drafts_change_nothing(self, compiler: GrammarCompiler, overlap: bool) -> None:
        def tokens(**options: Any) -> tuple[dict[str, list[int]], Stats]:
            harness = self.harness(compiler, async_scheduling=overlap, **options)
            if not options:
                harness.core._speculator._max_forced = 0
            for i, name in enumerate("abcd"):
                outputs = StructuredOutputs(regex="(name: [a-f]{2}, ){4}(end of the list)?")
                harness.add(name, 4 + i, max_tokens=60, min_tokens=i, structured_outputs=outputs)
            harness.run()
            return harness.tokens, harness.core.stats()

        plain, without = tokens()
        for name in "abcd":
            assert re.fullmatch("(name: .., ){4}(end of the list)?", text(plain[name]))
        for options in ({}, {"num_blocks": 26, "max_num_batched_tokens": 12, "max_num_seqs": 4}):
            drafted, stats = tokens(speculative_config=FIVE_DRAFTS, **options)
            assert drafted == plain
            # All that the grammar forces was drafted, and was right.
            assert stats.spec_decode_num_accepted_tokens > 0.5 * stats.generation_tokens
            assert stats.num_steps < 0.6 * without.num_steps

    def test_with_overlap_masks_wait_for_the_step_before(self, compiler: GrammarCompiler) -> None:
        harness = self.harness(compiler, async_scheduling=True)
        harness.add("a", 3, max_tokens=2, structured_outputs=StructuredOutputs(regex="[ab]{9}"))
        harness.run()
        assert harness.runner.calls == [
            "forward 0",
            "sample 0",
            "forward 1",
            "collect 0",
            "sample 1",
            "collect 1",
        ]

    def test_a_request_that_compiles_holds_nobody_up(
        self, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without any other work the engine waits for the compiler, and does not spin."""
        monkeypatch.setattr(core, "_IDLE_WAIT_S", 0.2)
        slow = SlowCompiler(compiler)
        harness = self.harness(slow)
        harness.add("slow", 3, max_tokens=9, structured_outputs=StructuredOutputs(regex="a{3}"))
        harness.add("free", 3, max_tokens=3, ignore_eos=True)
        assert harness.core.stats().num_waiting == 2
        waits = waits_of(harness.core._constraints, "compiled", monkeypatch)
        harness.step(3)
        harness.add("too long", 500)
        harness.step()
        assert list(harness.finished) == ["free", "too long"]
        assert not any(waits)
        began = time.monotonic()
        harness.step()
        assert waits[-1] == 0.2
        assert time.monotonic() - began >= 0.2
        assert harness.core.has_unfinished
        slow.finish()
        harness.run()
        assert text(harness.tokens["slow"]) == "aaa"

    def test_an_abort_while_compiling(self, compiler: GrammarCompiler) -> None:
        slow = SlowCompiler(compiler)
        harness = self.harness(slow)
        harness.add("a", 3, structured_outputs=StructuredOutputs(regex="a"))
        harness.core.abort(["a"])
        harness.run()
        assert harness.finished["a"].finish_reason == "abort"
        slow.finish()
        assert harness.core.step() == []

    def test_a_bad_grammar_ends_with_an_error_that_names_it(
        self, compiler: GrammarCompiler
    ) -> None:
        harness = self.harness(compiler)
        harness.add("regex", 3, structured_outputs=StructuredOutputs(regex="("))
        harness.add("none", 3, structured_outputs=StructuredOutputs())
        harness.add("free", 3, max_tokens=3)
        harness.run()
        harness.check_outputs(errors={"regex", "none"})
        for name in ("regex", "none"):
            assert harness.finished[name].error_code == "invalid_request"
            assert "structured_outputs" in str(harness.finished[name].error)

    @OVERLAP
    def test_a_refusing_matcher_ends_its_request_and_no_other(
        self, compiler: GrammarCompiler, overlap: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        harness = self.harness(compiler, async_scheduling=overlap)
        harness.add("bad", 3, max_tokens=9, structured_outputs=StructuredOutputs(regex="a{8}"))
        harness.add("free", 3, max_tokens=6)
        while not harness.tokens["bad"]:
            harness.step()
        (matcher,) = harness.core._constraints._matchers.values()
        monkeypatch.setattr(matcher, "accept", lambda token_id: False)
        harness.run()
        harness.check_outputs(errors={"bad"})
        assert harness.finished["bad"].error_code == "internal"

    def test_a_matcher_that_fails_while_drafting_ends_its_request_and_no_other(
        self, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        harness = self.harness(compiler)
        harness.add("bad", 3, max_tokens=9, structured_outputs=StructuredOutputs(regex="a{8}"))
        harness.add("free", 3, max_tokens=6)
        while not harness.tokens["bad"]:
            harness.step()
        (matcher,) = harness.core._constraints._matchers.values()

        def fail(*_: object) -> None:
            raise MatcherFailed("too complex")

        for name in ("forced_tokens", "legal_prefix", "fill_mask"):
            monkeypatch.setattr(matcher, name, fail)
        harness.run()
        harness.check_outputs(errors={"bad"})
        assert harness.finished["bad"].error_code == "invalid_request"
        assert harness.finished["bad"].error == "structured_outputs: too complex"

    @OVERLAP
    def test_min_tokens_gives_in_to_the_grammar(
        self, compiler: GrammarCompiler, overlap: bool
    ) -> None:
        harness = self.harness(compiler, async_scheduling=overlap)
        outputs = StructuredOutputs(choice=("no",))
        harness.add("a", 3, max_tokens=9, min_tokens=6, structured_outputs=outputs)
        harness.run()
        assert text(harness.tokens["a"]) == "no"
        assert harness.finished["a"].finish_reason == "stop"
