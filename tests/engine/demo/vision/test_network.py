"""What is trained is what transformers makes of its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.demo.vision import network
from engine.demo.vision.batches import IMAGE, SPECIAL, Encoder, held_out, split_of
from engine.demo.vision.train import save
from engine.demo.vocabulary import END_OF_TEXT, token_id, train_tokenizer

GRID = (2, 3)


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    """With one picture, two and none, and padding behind."""
    from transformers import Qwen3VLForConditionalGeneration

    torch.manual_seed(0)
    tokenizer = train_tokenizer(["What digit is this?"] * 9, 1024, special=SPECIAL, markers=())
    shape, image = network.SHAPES["tiny"], token_id(tokenizer, IMAGE)
    model = network.Network(shape, 1024, image)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    save(model, shape, tokenizer, tmp_path)
    model.load_state_dict(
        {n: t.float() for n, t in load_file(tmp_path / "model.safetensors").items()}
    )
    split = split_of("heldout", [])
    asked = [one for kind in ("digit", "digits", "text") for one in held_out(kind, 1, split)]
    batch = Encoder(tokenizer).batch(asked, GRID)
    ids = torch.from_numpy(batch.token_ids)
    with torch.inference_mode():
        seen = model.see(torch.from_numpy(batch.pictures))
        hidden = model(ids, torch.from_numpy(batch.places), seen)
        ours = model.logits(hidden)
        reference = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32)
        cut = torch.from_numpy(batch.pictures)
        patches = torch.cat([_patches(picture) for picture in cut])
        grids = torch.tensor([[1, GRID[0] * 2, GRID[1] * 2]] * len(cut))
        theirs = reference(
            input_ids=ids,
            pixel_values=patches,
            image_grid_thw=grids,
            mm_token_type_ids=(ids == image).int(),
        ).logits
    is_real = ids != token_id(tokenizer, END_OF_TEXT)
    torch.testing.assert_close(ours[is_real], theirs[is_real], atol=1e-4, rtol=1e-4)
    assert ours.std() > 0.1


def _patches(picture: torch.Tensor) -> torch.Tensor:
    """As the image processor cuts them."""
    side = network.PATCH
    height, width, _ = picture.shape
    rows, columns = height // side, width // side
    cut = picture.float().view(rows // 2, 2, side, columns // 2, 2, side, 3) / 127.5 - 1
    patches = cut.permute(0, 3, 1, 4, 6, 2, 5).reshape(rows * columns, 3, 1, side * side)
    return patches.expand(-1, -1, 2, -1).flatten(1)


@pytest.mark.parametrize("size", sorted(network.SHAPES))
def test_sizes(size: str) -> None:
    model = network.Network(network.SHAPES[size], 1024, 5)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert 2 * count < 12_000_000
