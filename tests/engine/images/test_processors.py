"""Sizes, tokens and pixels, held to transformers' processors that use Pillow."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from engine.errors import ImageTooLarge, ModelLoadError
from engine.images.load import load_processor
from engine.images.prepare import prepare
from engine.images.processor import LOW_DETAIL_TOKENS, Fit, ImageProcessor, Normalization
from tests.engine import seeing, toys
from tests.engine.seeing import Seeing

FAMILIES = pytest.mark.parametrize("family", seeing.FAMILIES, ids=lambda family: family.name)
PLAIN = Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 1 / 255)


def loaded(family: Seeing, folder: Path, **changes: Any) -> ImageProcessor:
    processor = load_processor(seeing.write_processor(family, folder, **changes))
    assert processor is not None
    return processor


def noise(size: tuple[int, int]) -> Image.Image:
    width, height = size
    shape = (height, width, 3)
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, shape, np.uint8))


def normalized(processor: ImageProcessor, fit: Fit, pixels: bytes) -> Any:
    """[3, height, width]: what the encoder reads."""
    picture = np.frombuffer(pixels, np.uint8).reshape(fit.height, fit.width, 3)
    table = processor.normalization.table()
    return np.stack([table[channel][picture[:, :, channel]] for channel in range(3)])


@FAMILIES
def test_pixels_have_the_bits_of_transformers(family: Seeing, tmp_path: Path) -> None:
    """Several pictures of one call, each compared."""
    processor = loaded(family, tmp_path)
    reference = seeing.image_processor(family, tmp_path)
    pictures = [noise(size) for size in seeing.SIZES]
    expected = reference(pictures, return_tensors="np")
    start = 0
    for picture, grid in zip(pictures, expected["image_grid_thw"], strict=True):
        prepared = prepare(processor, picture)
        fit = prepared.fit
        ours, *_ = reference.patchify(
            normalized(processor, fit, prepared.pixels),
            reference.patch_size,
            reference.merge_size,
            reference.temporal_patch_size,
        )
        patches = expected["pixel_values"][start : start + grid.prod()]
        assert np.array_equal(ours, patches)
        assert ours.dtype == patches.dtype
        assert fit.rows * fit.columns == grid.prod() // reference.merge_size**2
        start += grid.prod()


@FAMILIES
def test_a_placeholder_becomes_what_transformers_writes(family: Seeing, tmp_path: Path) -> None:
    from transformers import Qwen3VLProcessor

    processor = loaded(family, tmp_path)
    reference = seeing.image_processor(family, tmp_path)
    tokenizer = seeing.tokenizer(family.tokens)
    expander: Any = SimpleNamespace(
        image_processor=reference, image_token=tokenizer.id_to_token(processor.image_token_id)
    )
    pictures = [noise(size) for size in seeing.SIZES]
    inputs = reference(pictures, return_tensors="np")
    for index, picture in enumerate(pictures):
        text = Qwen3VLProcessor.replace_image_token(expander, inputs, index)
        fit = processor.fit(*picture.size)
        assert processor.tokens(fit) == tokenizer.encode(text, add_special_tokens=False).ids
        assert len(processor.tokens(fit)) == fit.num_tokens


@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.sampled_from([14, 28, 32]),
    st.integers(1, 300_000),
    st.integers(1, 300_000),
)
def test_qwens_sizes(width: int, height: int, side: int, fewest: int, more: int) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    from engine.images.qwen3_vl import Processor

    processor = Processor(
        placeholder=1,
        image_token_id=1,
        resample=3,
        normalization=PLAIN,
        side=side,
        min_pixels=fewest,
        max_pixels=fewest + more,
    )
    try:
        expected = smart_resize(height, width, side, fewest, fewest + more)
    except ValueError:
        with pytest.raises(ImageTooLarge, match="more than 200 times as long"):
            processor.fit(width, height)
        return
    fit = processor.fit(width, height)
    assert (fit.height, fit.width) == expected
    assert fit == processor.fit(width, height, "high")
    assert fit.num_tokens == fit.rows * fit.columns == fit.height * fit.width // side**2
    low = processor.fit(width, height, "low")
    assert low.num_tokens <= min(fit.num_tokens, 2 * LOW_DETAIL_TOKENS)
    if max(width, height) < 2 * min(width, height):
        assert low.num_tokens <= 1.25 * LOW_DETAIL_TOKENS


@FAMILIES
def test_digests_depend_on_pixels_size_and_parameters(family: Seeing, tmp_path: Path) -> None:
    processor = loaded(family, tmp_path)
    picture = noise((64, 48))
    one = prepare(processor, picture)
    assert one == prepare(processor, picture.copy())
    assert len(one.digest) == 32
    assert len(one.pixels) == 3 * one.fit.height * one.fit.width
    other = picture.copy()
    other.putpixel((0, 0), (1, 2, 3))
    changed = loaded(family, tmp_path, image_mean=[0.25, 0.5, 0.5])
    digests = {
        one.digest,
        prepare(processor, other).digest,
        prepare(changed, picture).digest,
        prepare(processor, Image.new("RGB", (64, 64))).digest,
        prepare(processor, Image.new("RGB", (32, 128))).digest,
    }
    assert len(digests) == 5
    assert pickle.loads(pickle.dumps(processor)) == processor


@FAMILIES
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("do_resize", False, "do_resize: false is not supported"),
        ("do_normalize", False, "do_normalize: false is not supported"),
        ("resample", 17, "resample: must be one of Pillow's filters, got 17"),
        ("image_std", [0.5, 0.0, 0.5], "image_std: must not be 0"),
        ("image_mean", [0.5], "image_mean"),
    ],
)
def test_settings_that_are_not_followed_are_refused(
    family: Seeing, tmp_path: Path, field: str, value: object, message: str
) -> None:
    with pytest.raises(ModelLoadError, match=rf"preprocessor_config.json: .*{message}"):
        loaded(family, tmp_path, **{field: value})


def test_a_processor_file_may_hold_all_settings(tmp_path: Path) -> None:
    """As transformers 5 saves them."""
    folder = seeing.write_processor(seeing.QWEN3_VL, tmp_path)
    expected = load_processor(folder)
    settings = (folder / "preprocessor_config.json").read_text()
    (folder / "processor_config.json").write_text(f'{{"image_processor": {settings}}}')
    (folder / "preprocessor_config.json").unlink()
    assert load_processor(folder) == expected
    (folder / "processor_config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"preprocessor_config.json .* needs it"):
        load_processor(folder)


def test_older_names_of_qwens_sizes(tmp_path: Path) -> None:
    processor = loaded(seeing.QWEN3_VL, tmp_path, min_pixels=4096, max_pixels=8192)
    assert processor.fit(10, 10).height == processor.fit(10, 10).width == 64
    with pytest.raises(ModelLoadError, match="shortest_edge 4096 is above longest_edge 1024"):
        loaded(seeing.QWEN3_VL, tmp_path, size={"shortest_edge": 4096, "longest_edge": 1024})


def test_models_that_do_not_see_have_none(tmp_path: Path) -> None:
    toys.write_model_folder(tmp_path, config={"architectures": ["LlamaForCausalLM"]})
    assert load_processor(tmp_path) is None
