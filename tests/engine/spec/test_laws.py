"""The law of what comes out of the engine, against the exact one: every proposer, every law.

A model with six tokens, whose distributions ``transformers`` computes; whole outputs, counted and
compared by a chi-square test. All seeds are fixed, so a test that passes passes always.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.request import Request
from engine.runner.startup.load import load_runner
from engine.sampling_params import SamplingParams, StructuredOutputs
from engine.spec.base import Proposer, TextProposer
from engine.spec.config import SpeculativeConfig
from grammar.compiler import GrammarCompiler
from grammar.vocabulary import Vocabulary
from tests.engine.spec.test_rejection import chi_square_p_value
from tests.engine.spec.tiny_heads import save_tiny

VOCAB = [b""] + [bytes([letter]) for letter in b"abcde"]
EOS = 0
PROMPT = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2]
LENGTH, SEEDS = 4, 350
# All that the grammar of one of the laws allows.
LANGUAGE = ("ab", "ba", "abc", "cca", "ed")

LAWS = {
    "temperature": SamplingParams(temperature=0.6),
    "top_k": SamplingParams(top_k=3),
    "top_p": SamplingParams(top_p=0.7, temperature=1.3),
    "min_p": SamplingParams(min_p=0.3),
    "presence": SamplingParams(presence_penalty=1.5),
    "frequency": SamplingParams(frequency_penalty=1.0, temperature=0.8),
    "repetition": SamplingParams(repetition_penalty=1.7),
    "logit_bias": SamplingParams(logit_bias={1: 1.5, 2: -1.0}),
    "bad_words": SamplingParams(bad_words_token_ids=((1, 2), (4,))),
    "min_tokens": SamplingParams(min_tokens=2, temperature=1.5, stop_token_ids=(1, 5)),
    "grammar": SamplingParams(structured_outputs=StructuredOutputs(regex="|".join(LANGUAGE))),
    "many": SamplingParams(
        temperature=1.2, top_k=5, top_p=0.95, frequency_penalty=0.5, logit_bias={3: 1.0}
    ),
}


# ---- what is to come out ------------------------------------------------------------------------


class Oracle:
    def __init__(self, folder: Path) -> None:
        self._model: Any = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
        self._logits = cache(self._compute)

    def _compute(self, tokens: tuple[int, ...]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = self._model(torch.tensor([[*PROMPT, *tokens]])).logits[0, -1]
            return logits.double()

    def next(self, tokens: tuple[int, ...], law: SamplingParams) -> torch.Tensor:
        """The distribution to sample from, computed the slow way."""
        logits = self._logits(tokens).clone()
        for token_id, bias in (law.logit_bias or {}).items():
            logits[token_id] += bias
        for token_id in {*PROMPT, *tokens}:
            factor = law.repetition_penalty
            logits[token_id] *= factor if logits[token_id] < 0 else 1 / factor
        for token_id, count in Counter(tokens).items():
            logits[token_id] -= law.frequency_penalty * count + law.presence_penalty
        for *before, last in law.bad_words_token_ids:
            if [*PROMPT, *tokens][len(PROMPT) + len(tokens) - len(before) :] == before:
                logits[last] = -torch.inf
        if len(tokens) < law.min_tokens:
            logits[[*law.stop_token_ids]] = -torch.inf
        if law.structured_outputs is not None:
            logits[[i for i in range(len(VOCAB)) if not _legal((*tokens, i))]] = -torch.inf
        p = (logits / law.temperature).softmax(-1)
        if law.top_k > 0:
            p[p < p.sort(descending=True).values[law.top_k - 1]] = 0
        p /= p.sum()
        order = p.argsort(descending=True)
        before_each = p[order].cumsum(-1) - p[order]
        p[order[before_each >= law.top_p]] = 0
        p[p < law.min_p * p.max()] = 0
        return p / p.sum()

    def outputs(self, law: SamplingParams) -> dict[tuple[int, ...], float]:
        """Every output and its probability."""
        found: dict[tuple[int, ...], float] = {}
        open_: dict[tuple[int, ...], float] = {(): 1.0}
        while open_:
            tokens, chance = open_.popitem()
            for token_id, p in enumerate(self.next(tokens, law).tolist()):
                longer = (*tokens, token_id)
                if p == 0:
                    continue
                if len(longer) == LENGTH or _is_end(longer, law):
                    found[longer] = chance * p
                else:
                    open_[longer] = chance * p
        return found


def _legal(tokens: tuple[int, ...]) -> bool:
    text = b"".join(VOCAB[token_id] for token_id in tokens).decode()
    if tokens[-1] == EOS:
        return text in LANGUAGE
    return any(word.startswith(text) for word in LANGUAGE)


def _is_end(tokens: tuple[int, ...], law: SamplingParams) -> bool:
    if law.structured_outputs is not None:
        return tokens[-1] == EOS
    return tokens[-1] in law.stop_token_ids and len(tokens) >= law.min_tokens


# ---- what does ----------------------------------------------------------------------------------


class Adversary(TextProposer):
    """Drafts what the law makes least likely, or impossible."""

    def __init__(self, oracle: Oracle) -> None:
        plain = SamplingParams()
        self._worst = cache(lambda tokens: int(oracle.next(tokens, plain).argmin()))

    def continue_text(self, request: Request, max_tokens: int) -> list[int]:
        tokens = tuple(request.token_ids[len(PROMPT) :])
        drafts: tuple[int, ...] = ()
        while len(drafts) < max_tokens:
            worst = self._worst(tokens + drafts)
            drafts += ((worst + len(drafts)) % len(VOCAB),)
        return list(drafts)

    def drop(self, request: Request) -> None:
        """Nothing is kept."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def configs(folder: Path) -> dict[str, dict[str, Any]]:
    return save_tiny(folder, len(VOCAB))


