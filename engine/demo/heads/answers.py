"""Answers of the demo model, which its draft heads learn to predict."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.demo.data import Split, examples
from engine.demo.evaluate import MAX_TOKENS
from engine.demo.template import render
from engine.demo.vocabulary import MAX_LENGTH
from engine.llm import LLM, SamplingParams, TokensPrompt
from engine.text.tokenizer import Tokenizer

_CHATS_PER_JOB = 1000
_LENGTH_MULTIPLE = 32
_TEMPERATURES = (0.0, 0.3, 0.7, 1.0)


@dataclass(frozen=True, slots=True)
class Prompt:
    kind: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Answer:
    kind: str
    token_ids: list[int]
    """Prompt and answer."""
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Answers of similar length, padded on the right."""

    token_ids: npt.NDArray[np.int64]
    """[rows, length]"""
    said: npt.NDArray[np.bool_]
    """[rows, length] bool: whether the model generated the token."""


def draw_prompts(model: Path, split: Split, seed: int, count: int) -> list[Prompt]:
    """``count`` prompts, without those that are too long. All cores make them."""
    jobs = [
        (model, split, seed * 1_000_000 + start, min(_CHATS_PER_JOB, count - start))
        for start in range(0, count, _CHATS_PER_JOB)
    ]
    if len(jobs) == 1:
        return _prompts_of(jobs[0])
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(len(jobs), os.cpu_count() or 1)) as pool:
        return [prompt for made in pool.imap(_prompts_of, jobs) for prompt in made]


def _prompts_of(job: tuple[Path, Split, int, int]) -> list[Prompt]:
    model, split, seed, count = job
    tokenizer = Tokenizer.load(model)
    found = []
    for example in islice(examples(split, seed), count):
        text = render(example.prompt, example.tools, add_generation_prompt=True)
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        if len(token_ids) < MAX_LENGTH - MAX_TOKENS:
            found.append(Prompt(example.kind, token_ids))
    return found


def answer(llm: LLM, prompts: Sequence[Prompt]) -> list[Answer]:
    """The model's answers to the prompts, greedily or at one of a few temperatures."""
    params = [
        SamplingParams(
            temperature=_TEMPERATURES[i % len(_TEMPERATURES)], max_tokens=MAX_TOKENS, seed=i
        )
        for i in range(len(prompts))
    ]
    results = llm.generate([TokensPrompt(prompt_token_ids=p.token_ids) for p in prompts], params)
    return [
        Answer(p.kind, p.token_ids + result.outputs[0].token_ids, len(p.token_ids))
        for p, result in zip(prompts, results, strict=True)
    ]


def batches(answers: Sequence[Answer], tokens_per_batch: int, seed: int) -> Iterator[Batch]:
    """All answers over and over, each time in another order."""
    rng = random.Random(seed)
    while True:
        # Sorted by length, but for a shuffle among neighbours: batches differ from time to time.
        order = sorted(answers, key=lambda a: len(a.token_ids) * rng.uniform(0.9, 1.1))
        made: list[list[Answer]] = [[]]
        for one in order:
            longest = max((len(a.token_ids) for a in (*made[-1], one)), default=0)
            if made[-1] and _padded(longest) * (len(made[-1]) + 1) > tokens_per_batch:
                made.append([])
            made[-1].append(one)
        rng.shuffle(made)
        yield from map(_pad, made)


def _padded(length: int) -> int:
    return -(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE


def _pad(rows: Sequence[Answer]) -> Batch:
    length = _padded(max(len(row.token_ids) for row in rows))
    token_ids = np.zeros((len(rows), length), np.int64)
    said = np.zeros((len(rows), length), np.bool_)
    for i, row in enumerate(rows):
        token_ids[i, : len(row.token_ids)] = row.token_ids
        said[i, row.num_prompt_tokens : len(row.token_ids)] = True
    return Batch(token_ids, said)
