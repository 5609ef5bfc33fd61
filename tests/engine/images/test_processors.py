"""Sizes, tokens and pixels, held to transformers' processors that use Pillow."""

from __future__ import annotations

import importlib
import pickle
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
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


def patchified(family: Seeing, reference: Any, inputs: Any) -> list[Any]:
    """What transformers makes of each picture, in the shape of ``normalized``."""
    if "image_grid_thw" not in inputs:
        sizes = inputs.get("image_sizes", [p.shape[1:] for p in inputs["pixel_values"]])
        # Pictures of a batch are padded to one size.
        return [p[:, :h, :w] for p, (h, w) in zip(inputs["pixel_values"], sizes, strict=True)]
    pictures, start = [], 0
    merge, side = reference.merge_size, reference.patch_size
    for _, rows, columns in inputs["image_grid_thw"]:
        flat = inputs["pixel_values"][start : start + rows * columns]
        start += rows * columns
        shape = (rows // merge, columns // merge, merge, merge, 3, 2, side, side)
        patches = flat.reshape(shape)
        assert np.array_equal(patches[..., 0, :, :], patches[..., 1, :, :])
        picture = patches[..., 0, :, :].transpose(4, 0, 2, 5, 1, 3, 6)
        pictures.append(picture.reshape(3, rows * side, columns * side))
    return pictures


@FAMILIES
def test_pixels_have_the_bits_of_transformers(family: Seeing, tmp_path: Path) -> None:
    """Several pictures of one call, each compared."""
    processor = loaded(family, tmp_path)
    reference = seeing.image_processor(family, tmp_path)
    pictures = [noise(size) for size in seeing.SIZES]
    inputs = reference(pictures, return_tensors="np")
    expected = patchified(family, reference, inputs)
    for picture, theirs in zip(pictures, expected, strict=True):
        prepared = prepare(processor, picture)
        ours = normalized(processor, prepared.fit, prepared.pixels)
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)


def written(family: Seeing, reference: Any, inputs: Any, index: int) -> str:
    """What transformers writes into a prompt for a picture."""
    name = family.processor.removesuffix("Processor").lower()
    module = {"qwen3vl": "qwen3_vl", "qwen2_5_vl": "qwen2_5_vl"}.get(name, name)
    path = f"transformers.models.{module}"
    needs_torchvision = ModuleType(f"{path}.image_processing_{module}")
    needs_torchvision.get_resize_output_image_size = None  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        if module == "pixtral":
            patch.setitem(sys.modules, needs_torchvision.__name__, needs_torchvision)
        kind = vars(importlib.import_module(f"{path}.processing_{module}"))[family.processor]
    begin, end, image = "<start_of_image>", "<end_of_image>", "<image_soft_token>"
    processor = SimpleNamespace(
        image_processor=reference,
        image_token="[IMG]" if family.name == "mistral3" else "<|image_pad|>",
        patch_size=8,
        spatial_merge_size=2,
        image_break_token="[IMG_BREAK]",
        image_end_token="[IMG_END]",
        full_image_sequence=f"\n\n{begin}{image * 16}{end}\n\n",
    )
    text: str = type.__getattribute__(kind, "replace_image_token")(processor, inputs, index)
    return text


@FAMILIES
def test_a_placeholder_becomes_what_transformers_writes(family: Seeing, tmp_path: Path) -> None:
    """In the midst of lines, and between pictures."""
    processor = loaded(family, tmp_path)
    reference = seeing.image_processor(family, tmp_path)
    tokenizer = seeing.tokenizer(family.tokens)
    pictures = [noise(size) for size in seeing.SIZES]
    inputs = reference(pictures, return_tensors="np")
    placeholder: Any = tokenizer.id_to_token(processor.placeholder)
    for index, picture in enumerate(pictures):
        prompt = f"the\n{placeholder}\n\ncat {placeholder}{placeholder} sat"
        theirs = prompt.replace(placeholder, written(family, reference, inputs, index))
        fit = processor.fit(*picture.size)
        assert len(processor.tokens(fit)) == fit.num_tokens
        assert processor.tokens(fit).count(processor.image_token_id) == fit.rows * fit.columns
        ours = []
        for token in tokenizer.encode(processor.rendered(prompt), add_special_tokens=False).ids:
            ours += processor.tokens(fit) if token == processor.placeholder else [token]
        assert ours == tokenizer.encode(theirs, add_special_tokens=False).ids


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
    assert fit.rows * fit.columns <= processor.most_image_tokens
    assert fit.num_tokens == fit.rows * fit.columns == fit.height * fit.width // side**2
    low = processor.fit(width, height, "low")
    assert low.num_tokens <= min(fit.num_tokens, LOW_DETAIL_TOKENS)


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
    }
    assert len(digests) == 4
    same_bytes = [prepare(processor, Image.new("RGB", size)) for size in ((64, 64), (32, 128))]
    sizes = {(made.fit.height, made.fit.width) for made in same_bytes}
    assert len({made.digest for made in same_bytes}) == len(sizes)
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
    assert load_processor(folder) is None, "it is served for texts"


