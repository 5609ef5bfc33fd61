"""``python -m engine.bench``: measures the offline engine's tokens per second, and transformers'.

Prints one JSON line for each measurement to stdout, and a table to stderr.

Rules: fixed prompt and output lengths, EOS ignored, greedy unless a case says otherwise, fresh
random prompts for every run, one warm-up, then the better of two.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from engine.core import EngineCore
from engine.errors import ConfigError, EngineError
from engine.launch import IDLE_THREADS
from engine.llm import LLM, TokensPrompt
from engine.sampling_params import SamplingParams
from engine.spec.config import SpeculativeConfig

CONCURRENCIES = (1, 16, 64)
REPEATS = 2
PROFILED_STEPS = 16
"""In which the time of collectives is measured."""


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``n`` requests at once; ``isl`` and ``osl`` are inclusive ranges of the lengths of inputs and
    outputs in tokens."""

    name: str
    n: int
    isl: tuple[int, int]
    osl: tuple[int, int]
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    shared_prefix: int = 0


class CaseFile(msgspec.Struct, frozen=True):
    """``--cases``: the cases, and the config.json of the model they are meant for."""

    model: dict[str, Any]
    cases: list[Case]


class Workload(msgspec.Struct, frozen=True):
    prompts: list[list[int]]
    output_lens: list[int]


class Measurement(msgspec.Struct, frozen=True, omit_defaults=True):
    """One JSON line."""

    engine: str
    case: str
    s: float
    out_tok_s: float
    total_tok_s: float
    out_tok_s_each: float | None = None
    """Output tokens for each of several ranks."""
    collectives: float | None = None
    """Of several ranks: the share of decode steps that rank 0 spends in collectives."""


Engine = Callable[[Case, Workload], int]
"""Runs a workload, and returns the number of generated tokens."""


def draw(case: Case, vocab_size: int, rng: random.Random) -> Workload:
    """Fresh random prompts, without ids at the ends of the vocabulary, which may be special tokens.

    So the prefix cache helps only within a run, and only if a case has a ``shared_prefix``.
    """
    margin = min(1000, vocab_size // 8)
    ids = range(margin, vocab_size - margin)
    shared = rng.choices(ids, k=case.shared_prefix)
    prompts, output_lens = [], []
    for _ in range(case.n):
        prompts.append(shared + rng.choices(ids, k=rng.randint(*case.isl)))
        output_lens.append(rng.randint(*case.osl))
    return Workload(prompts, output_lens)


def timed(name: str, engine: Engine, case: Case, workload: Workload) -> Measurement:
    start = time.perf_counter()
    num_out = engine(case, workload)
    seconds = time.perf_counter() - start
    if num_out != sum(workload.output_lens):
        raise EngineError(
            f"{name} generated {num_out} tokens in place of {sum(workload.output_lens)}"
        )
    num_in = sum(map(len, workload.prompts))
    return Measurement(
        engine=name,
        case=case.name,
        s=round(seconds, 3),
        out_tok_s=round(num_out / seconds, 1),
        total_tok_s=round((num_in + num_out) / seconds, 1),
    )


def sluice_engine(llm: LLM) -> Engine:
    def generate(case: Case, workload: Workload) -> int:
        params = [
            SamplingParams(
                temperature=case.temperature,
                top_p=case.top_p,
                top_k=case.top_k,
                ignore_eos=True,
                max_tokens=length,
            )
            for length in workload.output_lens
        ]
        prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in workload.prompts]
        return sum(len(result.outputs[0].token_ids) for result in llm.generate(prompts, params))

    return generate


def of_ranks(llm: LLM, case: Case, result: Measurement) -> Measurement:
    """With what is asked of several ranks. Prompts are cached, so that the steps looked at
    decode."""
    from engine.bench.collectives import share_of
    from engine.runner.runner import TorchRunner

    runner = llm._core._runner if isinstance(llm._core, EngineCore) else None
    assert isinstance(runner, TorchRunner)
    engine, rng = sluice_engine(llm), random.Random(0)
    drawn = draw(case, llm.info.vocab_size, rng).prompts
    first, rest = (Workload(drawn, [length] * case.n) for length in (1, PROFILED_STEPS))
    engine(case, first)
    share = share_of(lambda: engine(case, rest), runner.stage, llm.info.device)
    return msgspec.structs.replace(
        result,
        out_tok_s_each=round(result.out_tok_s / llm.config.num_ranks, 1),
        collectives=None if share is None else round(share, 3),
    )


