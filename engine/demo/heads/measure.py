"""``python3 -m engine.demo.heads.measure``: measures proposers on the demo model.

Answers held-out prompts of every kind greedily, and prints a Markdown table of the mean number of
tokens per step (1 and the accepted drafts), for every proposer and kind of task.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.demo import MODEL_DIR
from engine.demo.data import KINDS
from engine.demo.evaluate import HELD_OUT_SEED, MAX_TOKENS
from engine.demo.heads import HEADS_DIR
from engine.demo.heads.answers import Prompt, draw_prompts
from engine.llm import LLM, SamplingParams, TokensPrompt

PROPOSERS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix"},
    "eagle": {"method": "eagle", "model": str(HEADS_DIR / "eagle")},
    "eagle3": {"method": "eagle3", "model": str(HEADS_DIR / "eagle3")},
}


@dataclass
class Tally:
    num_tokens: int = 0
    num_steps: int = 0

    @property
    def tokens_per_step(self) -> float:
        return self.num_tokens / max(1, self.num_steps)


@dataclass
class Measured:
    """The result of one proposer on all prompts."""

    tallies: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    """Tallies by kind of task."""
    seconds: float = 0.0

    @property
    def all(self) -> Tally:
        tallies = self.tallies.values()
        return Tally(sum(t.num_tokens for t in tallies), sum(t.num_steps for t in tallies))


def measure(name: str, prompts: Sequence[Prompt], num_tokens: int, **options: Any) -> Measured:
    """Run the prompts one at a time. The prompt's step and its token do not count."""
    config = {**PROPOSERS[name], "num_speculative_tokens": num_tokens, "adaptive": False}
    # The memory of the engine before must be free.
    options["kv_cache_memory_bytes"] = 512 << 20
    llm = LLM(MODEL_DIR, skip_tokenizer_init=True, speculative_config=config, **options)
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    found = Measured()
    start = time.perf_counter()
    for prompt in prompts:
        before = llm.stats().num_steps
        (result,) = llm.generate(TokensPrompt(prompt_token_ids=prompt.token_ids), params)
        tally = found.tallies[prompt.kind]
        tally.num_tokens += len(result.outputs[0].token_ids) - 1
        tally.num_steps += llm.stats().num_steps - before - 1
    found.seconds = time.perf_counter() - start
    return found


def table(results: dict[str, Measured]) -> str:
    """A table of tokens per step, with a row for each kind of task."""
    lines = [f"| task | {' | '.join(results)} |", "| --- |" + " ---: |" * len(results)]
    for kind in KINDS:
        cells = [f"{r.tallies[kind].tokens_per_step:.2f}" for r in results.values()]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    cells = [f"**{r.all.tokens_per_step:.2f}**" for r in results.values()]
    return "\n".join([*lines, f"| **all** | {' | '.join(cells)} |"])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="engine.demo.heads.measure", description=__doc__)
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=list(PROPOSERS), choices=list(PROPOSERS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--enforce-eager", action="store_true")
    options = parser.parse_args(argv)
    prompts = draw_prompts(MODEL_DIR, "heldout", HELD_OUT_SEED, options.prompts)
    results = {
        name: measure(
            name,
            prompts,
            options.num_speculative_tokens,
            device=options.device,
            num_threads=options.num_threads,
            enforce_eager=options.enforce_eager,
        )
        for name in options.only
    }
    print(table(results))
    print({name: f"{result.seconds:.1f} s" for name, result in results.items()})


if __name__ == "__main__":
    main()
