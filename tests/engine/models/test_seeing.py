"""Models that see, whole, held to transformers on random small checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from engine.errors import InvalidRequest
from engine.images.load import load_processor
from engine.llm import LLM, SamplingParams
from engine.prompt_images import placed
from tests.engine import seeing
from tests.engine.models import families
from tests.engine.seeing import Seeing

MAX_TOKENS = 6


REFUSED = [seeing.GEMMA3]
SERVED = [family for family in seeing.FAMILIES if family not in REFUSED]


@pytest.fixture(scope="module", params=SERVED, ids=lambda family: family.name)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[Seeing, Path]:
    family: Seeing = request.param
    return family, seeing.write(family, tmp_path_factory.mktemp(family.name))


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


PICTURES = [picture(64, 48, 1), picture(33, 100, 2), picture(120, 40, 3)]


def prompt(folder: Path, num_pictures: int) -> list[int]:
    """Text, pictures between it, and text behind the last; each with one placeholder."""
    processor = load_processor(folder)
    assert processor is not None
    ids = [5, 9, 12, 40, 41]
    for number in range(num_pictures):
        ids += [processor.placeholder, 60 + number, 30]
    return [*ids, 7, 8]


def engine(folder: Path, **options: Any) -> LLM:
    return LLM(
        model=str(folder), device="cpu", dtype="float32", num_gpu_blocks_override=200, **options
    )


def expected(
    family: Seeing, folder: Path, num_pictures: int, pictures: list[Image.Image]
) -> tuple[list[int], torch.Tensor]:
    """transformers' greedy tokens, and the log-probabilities after the prompt and each of them."""
    processor = load_processor(folder)
    assert processor is not None
    ids, inputs = prompt(folder, num_pictures), {}
    if pictures:
        ids, _ = placed(processor, ids, pictures)
        processed = seeing.image_processor(family, folder)(pictures, return_tensors="pt")
        inputs = family.image_inputs(processed)
    model = families.reference(family.case, folder)
    logprobs: list[torch.Tensor] = []
    new: list[int] = []
    for _ in range(MAX_TOKENS):
        input_ids = torch.tensor([[*ids, *new]])
        if "image_grid_thw" in inputs:
            inputs["mm_token_type_ids"] = (input_ids == processor.image_token_id).int()
        with torch.inference_mode():
            logits = model(input_ids, **inputs, use_cache=False).logits
        logprobs.append(logits[0, -1].log_softmax(-1))
        new.append(int(logprobs[-1].argmax()))
    return new, torch.stack(logprobs)


def answer(
    llm: LLM, folder: Path, num_pictures: int, pictures: list[Image.Image]
) -> tuple[list[int], list[float]]:
    given: Any = {"prompt_token_ids": prompt(folder, num_pictures)}
    if pictures:
        given["multi_modal_data"] = {"image": pictures}
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=0)
    (output,) = llm.generate([given], params)
    completion = output.outputs[0]
    assert completion.logprobs is not None
    found = [next(iter(one.values())).logprob for one in completion.logprobs]
    return completion.token_ids, found


def check(
    llm: LLM, family: Seeing, folder: Path, num_pictures: int, pictures: list[Image.Image]
) -> None:
    tokens, logprobs = expected(family, folder, num_pictures, pictures)
    ours, found = answer(llm, folder, num_pictures, pictures)
    assert ours == tokens
    theirs = logprobs[torch.arange(MAX_TOKENS), torch.tensor(tokens)]
    torch.testing.assert_close(torch.tensor(found), theirs, atol=2e-4, rtol=0)


def test_it_sees_what_transformers_sees(checkpoint: tuple[Seeing, Path]) -> None:
    """No picture, one, several: whole, again from the cache, and in chunks that cut pictures."""
    family, folder = checkpoint
    whole = engine(folder)
    for number in (0, 1, 3):
        check(whole, family, folder, number, PICTURES[:number])
    check(whole, family, folder, 3, PICTURES)
    cut = engine(folder, max_num_batched_tokens=7)
    check(cut, family, folder, 3, PICTURES)


def test_another_picture_gives_another_answer(checkpoint: tuple[Seeing, Path]) -> None:
    _, folder = checkpoint
    llm = engine(folder)
    one, other = ([picture(64, 48, seed)] for seed in (1, 9))
    first = answer(llm, folder, 1, one)[1]
    assert answer(llm, folder, 1, other)[1] != pytest.approx(first, abs=1e-4)
    assert answer(llm, folder, 1, one)[1] == pytest.approx(first, abs=1e-4)


@pytest.mark.parametrize("family", REFUSED, ids=lambda family: family.name)
def test_pictures_that_are_not_served_are_refused_by_name(family: Seeing, tmp_path: Path) -> None:
    llm = engine(seeing.write(family, tmp_path))
    with pytest.raises(InvalidRequest, match="images: not served for Gemma 3"):
        answer(llm, tmp_path, 1, PICTURES[:1])
    check(llm, family, tmp_path, 0, [])