@given(st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 4000), st.integers(1, 60))
def test_pixtrals_sizes(width: int, height: int, longest: int, side: int) -> None:
    from transformers.models.pixtral.image_processing_pil_pixtral import (
        get_resize_output_image_size,
    )

    from engine.images.pixtral import Processor

    processor = Processor(
        placeholder=1,
        image_token_id=1,
        resample=3,
        normalization=PLAIN,
        side=side,
        max_height=longest,
        max_width=longest,
        break_token_id=2,
        end_token_id=3,
    )
    picture = np.broadcast_to(np.uint8(0), (3, height, width))
    expected = get_resize_output_image_size(picture, longest, side, "channels_first")
    if not all(expected):
        with pytest.raises(ImageTooLarge, match="too long for the other"):
            processor.fit(width, height)
        return
    fit = processor.fit(width, height)
    assert (fit.height, fit.width) == expected
    assert fit == processor.fit(width, height, "high")
    assert fit.rows * fit.columns <= processor.most_image_tokens
    assert len(processor.tokens(fit)) == fit.num_tokens


def test_pixtrals_low_detail(tmp_path: Path) -> None:
    processor = loaded(seeing.MISTRAL3, tmp_path, size={"longest_edge": 1540})
    for size in [(4000, 3000), (500, 4000), (30, 20)]:
        low = processor.fit(*size, "low")
        assert low.rows * low.columns <= LOW_DETAIL_TOKENS
        assert low.num_tokens <= processor.fit(*size).num_tokens


def test_gemmas_pictures_are_of_one_size(tmp_path: Path) -> None:
    processor = loaded(seeing.GEMMA3, tmp_path)
    assert processor.fit(1, 4000) == processor.fit(64, 64, "low") == Fit(64, 64, 4, 4, 18)
    with pytest.raises(ModelLoadError, match=r"size .*'height': 32.*image_size .* is 64"):
        loaded(seeing.GEMMA3, tmp_path, size={"height": 32, "width": 32})
    with pytest.raises(ModelLoadError, match="do_pan_and_scan: true is not supported"):
        loaded(seeing.GEMMA3, tmp_path, do_pan_and_scan=True)


def test_tokens_that_a_tokenizer_lacks_are_named(tmp_path: Path) -> None:
    for family, token in ((seeing.MISTRAL3, "[IMG_BREAK]"), (seeing.GEMMA3, "boi_token_index")):
        seeing.write_processor(family, tmp_path)
        seeing.tokenizer(()).save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(
            ModelLoadError, match=rf"tokenizer.json has no token .*{re.escape(token)}"
        ):
            load_processor(tmp_path)
        (tmp_path / "config.json").unlink()


def test_older_names_of_qwens_sizes(tmp_path: Path) -> None:
    processor = loaded(seeing.QWEN3_VL, tmp_path, min_pixels=4096, max_pixels=8192)
    assert processor.fit(10, 10).height == processor.fit(10, 10).width == 64
    with pytest.raises(ModelLoadError, match="shortest_edge 4096 is above longest_edge 1024"):
        loaded(seeing.QWEN3_VL, tmp_path, size={"shortest_edge": 4096, "longest_edge": 1024})


def test_models_that_do_not_see_have_none(tmp_path: Path) -> None:
    toys.write_model_folder(tmp_path, config={"architectures": ["LlamaForCausalLM"]})
    assert load_processor(tmp_path) is None
