"""Embeddings of random small encoders, held to transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from engine.errors import ModelLoadError
from engine.images.load import load_processor
from engine.images.prepare import prepare
from engine.models.vision.base import VisionEncoder
from engine.models.vision.create import create_encoder
from engine.weights.load import load_weights
from tests.engine import seeing
from tests.engine.models import families
from tests.engine.seeing import Seeing

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=seeing.FAMILIES, ids=lambda family: family.name)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[Seeing, Path]:
    family: Seeing = request.param
    return family, seeing.write(family, tmp_path_factory.mktemp(family.name))


def encoder(
    folder: Path, dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> VisionEncoder:
    made = create_encoder(folder, dtype=dtype, device=device)
    assert made is not None
    load_weights(made, folder, tied=False, place_of=made.place_of)
    made.pack()
    return made


def pictures(sizes: list[tuple[int, int]]) -> list[Image.Image]:
    random = np.random.default_rng(0)
    return [
        Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8))
        for width, height in sizes
    ]


def pixels(folder: Path, picture: Image.Image) -> torch.Tensor:
    processor = load_processor(folder)
    assert processor is not None
    prepared = prepare(processor, picture)
    flat = np.frombuffer(bytearray(prepared.pixels), np.uint8)
    return torch.from_numpy(flat.reshape(prepared.fit.height, prepared.fit.width, 3))


def expected(family: Seeing, folder: Path, given: list[Image.Image]) -> list[torch.Tensor]:
    model = families.reference(family.case, folder)
    inputs = seeing.image_processor(family, folder)(given, return_tensors="pt")
    with torch.inference_mode():
        output = model.get_image_features(**family.image_inputs(inputs))
    embeddings = list(output.pooler_output)
    for layer in getattr(output, "deepstack_features", None) or []:
        embeddings = [torch.cat(pair, -1) for pair in zip(embeddings, layer, strict=True)]
    return embeddings


def test_embeddings_are_those_of_transformers(checkpoint: tuple[Seeing, Path]) -> None:
    family, folder = checkpoint
    given = pictures(seeing.SIZES)
    processor = load_processor(folder)
    assert processor is not None
    with torch.inference_mode():
        ours = encoder(folder)([pixels(folder, picture) for picture in given])
    theirs = expected(family, folder, given)
    for picture, our, their in zip(given, ours, theirs, strict=True):
        fit = processor.fit(*picture.size)
        assert len(our) == fit.rows * fit.columns
        torch.testing.assert_close(our, their, atol=1e-5, rtol=1e-5)
        assert their.std() > 0.01


def test_a_picture_is_encoded_alike_in_any_company(checkpoint: tuple[Seeing, Path]) -> None:
    """Also beside equal ones, and in any order."""
    _, folder = checkpoint
    given = [pixels(folder, picture) for picture in pictures([*seeing.SIZES, (64, 64), (48, 32)])]
    run = encoder(folder)
    with torch.inference_mode():
        together, turned = run(given), run(given[::-1])[::-1]
        alone = [run([picture])[0] for picture in given]
    for a, b, c in zip(together, turned, alone, strict=True):
        torch.testing.assert_close(a, c, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(b, c, atol=1e-5, rtol=1e-5)
    assert not torch.equal(together[0], together[-2])


def test_in_16_bits(checkpoint: tuple[Seeing, Path]) -> None:
    _, folder = checkpoint
    given = [pixels(folder, picture) for picture in pictures(seeing.SIZES[:3])]
    with torch.inference_mode():
        exact, rounded = encoder(folder)(given), encoder(folder, torch.bfloat16)(given)
    for a, b in zip(exact, rounded, strict=True):
        assert b.dtype == torch.bfloat16
        assert (a - b).norm() / a.norm() < 0.05


@pytest.mark.parametrize(
    ("family", "where", "field", "value", "message"),
    [
        (
            seeing.QWEN3_VL,
            "vision_config",
            "hidden_act",
            "swish",
            "vision_config.hidden_act: 'swish'",
        ),
        (seeing.QWEN3_VL, "vision_config", "num_heads", 3, "hidden_size: 32 is not 3 heads"),
        (seeing.QWEN3_VL, "vision_config", "depth", 0, "vision_config.depth"),
        (
            seeing.QWEN3_VL,
            "vision_config",
            "deepstack_visual_indexes",
            [4],
            "deepstack_visual_indexes: 4 is none of 4 layers",
        ),
        (seeing.QWEN2_5_VL, "vision_config", "window_size", 8, "window_size: 8 pixels"),
        (seeing.MISTRAL3, None, "vision_feature_layer", [-2], "vision_feature_layer: .* only -1"),
        (seeing.GEMMA3, None, "mm_tokens_per_image", 9, "mm_tokens_per_image: 9 is not"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    family: Seeing, where: str | None, field: str, value: Any, message: str, tmp_path: Path
) -> None:
    seeing.write_processor(family, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"] = {"hidden_size": 64}
    (config if where is None else config[where])[field] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=f"config.json: .*{message}"):
        create_encoder(tmp_path, dtype=torch.float32, device=CPU)


def test_models_that_do_not_see_have_none(tmp_path: Path) -> None:
    seeing.write_processor(seeing.QWEN3_VL, tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    assert create_encoder(tmp_path, dtype=torch.float32, device=CPU) is None
