"""The encoders on a GPU beside those on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine import seeing
from tests.engine.models.vision.test_encoders import encoder, pictures, pixels
from tests.engine.seeing import Seeing

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")


@pytest.mark.parametrize("family", seeing.FAMILIES, ids=lambda family: family.name)
def test_embeddings_are_those_of_a_cpu(family: Seeing, tmp_path: Path) -> None:
    """In 16 bits, with pixels on the device and in host memory."""
    folder = seeing.write(family, tmp_path)
    given = [pixels(folder, picture) for picture in pictures(seeing.SIZES)]
    with torch.inference_mode():
        exact = encoder(folder)(given)
        run = encoder(folder, torch.bfloat16, GPU)
        from_host, on_device = run(given), run([picture.to(GPU) for picture in given])
    for cpu, one, other in zip(exact, from_host, on_device, strict=True):
        assert one.device.type == "cuda"
        assert torch.equal(one, other)
        assert (one.cpu() - cpu).norm() / cpu.norm() < 0.05