@pytest.fixture(scope="module")
def oracle(folder: Path, configs: object) -> Oracle:
    return Oracle(folder / "target")


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(Vocabulary(VOCAB, {EOS}, set(), len(VOCAB)))
    yield compiler
    compiler.close()


def generate(
    folder: Path,
    compiler: GrammarCompiler,
    speculative: dict[str, Any],
    proposer: Proposer | None,
    prediction: list[int],
) -> tuple[dict[str, list[tuple[int, ...]]], EngineCore]:
    """``SEEDS`` outputs of each law."""
    config = EngineConfig(
        model=str(folder / "target"),
        device="cpu",
        num_threads=1,
        block_size=4,
        max_num_seqs=256,
        num_gpu_blocks_override=2048,
        speculative_config=SpeculativeConfig(
            num_speculative_tokens=2, adaptive=False, **speculative
        ),
    )
    runner = load_runner(config)
    core = EngineCore(
        config,
        runner,
        max_model_len=runner.max_model_len,
        eos_token_ids={EOS},
        grammar=compiler,
        proposer=proposer,
    )
    outputs: dict[str, list[int]] = {}
    for name, law in LAWS.items():
        is_open = law.structured_outputs is None
        for seed in range(SEEDS):
            params = msgspec.structs.replace(
                law, seed=seed, max_tokens=LENGTH if is_open else LENGTH + 1, ignore_eos=is_open
            )
            request_id = f"{name}/{seed}"
            outputs[request_id] = []
            core.add_request(
                GenerateRequest(
                    request_id=request_id,
                    prompt_token_ids=PROMPT,
                    params=params,
                    prediction_token_ids=prediction,
                )
            )
    while core.has_unfinished:
        for output in core.step():
            assert output.error is None
            outputs[output.request_id] += output.new_token_ids
    core.check_integrity()
    by_law: dict[str, list[tuple[int, ...]]] = {name: [] for name in LAWS}
    for request_id, tokens in outputs.items():
        by_law[request_id.split("/")[0]].append(tuple(tokens))
    return by_law, core


@pytest.mark.parametrize(
    "method",
    [
        *("ngram", "predicted", "draft_model", "medusa", "adversary"),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("suffix", "eagle", "eagle3")),
    ],
)
def test_the_law_is_the_exact_one(
    folder: Path,
    configs: dict[str, dict[str, Any]],
    oracle: Oracle,
    compiler: GrammarCompiler,
    method: str,
) -> None:
    adversary = Adversary(oracle) if method == "adversary" else None
    prediction = [1, 2, 5, 1, 2] if method == "predicted" else []
    config = configs.get(method, configs["ngram"])
    by_law, core = generate(folder, compiler, config, adversary, prediction)
    stats = core.stats()
    assert stats.spec_decode_num_draft_tokens > 2 * SEEDS
    assert 0 < stats.spec_decode_num_accepted_tokens < stats.spec_decode_num_draft_tokens
    for name, law in LAWS.items():
        probabilities = oracle.outputs(law)
        counts = Counter(by_law[name])
        assert set(counts) <= set(probabilities), f"{name}: something that the law forbids"
        p_value = compare(counts, probabilities)
        assert p_value > 1e-3, f"{name}: {p_value}"


def compare(counts: Counter[tuple[int, ...]], probabilities: dict[tuple[int, ...], float]) -> float:
    """Rare outputs are one class."""
    usual = [tokens for tokens, p in probabilities.items() if p * SEEDS >= 5]
    observed = [counts[tokens] for tokens in usual]
    expected = [probabilities[tokens] * SEEDS for tokens in usual]
    if SEEDS - sum(expected) >= 1:
        observed.append(SEEDS - sum(observed))
        expected.append(SEEDS - sum(expected))
    assert len(observed) >= 3, "too few outputs to tell laws apart"
    return chi_square_p_value(observed, expected)


def test_the_comparison_tells_laws_apart(folder: Path, oracle: Oracle) -> None:
    """Outputs of one law under the probabilities of another."""
    probabilities = oracle.outputs(LAWS["temperature"])
    likely = Counter(
        {tokens: round(p * SEEDS) for tokens, p in oracle.outputs(LAWS["min_p"]).items()}
    )
    assert compare(likely, probabilities) < 1e-6
