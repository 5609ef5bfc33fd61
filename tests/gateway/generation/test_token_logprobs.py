from __future__ import annotations

import math
from pathlib import Path

from engine.messages import TokenLogprobs
from engine.text.tokenizer import Tokenizer
from gateway.generation.token_logprobs import UNLIKELY, named


def test_tokens_have_their_text_and_their_bytes(model_dir: Path) -> None:
    tokenizer = Tokenizer.load(model_dir)
    first, second = tokenizer.encode("é", add_special_tokens=False)
    found = named(
        [TokenLogprobs(first, -0.25, 1, [(first, -0.25), (second, -math.inf)])], tokenizer
    )
    assert found[0].bytes == ["é".encode()[0]]
    assert found[0].token == "\N{REPLACEMENT CHARACTER}"
    assert [top.logprob for top in found[0].top_logprobs] == [-0.25, UNLIKELY]


def test_special_tokens_have_a_text_too(model_dir: Path) -> None:
    tokenizer = Tokenizer.load(model_dir)
    (eos,) = tokenizer.eos_token_ids
    (found,) = named([TokenLogprobs(eos, -1.0, 1)], tokenizer)
    assert found.token == "<|im_end|>"
    assert found.top_logprobs == []