def transformers_engines(model_dir: Path, num_threads: int | None) -> Iterator[tuple[str, Engine]]:
    """``transformers``: static batches through ``generate``; ``-cb``: its continuous batching.

    Both run greedily in float32 on the CPU, with scaled_dot_product_attention.
    """
    import torch
    import transformers

    hf: Any = transformers  # half typed
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    model = hf.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()

    @torch.inference_mode()
    def static(case: Case, workload: Workload) -> int:
        # All lengths of such a case are equal: padding would only slow it down.
        (length,) = set(workload.output_lens)
        ids = torch.tensor(workload.prompts)
        config = hf.GenerationConfig(
            max_new_tokens=length, min_new_tokens=length, do_sample=False, pad_token_id=0
        )
        output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return int(output.shape[1] - ids.shape[1]) * len(workload.prompts)

    def continuous(case: Case, workload: Workload) -> int:
        (length,) = set(workload.output_lens)
        # -1 is no token: nothing ends early.
        config = hf.GenerationConfig(
            max_new_tokens=length, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        # Left alone it sizes the cache by the whole memory, and spends seconds on laying it out.
        page_size, num_tokens = 32, max(map(len, workload.prompts)) + length
        sizes = hf.ContinuousBatchingConfig(
            page_size=page_size,
            num_blocks=len(workload.prompts) * (num_tokens // page_size + 2),
            max_batch_tokens=max(2048, case.n),
        )
        outputs = model.generate_batch(
            workload.prompts, generation_config=config, continuous_batching_config=sizes
        )
        return sum(len(output.generated_tokens) for output in outputs.values())

    yield "transformers", static
    yield "transformers-cb", continuous


def compare(
    engines: Sequence[tuple[str, Engine]],
    cases: Sequence[Case],
    vocab_size: int,
    *,
    repeats: int = REPEATS,
) -> Iterator[Measurement]:
    """The best result of every engine for every case. Engines take turns, so that other load on the
    machine slows all of them."""
    for case in cases:
        rngs = [random.Random(case.name) for _ in engines]  # the same prompts for all
        for (_, engine), rng in zip(engines, rngs, strict=True):
            engine(case, draw(_warm_up(case), vocab_size, rng))
        runs = [
            [
                timed(name, engine, case, draw(case, vocab_size, rng))
                for (name, engine), rng in zip(engines, rngs, strict=True)
            ]
            for _ in range(repeats)
        ]
        yield from (
            max(of_one, key=lambda run: run.out_tok_s) for of_one in zip(*runs, strict=True)
        )


def _warm_up(case: Case) -> Case:
    """The same shapes, a quarter of the output."""
    short = max(1, case.osl[0] // 4)
    return msgspec.structs.replace(case, osl=(short, short))


def table(results: Sequence[Measurement], plain: str | None = None) -> Table:
    """A table with a row for each case. Ratios are those of the first engine to the others, or
    those of all others to ``plain``; the last row has the lowest of each."""
    names = list(dict.fromkeys(result.engine for result in results))
    pairs = [(names[0], name) for name in names[1:]]
    if plain is not None:
        pairs = [(name, plain) for name in names if name != plain]
    view = Table(title="Output tokens per second", show_footer=plain is not None)
    view.add_column("case", "slowest")
    for name in names:
        view.add_column(name, justify="right")
    lowest = dict.fromkeys(pairs, float("inf"))
    rows = []
    for case in dict.fromkeys(result.case for result in results):
        by_engine = {r.engine: r.out_tok_s for r in results if r.case == case}
        ratios = {(ours, theirs): by_engine[ours] / by_engine[theirs] for ours, theirs in pairs}
        lowest = {pair: min(lowest[pair], ratio) for pair, ratio in ratios.items()}
        cells = [f"{by_engine[name]:,.0f}" for name in names]
        rows.append([case, *cells, *(f"{ratio:.2f}×" for ratio in ratios.values())])
    for pair in pairs:
        view.add_column(" / ".join(pair), f"{lowest[pair]:.2f}×", justify="right")
    for row in rows:
        view.add_row(*row)
    return view


@contextmanager
def model_folder(model: str | None, config: dict[str, Any] | None) -> Iterator[str]:
    """``model``, or a folder with ``config`` alone, to be loaded with random weights."""
    if model is not None:
        yield model
    elif config is None:
        yield str(Path(__file__).parents[1] / "demo" / "model")
    else:
        with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
            (Path(directory) / "config.json").write_text(json.dumps(config))
            yield directory


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.bench", description=__doc__)
    parser.add_argument("--model", help="a model folder; the bundled demo model without it")
    parser.add_argument(
        "--cases",
        type=Path,
        help="a JSON file with cases, such as engine/bench/cases.json, in place of 1, 16, 64",
    )
    parser.add_argument("--only", nargs="*", help="names of the cases to run")
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument(
        "--concurrencies", type=int, nargs="+", default=CONCURRENCIES, help="requests at once"
    )
    parser.add_argument(
        "--speculative-config",
        action="append",
        default=[],
        help="JSON; measure with it and without in one run (again and again for others)",
    )
    parser.add_argument("--no-transformers", action="store_true", help="measure this engine alone")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="runs; the best counts")
    engine = parser.add_argument_group("engine")
    engine.add_argument("--device", default="auto")
    engine.add_argument("--dtype", default="auto")
    engine.add_argument("--quantization")
    engine.add_argument("--quantize-lm-head", action="store_true")
    engine.add_argument("--max-model-len", type=int)
    engine.add_argument("--max-num-seqs", type=int)
    engine.add_argument("--max-num-batched-tokens", type=int)
    engine.add_argument("--target-gap-ms", type=float)
    engine.add_argument("--target-ttft-ms", type=float, default=500.0)
    engine.add_argument("--gpu-memory-utilization", type=float, default=0.92)
    engine.add_argument("--kv-cache-memory-bytes", type=int, help="of each engine")
    engine.add_argument("--num-threads", type=int)
    engine.add_argument("--attention-backend", default="auto")
    engine.add_argument("--enforce-eager", action="store_true")
    engine.add_argument("--kv-cache-dtype", default="auto")
    engine.add_argument("--tensor-parallel-size", type=int, default=1)
    engine.add_argument("--pipeline-parallel-size", type=int, default=1)
    engine.add_argument("--enable-expert-parallel", action="store_true")
    return parser.parse_args(arguments)


ENGINE_OPTIONS = (
    "device",
    "dtype",
    "quantization",
    "quantize_lm_head",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "target_gap_ms",
    "target_ttft_ms",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "num_threads",
    "attention_backend",
    "enforce_eager",
    "kv_cache_dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "enable_expert_parallel",
)


def _cases(options: argparse.Namespace) -> tuple[list[Case], dict[str, Any] | None]:
    isl, osl = options.input_len, options.output_len
    cases = [Case(f"{n} concurrent", n, (isl, isl), (osl, osl)) for n in options.concurrencies]
    config = None
    if options.cases is not None:
        try:
            file = msgspec.json.decode(options.cases.read_bytes(), type=CaseFile)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{options.cases} cannot be read: {error}") from error
        cases, config = file.cases, file.model
    if options.only:
        unknown = set(options.only) - {case.name for case in cases}
        if unknown:
            raise ConfigError(f"no such case: {', '.join(sorted(unknown))}")
        cases = [case for case in cases if case.name in options.only]
    return cases, config


def _speculative(options: argparse.Namespace) -> list[SpeculativeConfig]:
    try:
        return [
            msgspec.json.decode(text, type=SpeculativeConfig) for text in options.speculative_config
        ]
    except msgspec.MsgspecError as error:
        raise ConfigError(f"--speculative-config: {error}") from error


def _name(speculative: SpeculativeConfig | None) -> str:
    if speculative is None:
        return "sluice"
    fixed = "" if speculative.adaptive else "fixed "
    return f"{speculative.method}, {fixed}{speculative.num_tokens}"


def _bench(options: argparse.Namespace, console: Console) -> None:
    cases, config = _cases(options)

    with model_folder(options.model, config) as model:
        settings = {name: getattr(options, name) for name in ENGINE_OPTIONS}
        if options.model is None and config is not None:
            settings["load_format"] = "dummy"
        engines, vocab_size, plain = [], 0, None
        for speculative in (*_speculative(options), None):
            llm = LLM(model, skip_tokenizer_init=True, speculative_config=speculative, **settings)
            vocab_size, plain = llm.info.vocab_size, llm
            engines.append((_name(speculative), sluice_engine(llm)))
        if options.cases is None and not options.no_transformers:
            engines += transformers_engines(Path(model), options.num_threads)
        results = []
        by_name = {case.name: case for case in cases}
        for result in compare(engines, cases, vocab_size, repeats=options.repeats):
            if plain is not None and plain.config.num_ranks > 1 and result.engine == _name(None):
                result = of_ranks(plain, by_name[result.case], result)
            results.append(result)
            print(msgspec.json.encode(result).decode(), flush=True)
    console.print(table(results, _name(None) if options.speculative_config else None))


def main(arguments: Sequence[str] | None = None) -> int:
    console = Console(stderr=True)
    options = _parse(arguments)
    os.environ.update({**IDLE_THREADS, **os.environ})  # as the engine process runs; for all alike
    if options.num_threads is not None:
        # torch.set_num_threads holds for the calling thread; transformers-cb generates in another.
        os.environ["OMP_NUM_THREADS"] = str(options.num_threads)
    try:
        _bench(options, console)
    except EngineError as error:
        console.print(f"[red]error:[/red] {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
