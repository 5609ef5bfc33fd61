"""``python -m engine.bench.pictures``: requests with pictures beside requests of text as long.

Random weights of Qwen2.5-VL-7B's shape, or those of ``--model``. Decoding and resizing are not
counted: a gateway does them in other processes. What is compared:

- as many requests at once with a new picture each, and of as many tokens of text,
- the time to the first token of one, with a new picture, with the picture of an earlier prompt of
  other words, and with the prompt of an earlier request up to its picture's end,
- the tokens per second of one behind a picture, and of one of text.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from engine.images.load import load_processor
from engine.llm import LLM, SamplingParams

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "vocab_size": 152_064,
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128_000,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "torch_dtype": "bfloat16",
    "image_token_id": 151_655,
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
    },
}
_WORDS = 64
"""Tokens of text before a picture, and as many behind it."""


class Bench:
    def __init__(self, model: Path, side: int, options: dict[str, Any]) -> None:
        processor = load_processor(model)
        assert processor is not None, f"{model} does not see"
        self._placeholder = processor.placeholder
        self._num_tokens = processor.fit(side, side).num_tokens
        self._side = side
        self._random = np.random.default_rng(0)
        self._llm = LLM(model, **options)

    def picture(self) -> Image.Image:
        pixels = self._random.integers(0, 256, (self._side, self._side, 3), np.uint8)
        return Image.fromarray(pixels)

    def words(self, count: int = _WORDS) -> list[int]:
        found: list[int] = self._random.integers(300, 9000, count).tolist()
        return found

    def seeing(self, picture: Image.Image, before: list[int] | None = None) -> Any:
        ids = [*(self.words() if before is None else before), self._placeholder, *self.words()]
        return {"prompt_token_ids": ids, "multi_modal_data": {"image": picture}}

    def text(self) -> Any:
        return {"prompt_token_ids": self.words(2 * _WORDS + self._num_tokens)}

    def seconds(self, prompts: list[Any], max_tokens: int) -> float:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        jobs = self._llm._begin(prompts, params, None)
        start = time.perf_counter()
        self._llm._complete(jobs, None)
        return time.perf_counter() - start

    def run(self, num_requests: int, max_tokens: int) -> list[tuple[str, float, float]]:
        """(what, seconds with pictures, seconds beside them)"""
        for prompt in (self.seeing(self.picture()), self.text()):
            self.seconds([prompt], max_tokens)
        many = [self.seeing(self.picture()) for _ in range(num_requests)]
        texts = [self.text() for _ in many]
        found = [(f"{num_requests} requests", self.seconds(many, max_tokens))]
        beside = [self.seconds(texts, max_tokens)]
        known, before = self.picture(), self.words()
        new = self.seconds([self.seeing(known, before)], 1)
        found.append(("first token, a known picture", self.seconds([self.seeing(known)], 1)))
        found.append(("first token, a known prefix", self.seconds([self.seeing(known, before)], 1)))
        beside += [new, new]
        found.append(("one request", self.seconds([self.seeing(known)], max_tokens)))
        beside.append(self.seconds([self.text()], max_tokens))
        return [(what, took, other) for (what, took), other in zip(found, beside, strict=True)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="engine.bench.pictures", description=__doc__)
    parser.add_argument("--model", type=Path, help="a checkpoint that sees")
    parser.add_argument("--side", type=int, default=1008, help="of a picture, in pixels")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(argv)
    engine = {"device": options.device, "skip_tokenizer_init": True, "max_model_len": 8192}
    table = Table("what", "with a picture, s", "beside, s", "ratio")
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        model = options.model
        if model is None:
            model, engine["load_format"] = Path(scratch), "dummy"
            for name, fields in (("config", CONFIG), ("preprocessor_config", {})):
                (model / f"{name}.json").write_bytes(msgspec.json.encode(fields))
        else:
            del engine["max_model_len"]
        bench = Bench(model, options.side, engine)
        for what, took, other in bench.run(options.requests, options.max_tokens):
            table.add_row(what, f"{took:.3f}", f"{other:.3f}", f"{took / other:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
