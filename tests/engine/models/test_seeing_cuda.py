"""Models that see, on a GPU: in graphs, with overlap and fused kernels, as on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.llm import LLM, SamplingParams
from tests.engine import seeing
from tests.engine.models.test_seeing import MIXED, SERVED, asked
from tests.engine.seeing import Seeing

pytestmark = pytest.mark.gpu

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def wide(family: Seeing) -> Seeing:
    """With heads of a size that the kernels serve."""
    fields = {**family.case.fields, "hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    rope = fields.get("rope_parameters", {})
    if "mrope_section" in rope:
        fields["rope_parameters"] = {
            **rope,
            "mrope_section": [4 * n for n in rope["mrope_section"]],
        }
    around = dict(family.case.around or {})
    if "out_hidden_size" in around["vision_config"]:
        around["vision_config"] = {**around["vision_config"], "out_hidden_size": 256}
    return replace(family, case=replace(family.case, fields=fields, around=around))


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("family", SERVED, ids=lambda family: family.name)
def test_a_gpu_sees_what_a_cpu_sees(family: Seeing, eager: bool, tmp_path: Path) -> None:
    folder = seeing.write(wide(family), tmp_path)
    prompts = [asked(folder, number, pictures) for number, pictures in MIXED]
    options: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 400}
    cpu = LLM(folder, device="cpu", **options)
    gpu = LLM(folder, device="cuda", max_num_seqs=16, enforce_eager=eager, **options)
    for _ in range(2):  # The second time from the cache.
        found = [o.outputs[0].token_ids for o in gpu.generate(prompts, GREEDY)]
        assert found == [cpu.generate([one], GREEDY)[0].outputs[0].token_ids for one in prompts]
