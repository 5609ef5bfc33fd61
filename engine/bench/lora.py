"""``python -m engine.bench.lora``: measures what adapters cost, against an engine without any.

Prints one JSON line for each case and number of requests. Adapters are random, and change all
linear layers. Engines and cases take turns, prompts are fresh, EOS is ignored, and the best run of
each counts. ``--one-engine`` leaves out the engine without adapters, which halves the time for
loading.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file

from engine.bench.shapes import QUANTIZATIONS, SHAPES
from engine.bench.throughput import model_folder
from engine.llm import LLM, LoRARequest, SamplingParams, TokensPrompt
from engine.lora.adapter import WEIGHTS_NAME
from engine.lora.config import FILE_NAME
from engine.lora.target_modules import TargetModule, find_target_modules
from engine.models.registry import create_model, read_config

WITHOUT = "enable_lora off"
NOBODY = "no request has an adapter"

Adapters = Sequence[LoRARequest | None]
"""The adapter of each request."""


class Measurement(msgspec.Struct, frozen=True):
    """One JSON line."""

    case: str
    requests: int
    out_tok_s: float
    cost: float
    """``out_tok_s`` of the first case over this, less one."""
    first_ms: float
    """Time until all requests have a token, if they ask for one only."""


def write_adapter(
    folder: Path, modules: Mapping[str, TargetModule], rank: int, seed: int
) -> LoRARequest:
    """Write a random adapter, whose changes are small compared with the layers' outputs."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, module in modules.items():
        prefix = f"base_model.model.{name}."
        sides = {"A": (rank, module.in_features), "B": (module.out_features, rank)}
        for side, shape in sides.items():
            drawn = torch.rand(shape, generator=generator) - 0.5
            tensors[f"{prefix}lora_{side}.weight"] = (drawn * 0.01).bfloat16()
    folder.mkdir()
    targets = sorted({name.split(".")[-1] for name in modules})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets}
    (folder / FILE_NAME).write_text(json.dumps(config))
    save_file(tensors, folder / WEIGHTS_NAME)
    return LoRARequest(folder.name, folder)


def target_modules_of(model_dir: str) -> dict[str, TargetModule]:
    """The target modules of a native model, whose weights are not loaded."""
    facts = read_config(Path(model_dir))
    meta = torch.device("meta")
    return find_target_modules(
        create_model(facts, max_model_len=16, dtype=facts.dtype, device=meta)
    )


def cases(adapters: Sequence[LoRARequest], requests: int) -> dict[str, Adapters]:
    """The cases by name: the adapter of each request."""
    found: dict[str, Adapters] = {
        NOBODY: [None] * requests,
        "one adapter": [adapters[0]] * requests,
    }
    if requests > 1:
        found["one request has an adapter"] = [adapters[0], *[None] * (requests - 1)]
        if len(adapters) > 1:
            mixed = [adapters[i % len(adapters)] for i in range(requests)]
            found[f"{len(adapters)} adapters"] = mixed
    return found


def measure(
    without: LLM | None, llm: LLM, adapters: Sequence[LoRARequest], asked: argparse.Namespace
) -> Iterator[Measurement]:
    """Measure all cases. without: the engine to compare with; None compares with requests without
    an adapter."""
    rng = random.Random(0)
    first_case = NOBODY if without is None else WITHOUT
    for requests in asked.requests:
        best: dict[str, float] = {}
        first: dict[str, float] = {}
        for repeat in range(asked.repeats + 1):
            turns: list[tuple[str, LLM, Adapters]] = []
            if without is not None:
                turns.append((WITHOUT, without, [None] * requests))
            turns += [(name, llm, of) for name, of in cases(adapters, requests).items()]
            for name, engine, of_requests in turns:
                took = _run(engine, of_requests, rng, asked.input_len, asked.output_len)
                to_first = _run(engine, of_requests, rng, asked.input_len, 1)
                if repeat:  # The first run is a warm-up.
                    best[name] = min(best.get(name, took), took)
                    first[name] = min(first.get(name, to_first), to_first)
        for name, took in best.items():
            rate, cost = requests * asked.output_len / took, took / best[first_case] - 1
            to_first = first[name] * 1000
            yield Measurement(name, requests, round(rate, 1), round(cost, 3), round(to_first, 1))


def _run(
    llm: LLM, adapters: Adapters, rng: random.Random, input_len: int, output_len: int
) -> float:
    """The time of a run in seconds."""
    ids = range(llm.info.vocab_size // 8, llm.info.vocab_size)
    prompts = [TokensPrompt(prompt_token_ids=rng.choices(ids, k=input_len)) for _ in adapters]
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=output_len)
    began = time.perf_counter()
    if any(adapters):
        llm.generate(prompts, params, lora_request=list(adapters))
    else:
        llm.generate(prompts, params)
    return time.perf_counter() - began


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.bench.lora", description=__doc__)
    parser.add_argument("--model", help="a model's folder; the bundled demo model without it")
    parser.add_argument("--shape", choices=SHAPES, help="random weights, in place of a model")
    parser.add_argument(
        "--quantization", choices=QUANTIZATIONS, default="none", help="of the shape's weights"
    )
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64], help="at once")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument(
        "--one-engine",
        action="store_true",
        help="compare with requests without an adapter in the same engine",
    )
    asked = parser.parse_args(arguments)
    if asked.quantization != "none" and asked.shape is None:
        parser.error("--quantization needs --shape: a model has the weights of its checkpoint")
    return asked


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parse(arguments)
    shape = None if asked.shape is None else SHAPES[asked.shape]
    stored = QUANTIZATIONS[asked.quantization]
    if shape is not None and stored is not None:
        shape = {**shape, "quantization_config": stored}
    blocks_each = -(-(asked.input_len + asked.output_len) // 16) + 1
    options: dict[str, Any] = {
        "load_format": "auto" if shape is None else "dummy",
        "skip_tokenizer_init": True,
        "max_num_seqs": max(asked.requests),
        "max_model_len": asked.input_len + asked.output_len,
        "num_gpu_blocks_override": max(asked.requests) * blocks_each,
        "enforce_eager": asked.enforce_eager,
        "quantization": "fp8" if asked.quantization == "fp8" else None,
    }
    with (
        model_folder(asked.model, shape) as model,
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory,
    ):
        modules = target_modules_of(model)
        adapters = [
            write_adapter(Path(directory) / f"adapter-{i}", modules, asked.rank, seed=i)
            for i in range(asked.adapters)
        ]
        without = None if asked.one_engine else LLM(model, **options)
        llm = LLM(
            model, enable_lora=True, max_loras=asked.adapters, max_lora_rank=asked.rank, **options
        )
        for adapter in adapters:
            llm.load_lora(adapter)
        for found in measure(without, llm, adapters, asked):
            print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
