"""Models that see, whole, held to transformers on random small checkpoints."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from engine.errors import InvalidRequest
from engine.images.load import load_processor
from engine.llm import LLM, SamplingParams
from engine.prompt_images import placed
from engine.runner.startup import estimate
from tests.engine import seeing
from tests.engine.models import families
from tests.engine.ranks.threads import make
from tests.engine.runner.emulated_graphs import emulate
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
    options = {"num_gpu_blocks_override": 200, **options}
    return LLM(model=str(folder), device="cpu", dtype="float32", **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """For what all families have in common."""
    return seeing.write(seeing.QWEN3_VL, tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return engine(folder)


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


MIXED = [(1, PICTURES[:1]), (3, PICTURES), (0, []), (2, PICTURES[1:]), (1, PICTURES[2:])]


def asked(folder: Path, num_pictures: int, pictures: list[Image.Image]) -> Any:
    given: Any = {"prompt_token_ids": prompt(folder, num_pictures)}
    if pictures:
        given["multi_modal_data"] = {"image": pictures}
    return given


def answer(
    llm: LLM, folder: Path, num_pictures: int, pictures: list[Image.Image]
) -> tuple[list[int], list[float]]:
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=0)
    (output,) = llm.generate([asked(folder, num_pictures, pictures)], params)
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


DRAFTING = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 2,
    "adaptive": False,
}
HOW: list[Any] = [
    ("preempted", {"num_gpu_blocks_override": 12, "block_size": 16, "forecast_admission": False}),
    ("swapped", {"num_gpu_blocks_override": 12, "forecast_admission": False, "swap_space": 0.001}),
    ("little encoder cache", {"image_cache_bytes": 1, "max_num_image_tokens": 1}),
    ("overlapping", {"async_scheduling": True, "max_num_batched_tokens": 16}),
    ("drafting", {"speculative_config": DRAFTING}),
    ("without prefix cache", {"enable_prefix_caching": False}),
]


@pytest.mark.parametrize("options", [how[1] for how in HOW], ids=[how[0] for how in HOW])
def test_many_at_once_see_what_each_sees_alone(
    llm: LLM, folder: Path, options: dict[str, Any]
) -> None:
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, n=2)
    prompts = [asked(folder, number, pictures) for number, pictures in MIXED]
    alone = [llm.generate([one], params)[0].outputs for one in prompts]
    other = engine(folder, **options)
    together = [output.outputs for output in other.generate(prompts, params)]
    for ours, theirs in zip(together, alone, strict=True):
        assert [c.token_ids for c in ours] == [c.token_ids for c in theirs]
    if "forecast_admission" in options:
        assert other.stats().num_preemptions > 0
        assert bool(other.stats().swapped_out_blocks) == ("swap_space" in options)


@pytest.mark.parametrize("drafting", [None, DRAFTING])
def test_recorded_steps_rotate_as_eager_ones_do(
    llm: LLM, folder: Path, drafting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of requests with and without pictures, in one batch."""
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    prompts = [asked(folder, number, pictures) for number, pictures in MIXED]
    eager = [llm.generate([one], params)[0].outputs[0].token_ids for one in prompts]
    recorded = engine(folder, max_num_seqs=8, speculative_config=drafting)
    runner = recorded._core._runner  # type: ignore[attr-defined]
    decoding, checking, _ = emulate(runner, monkeypatch, 3 if drafting else 0)
    found = [output.outputs[0].token_ids for output in recorded.generate(prompts, params)]
    assert found == eager
    assert decoding.num_runs + checking.num_runs > 10
    assert bool(checking.num_runs) == bool(drafting)


def test_ranks_see_alike(checkpoint: tuple[Seeing, Path]) -> None:
    family, folder = checkpoint
    if family.case.has_states:
        pytest.skip("layers with recurrent states are not divided")
    llm = make(folder, 2, num_gpu_blocks_override=400)
    check(llm, family, folder, 3, PICTURES)


