"""``python -m engine.speculation_bench``: what speculation gains.

``synthetic``: a shape with random weights, an EAGLE-3 head of its size and drafts accepted by
chance, against plain decoding; the ideal is the tokens a step, as if drafts cost nothing.
``copy``: the demo model repeats what it was told, with and without prompt lookup.

One JSON line a measurement. EOS is ignored in ``synthetic``; the better of two runs counts.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.demo import MODEL_DIR
from engine.demo.data import examples
from engine.demo.template import render
from engine.llm import LLM, SamplingParams, TokensPrompt

LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
EAGLE_3_8B = {**LLAMA_3_8B, "num_hidden_layers": 1, "draft_vocab_size": 32000}
REPEATS = 2


def decode(llm: LLM, batch: int, isl: int, osl: int) -> float:
    """Output tokens a second of ``batch`` requests at once."""
    vocab_size, best = llm.info.vocab_size, 0.0
    for repeat in range(REPEATS + 1):
        rng = random.Random(repeat)
        prompts = [
            TokensPrompt(prompt_token_ids=[rng.randrange(vocab_size) for _ in range(isl)])
            for _ in range(batch)
        ]
        length = osl if repeat else 8
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=length)
        start = time.perf_counter()
        llm.generate(prompts, params)
        rate = batch * length / (time.perf_counter() - start)
        best = max(best, rate if repeat else 0.0)
    return best


def synthetic(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        target, head = Path(directory) / "target", Path(directory) / "head"
        for folder, config in ((target, LLAMA_3_8B), (head, EAGLE_3_8B)):
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config))

        def load(**speculative: Any) -> LLM:
            gc.collect()
            how: dict[str, Any] = {"speculative_config": speculative} if speculative else {}
            return LLM(
                target,
                load_format="dummy",
                skip_tokenizer_init=True,
                max_num_seqs=max(options.batches),
                max_model_len=2048,
                kv_cache_memory_bytes=16 << 30,
                enable_prefix_caching=False,
                **how,
            )

        llm = load()
        plain = {n: decode(llm, n, options.input_len, options.output_len) for n in options.batches}
        del llm
        for num_tokens in options.drafts:
            for length in options.lengths:
                llm = load(
                    method="eagle3",
                    model=str(head),
                    num_speculative_tokens=num_tokens,
                    adaptive=options.adaptive,
                    rejection_sample_method="synthetic",
                    synthetic_acceptance_length=length,
                )
                for batch in options.batches:
                    before = llm.stats()
                    rate = decode(llm, batch, options.input_len, options.output_len)
                    after = llm.stats()
                    drafts = after.spec_decode_num_drafts - before.spec_decode_num_drafts
                    accepted = after.spec_decode_num_accepted_tokens
                    accepted -= before.spec_decode_num_accepted_tokens
                    ideal = 1 + accepted / max(drafts, 1)
                    _say(
                        num_speculative_tokens=num_tokens,
                        batch=batch,
                        plain_tok_s=round(plain[batch], 1),
                        tok_s=round(rate, 1),
                        speed_up=round(rate / plain[batch], 2),
                        ideal=round(ideal, 2),
                        num_drafts=drafts,
                        adaptive=options.adaptive,
                    )
                del llm


def copy(options: argparse.Namespace) -> None:
    """Held-out ``repeat`` prompts, one request at a time."""

    def load(**speculative: Any) -> LLM:
        how: dict[str, Any] = {"speculative_config": speculative} if speculative else {}
        return LLM(
            MODEL_DIR,
            device=options.device,
            num_threads=options.num_threads,
            kv_cache_memory_bytes=512 << 20,  # several engines share a device
            **how,
        )

    engines = {"plain": load()}
    for num_tokens in options.drafts:
        engines[f"ngram {num_tokens}"] = load(
            method="ngram",
            num_speculative_tokens=num_tokens,
            prompt_lookup_min=2,
            prompt_lookup_max=4,
        )
    prompts = []
    for example in examples("heldout", 1):
        if example.kind == "repeat" and len(str(example.messages[-1]["content"])) >= 40:
            prompts.append(render(example.prompt, example.tools, add_generation_prompt=True))
            if len(prompts) == options.prompts:
                break
    params = SamplingParams(temperature=0.0, max_tokens=256)
    best = dict.fromkeys(engines, 0.0)
    for _ in range(REPEATS + 1):  # the first warms up; engines take turns
        for name, llm in engines.items():
            start, count = time.perf_counter(), 0
            for prompt in prompts:
                count += len(llm.generate(prompt, params)[0].outputs[0].token_ids)
            best[name] = max(best[name], count / (time.perf_counter() - start))
    for name, rate in best.items():
        _say(engine=name, tok_s=round(rate, 1), speed_up=round(rate / best["plain"], 2))


def _say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m engine.speculation_bench", description=__doc__)
    kinds = parser.add_subparsers(required=True)
    chance = kinds.add_parser("synthetic")
    chance.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    chance.add_argument("--drafts", type=int, nargs="+", default=[3, 4, 5])
    chance.add_argument("--lengths", type=float, nargs="+", default=[2.8])
    chance.add_argument("--adaptive", action="store_true", help="drafts only where they pay")
    chance.add_argument("--input-len", type=int, default=128)
    chance.add_argument("--output-len", type=int, default=256)
    chance.set_defaults(run=synthetic)
    repeating = kinds.add_parser("copy")
    repeating.add_argument("--drafts", type=int, nargs="+", default=[3, 7])
    repeating.add_argument("--prompts", type=int, default=30)
    repeating.add_argument("--device", default="auto")
    repeating.add_argument("--num-threads", type=int)
    repeating.set_defaults(run=copy)
    options = parser.parse_args(argv)
    options.run(options)


if __name__ == "__main__":
    main()
