"""Every family against transformers: the logits of each way to compute them, and greedy text."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.layers.attention import StepContext
from engine.llm import LLM, SamplingParams
from engine.outputs import CompletionOutput
from engine.runner import TorchRunner, load_runner
from engine.spec.config import SpeculativeConfig
from tests.engine.models.families import CASES, FALLBACK_CASES, PROMPT_LEN, Case, reference, write
from tests.engine.runner.harness import Generation, Harness

BLOCK_SIZE = 4
NUM_DECODED = 10
NUM_GREEDY = 16
TOLERANCE = 1e-4


class Subject:
    """A checkpoint, loaded by us and by transformers."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.folder = write(case, folder)
        self.theirs = reference(case, self.folder)
        self.runner = load_runner(
            EngineConfig(
                model=str(self.folder),
                device="cpu",
                block_size=BLOCK_SIZE,
                max_num_seqs=4,
                num_gpu_blocks_override=100,
                num_threads=1,
            )
        )
        rng = random.Random(1)
        self.prompt = [rng.randrange(3, self.runner.vocab_size) for _ in range(PROMPT_LEN)]

    def assert_greedy(self, prompt: list[int], output: list[int]) -> None:
        """It is what transformers continues the prompt with: each token is the likeliest behind
        those before it."""
        with torch.inference_mode():
            logits = self.theirs(torch.tensor([prompt + output]), use_cache=False).logits[0]
        assert output == logits[len(prompt) - 1 : -1].argmax(1).tolist()

    def assert_logits_equal(self, seen: list[torch.Tensor], done: Generation) -> None:
        """seen: the logits that each token of ``done.output`` was drawn from."""
        ids = torch.tensor([done.prompt + done.output[:-1]])
        with torch.inference_mode():
            expected = self.theirs(ids, use_cache=False).logits[0, len(done.prompt) - 1 :]
        ours = torch.cat(seen)
        assert ours.shape == expected.shape
        assert (ours - expected).abs().max() < TOLERANCE
        assert expected.std() > 0.05, "logits too alike to tell anything"


EACH = pytest.mark.parametrize(
    "subject",
    [*CASES, *FALLBACK_CASES],
    ids=lambda case: case.name,
    indirect=True,
    scope="module",
)


def with_fallbacks_at_night(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "subject",
        [
            *cases,
            FALLBACK_CASES[0],
            *(pytest.param(case, marks=pytest.mark.nightly) for case in FALLBACK_CASES[1:]),
        ],
        ids=lambda case: case.name,
        indirect=True,
        scope="module",
    )


FALLBACKS_AT_NIGHT = with_fallbacks_at_night(CASES)
"""What transformers computes goes through one adapter: by day its first architecture tries every
way, each other the one that has a prompt, a cached prefix and decoding in it."""


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(request.param, tmp_path_factory.mktemp(request.param.name))


@pytest.fixture
def seen(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The logits of every step that sampled."""
    return watch_logits(subject.runner, monkeypatch)


def watch_logits(runner: TorchRunner, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    model = runner._forward_pass.executors.eager.model
    compute: Callable[[torch.Tensor], torch.Tensor] = model.logits

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        scores = compute(hidden)
        seen.append(scores.clone())  # a mask is applied in place
        return scores

    monkeypatch.setattr(model, "logits", logits)
    return seen


def harness(subject: Subject) -> Harness:
    return Harness(subject.runner, block_size=BLOCK_SIZE, max_rows=4)


@FALLBACKS_AT_NIGHT
def test_logits(subject: Subject, seen: list[torch.Tensor]) -> None:
    """Of the prompt at once, then of each token by itself."""
    done = Generation("a", subject.prompt, NUM_DECODED)
    harness(subject).run([done])
    subject.assert_logits_equal(seen, done)


@FALLBACKS_AT_NIGHT
def test_logits_of_chunks(subject: Subject, seen: list[torch.Tensor]) -> None:
    done = Generation("a", subject.prompt, NUM_DECODED)
    harness(subject).run([done], chunk_size=7)
    subject.assert_logits_equal(seen, done)


@EACH
def test_logits_after_a_prefix_hit(subject: Subject, seen: list[torch.Tensor]) -> None:
    # The first request prefills in a step of its own, then both decode in every step.
    first = Generation("first", subject.prompt, 1 + NUM_DECODED)
    # Past whole blocks, part of one is copied.
    hit = Generation("hit", [*subject.prompt[:30], 5, 9, 4], NUM_DECODED, shares=(first, 30))
    harness(subject).run([first, hit])
    assert [len(logits) for logits in seen] == [1, *[2] * NUM_DECODED]
    subject.assert_logits_equal([logits[-1:] for logits in seen[1:]], hit)


@FALLBACKS_AT_NIGHT
def test_a_step_ends_with_the_tokens_that_are_sampled_from(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A last layer leaves the others out, or one where nothing is sampled."""
    executor = subject.runner._forward_pass.executors.eager
    compute, states = executor.hidden_states, subject.runner._blocks.cache.states
    sizes: list[tuple[int, int]] = []

    def both(token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        before = torch.empty(0) if states is None else states.memory.clone()
        wanted = compute(token_ids, step)
        if states is not None:
            states.memory.copy_(before)
        every = compute(token_ids, replace(step, wanted=None))
        torch.testing.assert_close(wanted, step.kept(every))
        sizes.append((len(every), len(wanted)))
        return wanted

    monkeypatch.setattr(executor, "hidden_states", both)
    harness(subject).run([Generation("a", subject.prompt, 2)], chunk_size=len(subject.prompt) // 2)
    half = len(subject.prompt) // 2
    whole = [(half, 1)] * (len(subject.prompt) // half)
    rest = [(len(subject.prompt) % half, 1)] if len(subject.prompt) % half else []
    assert sizes == [*whole, *rest, (1, 1)]


GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_GREEDY, ignore_eos=True)


def generate(subject: Subject, **options: Any) -> tuple[LLM, list[CompletionOutput]]:
    llm = LLM(
        subject.folder,
        device="cpu",
        num_gpu_blocks_override=100,
        num_threads=1,
        block_size=4,
        **options,
    )
    results = llm.generate(list(subject.case.prompts), GREEDY)
    return llm, [result.outputs[0] for result in results]


@FALLBACKS_AT_NIGHT
def test_greedy_text_of_a_batch(subject: Subject) -> None:
    llm, outputs = generate(subject)
    for prompt, output in zip(subject.case.prompts, outputs, strict=True):
        assert len(output.token_ids) == NUM_GREEDY
        subject.assert_greedy(llm.get_tokenizer().encode(prompt), output.token_ids)
        assert output.text == llm.get_tokenizer().decode(output.token_ids)


@with_fallbacks_at_night([case for case in CASES if not case.has_states])
def test_greedy_text_with_drafts(subject: Subject) -> None:
    drafts = SpeculativeConfig(
        method="ngram", num_speculative_tokens=3, prompt_lookup_min=1, adaptive=False
    )
    llm, outputs = generate(subject, speculative_config=drafts)
    for prompt, output in zip(subject.case.prompts, outputs, strict=True):
        subject.assert_greedy(llm.get_tokenizer().encode(prompt), output.token_ids)
    assert llm.stats().spec_decode_num_draft_tokens > 0
