"""``python -m engine.bench.speculation``: measures how much faster speculation decodes.

``synthetic``: drafts of an EAGLE-3 head that are right with a given probability, on a shape with
random weights or on the demo model, against plain decoding. The ideal is the number of tokens per
step, as if drafts cost nothing.
``copy``: the demo model repeats a text, with and without prompt lookup.
``chat``: the demo model answers held-out prompts, with and without one of its heads.

Prints one JSON line for each measurement. Engines take turns in short rounds (``race.py``).
``speed_up`` is the median of the rounds, with the confidence interval ``interval``; ``in_all`` is
the ratio of the times of all rounds. ``control`` compares a second plain engine with the first:
smaller differences are noise. ``num_rounds_for_precision`` says about how many rounds make half of
``interval`` as narrow as ``--precision``, 0.01 if none is given. EOS is ignored in ``synthetic``.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from engine.bench.race import race, settle_down
from engine.bench.shapes import SHAPES
from engine.demo import MODEL_DIR
from engine.demo.data import examples
from engine.demo.evaluate import HELD_OUT_SEED
from engine.demo.heads import HEADS_DIR
from engine.demo.heads.answers import draw_prompts
from engine.demo.template import render
from engine.llm import LLM, SamplingParams, TokensPrompt
from engine.messages import Stats

LLAMA_3_8B = SHAPES["Llama-3-8B"]
EAGLE_3_8B = {**LLAMA_3_8B, "num_hidden_layers": 1, "draft_vocab_size": 32000}


_PROMPTS_A_ROUND = 8

PLAIN = "plain", "control"
"""Names of engines without drafts."""


def compare(
    engines: dict[str, LLM],
    work: Callable[[LLM, int], int],
    options: argparse.Namespace,
) -> dict[str, dict[str, Any]]:
    """The speed of each engine against those named ``PLAIN``, and its drafts.

    ``work``: runs the round with the given number, and returns the number of tokens generated.
    """
    before = {name: llm.stats() for name, llm in engines.items()}
    found = race(
        {name: partial(work, llm) for name, llm in engines.items()},
        [name for name in engines if name in PLAIN],
        precision=options.precision,
        max_s=options.max_seconds,
        min_rounds=options.min_rounds,
    )
    return {
        name: {
            "tok_s": round(standing.tok_s, 1),
            "speed_up": round(standing.speed_up, 3),
            "interval": [round(end, 3) for end in standing.interval],
            "in_all": round(standing.in_all, 3),
            "num_rounds": standing.num_rounds,
            "num_rounds_for_precision": standing.num_rounds_for(options.precision),
            **_drafted(engines[name], before[name]),
        }
        for name, standing in found.items()
    }


def on_gpu(options: argparse.Namespace) -> bool:
    return options.device != "cpu" and torch.cuda.is_available()


def _drafted(llm: LLM, before: Stats) -> dict[str, float]:
    """The drafts of an engine since ``before``."""
    after = llm.stats()
    drafts = after.spec_decode_num_drafts - before.spec_decode_num_drafts
    num_tokens = after.spec_decode_num_draft_tokens - before.spec_decode_num_draft_tokens
    accepted = after.spec_decode_num_accepted_tokens - before.spec_decode_num_accepted_tokens
    return {
        "ideal": round(1 + accepted / max(drafts, 1), 2),
        "num_drafts": drafts,
        "mean_drafts": round(num_tokens / max(drafts, 1), 2),
        "num_steps": after.num_steps - before.num_steps,
    }


def _decode(batch: int, isl: int, osl: int) -> Callable[[LLM, int], int]:
    """The work of a round: several requests at once, with fresh prompts."""
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=osl)

    def work(llm: LLM, number: int) -> int:
        rng, vocab_size = random.Random(f"{batch} {number}"), llm.info.vocab_size
        prompts = [
            TokensPrompt(prompt_token_ids=[rng.randrange(vocab_size) for _ in range(isl)])
            for _ in range(batch)
        ]
        return sum(len(result.outputs[0].token_ids) for result in llm.generate(prompts, params))

    return work


def synthetic(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        target, head = MODEL_DIR, HEADS_DIR / "eagle3"
        how: dict[str, Any] = {"kv_cache_memory_bytes": 2 << 30, "max_model_len": 1024}
        if options.shape == "Llama-3-8B":
            target, head = Path(directory) / "target", Path(directory) / "head"
            for folder, config in ((target, LLAMA_3_8B), (head, EAGLE_3_8B)):
                folder.mkdir()
                (folder / "config.json").write_text(json.dumps(config))
            how = {
                "load_format": "dummy",
                "kv_cache_memory_bytes": 16 << 30,
                "max_model_len": 2048,
            }

        def load(**speculative: Any) -> LLM:
            gc.unfreeze()  # settle_down has frozen the engine before, whose memory is needed now
            gc.collect()
            if speculative:
                how["speculative_config"] = speculative
            return LLM(
                target,
                device=options.device,
                num_threads=options.num_threads,
                skip_tokenizer_init=True,
                max_num_seqs=max(options.batches),
                enable_prefix_caching=False,
                **how,
            )

        plain = {name: load() for name in PLAIN}
        for num_tokens, length, adaptive in product(
            options.drafts, options.lengths, options.adaptive
        ):
            llm = load(
                method="eagle3",
                model=str(head),
                num_speculative_tokens=num_tokens,
                adaptive=adaptive,
                rejection_sample_method="synthetic",
                synthetic_acceptance_length=length,
            )
            kind = {"num_speculative_tokens": num_tokens, "length": length, "adaptive": adaptive}
            settle_down(on_gpu=on_gpu(options))
            for batch in options.batches:
                work = _decode(batch, options.input_len, options.output_len)
                found = compare({**plain, "drafting": llm}, work, options)
                of_control = found["control"]
                _say(
                    **kind,
                    batch=batch,
                    plain_tok_s=found["plain"]["tok_s"],
                    control=[of_control["speed_up"], *of_control["interval"]],
                    **found["drafting"],
                )
            del llm


def _load_demo(options: argparse.Namespace, **speculative: Any) -> LLM:
    how: dict[str, Any] = {"speculative_config": speculative} if speculative else {}
    return LLM(
        MODEL_DIR,
        device=options.device,
        num_threads=options.num_threads,
        kv_cache_memory_bytes=512 << 20,  # several engines share a device
        **how,
    )


def chat(options: argparse.Namespace) -> None:
    """The work of a round: several held-out prompts of all kinds at once."""
    engines = {name: _load_demo(options) for name in PLAIN}
    head = {"method": options.method, "model": str(HEADS_DIR / options.method)}
    for num_tokens, adaptive in product(options.drafts, options.adaptive):
        engines[f"{options.method} {num_tokens}{'' if adaptive else ' fixed'}"] = _load_demo(
            options, **head, num_speculative_tokens=num_tokens, adaptive=adaptive
        )
    if options.never_right:
        engines[f"{options.method} {options.drafts[0]} never right"] = _load_demo(
            options,
            **head,
            num_speculative_tokens=options.drafts[0],
            rejection_sample_method="synthetic",
            synthetic_acceptance_length=1.0,
        )
    drawn = draw_prompts(MODEL_DIR, "heldout", HELD_OUT_SEED, options.prompts)
    prompts = [TokensPrompt(prompt_token_ids=prompt.token_ids) for prompt in drawn]
    params = SamplingParams(temperature=0.0, max_tokens=128)
    settle_down(on_gpu=on_gpu(options))
    for batch in options.batches:

        def work(llm: LLM, number: int, batch: int = batch) -> int:
            """Run prompts at once; or, if there is one at a time, several one after the other,
            because one answer is short."""
            size = max(batch, _PROMPTS_A_ROUND)
            some = [prompts[(number * size + i) % len(prompts)] for i in range(size)]
            count = 0
            for first in range(0, size, batch):
                results = llm.generate(some[first : first + batch], params)
                count += sum(len(result.outputs[0].token_ids) for result in results)
            return count

        for name, found in compare(engines, work, options).items():
            _say(engine=name, batch=batch, **found)


def copy(options: argparse.Namespace) -> None:
    """The work of a round: held-out ``repeat`` prompts, one request at a time."""
    engines = {name: _load_demo(options) for name in PLAIN}
    for num_tokens in options.drafts:
        engines[f"ngram {num_tokens}"] = _load_demo(
            options,
            method="ngram",
            num_speculative_tokens=num_tokens,
            prompt_lookup_min=options.lookup[0],
            prompt_lookup_max=options.lookup[1],
        )
    prompts = []
    for example in examples("heldout", 1):
        if example.kind == "repeat" and len(str(example.messages[-1]["content"])) >= 40:
            prompts.append(render(example.prompt, example.tools, add_generation_prompt=True))
            if len(prompts) == options.prompts:
                break
    params = SamplingParams(temperature=0.0, max_tokens=256)

    def work(llm: LLM, number: int) -> int:
        return len(llm.generate(prompts[number % len(prompts)], params)[0].outputs[0].token_ids)

    settle_down(on_gpu=on_gpu(options))
    for name, found in compare(engines, work, options).items():
        _say(engine=name, **found)


def _say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def _switch(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m engine.bench.speculation", description=__doc__)
    kinds = parser.add_subparsers(required=True)
    chance = kinds.add_parser("synthetic")
    chance.add_argument("--shape", choices=("Llama-3-8B", "demo"), default="Llama-3-8B")
    chance.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    chance.add_argument("--drafts", type=int, nargs="+", default=[3, 4, 5])
    chance.add_argument("--lengths", type=float, nargs="+", default=[2.8])
    chance.add_argument(
        "--adaptive", type=_switch, nargs="+", default=[False, True], metavar="BOOL"
    )
    chance.add_argument("--input-len", type=int, default=128)
    chance.add_argument("--output-len", type=int, default=256)
    chance.set_defaults(run=synthetic)
    repeating = kinds.add_parser("copy")
    repeating.add_argument("--drafts", type=int, nargs="+", default=[3, 7, 15])
    repeating.add_argument(
        "--lookup",
        type=int,
        nargs=2,
        default=[1, 4],
        metavar=("MIN", "MAX"),
        help="prompt_lookup_min and _max",
    )
    repeating.add_argument("--prompts", type=int, default=30)
    repeating.set_defaults(run=copy)
    answering = kinds.add_parser("chat")
    answering.add_argument("--method", choices=("eagle3", "eagle"), default="eagle3")
    answering.add_argument("--drafts", type=int, nargs="+", default=[4])
    answering.add_argument(
        "--adaptive",
        type=_switch,
        nargs="*",
        default=[True],
        metavar="BOOL",
        help="none: only what --never-right adds",
    )
    answering.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    answering.add_argument("--prompts", type=int, default=64)
    answering.add_argument(
        "--never-right",
        action="store_true",
        help="an adaptive engine that has nothing to gain, too",
    )
    answering.set_defaults(run=chat)
    for kind in (chance, repeating, answering):
        kind.add_argument(
            "--precision", type=float, default=0.01, help="half of the interval, at most"
        )
        kind.add_argument(
            "--max-seconds",
            type=float,
            default=60.0,
            help="of a measurement, whatever its precision",
        )
        kind.add_argument("--min-rounds", type=int, default=8)
        kind.add_argument("--device", default="auto")
        kind.add_argument("--num-threads", type=int)
    options = parser.parse_args(argv)
    options.run(options)


if __name__ == "__main__":
    main()