def test_stages_refuse_pictures_by_name(folder: Path) -> None:
    llm = make(folder, 1, pipeline_parallel_size=2)
    with pytest.raises(InvalidRequest, match="images: not served with pipeline_parallel_size"):
        answer(llm, folder, 1, PICTURES[:1])
    check(llm, seeing.QWEN3_VL, folder, 0, [])


def test_the_check_of_a_model_counts_its_encoder(checkpoint: tuple[Seeing, Path]) -> None:
    _, folder = checkpoint
    found = estimate.check(str(folder), None, 1 << 36)
    stored = load_file(folder / "model.safetensors").values()
    assert found.needs[0].weight_bytes == sum(tensor.nbytes for tensor in stored)
    (folder / "preprocessor_config.json").rename(folder / "hidden")
    found = estimate.check(str(folder), None, 1 << 36)
    (folder / "hidden").rename(folder / "preprocessor_config.json")
    assert any("pictures: the model's folder has no preproc" in one for one in found.missing)


def test_chats_with_pictures(checkpoint: tuple[Seeing, Path], tmp_path: Path) -> None:
    """As Pillow's images, paths and data: URLs, in any of the parts' spellings."""
    _, folder = checkpoint
    llm = engine(folder)
    path = tmp_path / "a picture.png"
    PICTURES[0].save(path)
    url = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    spellings: list[dict[str, Any]] = [
        {"type": "image", "image": PICTURES[0]},
        {"type": "image", "image": path},
        {"type": "image", "image": f"file://{path}"},
        {"type": "image_pil", "image_pil": PICTURES[0]},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=0)
    found = []
    for part in spellings:
        content = [part, {"type": "text", "text": "the cat"}]
        (output,) = llm.chat([{"role": "user", "content": content}], params)
        assert output.outputs[0].logprobs is not None
        found.append([next(iter(one.values())).logprob for one in output.outputs[0].logprobs])
        assert len(output.prompt_token_ids) > 12
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"multi_modal_data": {"video": []}}, 'multi_modal_data must be {"image": one'),
        ({"multi_modal_data": {"image": PICTURES}}, "has 1 placeholders .* for 3 images"),
        ({"multi_modal_data": {"image": "/nowhere.png"}}, "image 0: .*No such file"),
        ({"multi_modal_data": {"image": "https://a/b.png"}}, "image 0: nothing is fetched here"),
        ({"multi_modal_data": {"image": b"%PDF-1.7"}}, "image 0: .*PDF"),
        ({"multi_modal_data": {"image": 5}}, "image 0: must be one of Pillow's images"),
        ({"multi_modal_data": {"image": "data:image/png;base64,?"}}, "the data: URL is no base64"),
    ],
)
def test_pictures_that_are_refused(llm: LLM, folder: Path, given: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate(given | {"prompt_token_ids": prompt(folder, 1)})
    assert llm.stats().num_waiting == llm.stats().num_running == 0


def test_a_model_that_does_not_see_refuses_pictures_by_name() -> None:
    llm = LLM("engine/demo/model", device="cpu", num_gpu_blocks_override=20)
    part = {"type": "image", "image": PICTURES[0]}
    with pytest.raises(InvalidRequest, match="images: the model does not see"):
        llm.generate([{"prompt_token_ids": [5, 6], "multi_modal_data": {"image": PICTURES[0]}}])
    with pytest.raises(InvalidRequest):
        llm.chat([{"role": "user", "content": [part]}])
    with pytest.raises(InvalidRequest, match="parts of type 'video_url' are not supported"):
        llm.chat([{"role": "user", "content": [{"type": "video_url", "video_url": "a"}]}])


@pytest.mark.parametrize("family", REFUSED, ids=lambda family: family.name)
def test_pictures_that_are_not_served_are_refused_by_name(family: Seeing, tmp_path: Path) -> None:
    llm = engine(seeing.write(family, tmp_path))
    with pytest.raises(InvalidRequest, match="images: not served for Gemma 3"):
        answer(llm, tmp_path, 1, PICTURES[:1])
    check(llm, family, tmp_path, 0, [])
