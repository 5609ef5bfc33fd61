"""`python3 -m engine.demo.train --out FOLDER`: trains the demo model from scratch.

Generates chats, learns a tokenizer, trains a Llama of 7 million parameters on the assistant's
messages, writes a folder in Hugging Face layout, and measures it on held-out prompts. The output,
and the time of each stage, are written to FOLDER.log beside the folder.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch.nn import functional

from engine.demo.corpus import Batch, Corpus
from engine.demo.data import examples
from engine.demo.evaluate import Accuracy
from engine.demo.log import Log
from engine.demo.measure import measure
from engine.demo.template import render
from engine.demo.vocabulary import (
    END_OF_TEXT,
    MAX_LENGTH,
    TURN_END,
    save_tokenizer,
    token_id,
    train_tokenizer,
)

_WARMUP_STEPS = 100


@dataclass(frozen=True)
class Options:
    out: Path
    minutes: float
    train_until: float
    device: str
    seed: int
    max_steps: int
    tokens_per_batch: int
    batches_per_step: int
    learning_rate: float
    workers: int
    tokenizer_chats: int
    eval_per_kind: int
    compile: bool
    size: str


# `demo` has 7 million parameters; `tiny` is for trying the script on a CPU.
_SHAPES: dict[str, dict[str, Any]] = {
    "demo": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8},
    "tiny": {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3},
}


def config_of(size: str, vocab_size: int, eos_id: int, pad_id: int) -> transformers.LlamaConfig:
    heads = _SHAPES[size]["hidden_size"] // 32
    return transformers.LlamaConfig(
        vocab_size=vocab_size,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        **_SHAPES[size],
    )


def make_tokenizer(options: Options, log: Log) -> Tokenizer:
    chats = islice(examples("train", options.seed + 1), options.tokenizer_chats)
    tokenizer = train_tokenizer(render(chat.messages, chat.tools) for chat in chats)
    save_tokenizer(tokenizer, options.out)
    log(f"tokenizer: {tokenizer.get_vocab_size()} tokens from {options.tokenizer_chats} chats")
    return tokenizer


class Trainer:
    """AdamW on float32 weights with bfloat16 arithmetic; the learning rate falls to zero when the
    time is over."""

    def __init__(self, model: transformers.LlamaForCausalLM, options: Options, log: Log) -> None:
        # `transformers` wraps to() so that mypy takes its argument for the model.
        self.model = model.to(options.device).train()  # type: ignore[arg-type]
        self.options, self.log = options, log
        self._step_times = Log()
        self.device = torch.device(options.device)
        matrices = [p for p in model.parameters() if p.ndim >= 2]
        vectors = [p for p in model.parameters() if p.ndim < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
            lr=options.learning_rate,
            betas=(0.9, 0.98),
            fused=self.device.type == "cuda",
        )
        if options.compile:
            for layer in model.model.layers:
                layer.compile(dynamic=True)

    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Compile the model on real batches; if that fails, training continues without."""
        start = time.monotonic()
        try:
            for batch in batches:
                self._loss(batch).backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # A compiler may raise anything, and training can do without it.
            if not self.options.compile:
                raise
            self.log(f"torch.compile failed, going on without it: {error!r:.500}")
            torch.compiler.set_stance("force_eager")
        self.optimizer.zero_grad(set_to_none=True)
        self.log(f"warm after {time.monotonic() - start:.1f} s")

    def train(self, corpus: Corpus) -> None:
        options = self.options
        left_s = options.train_until * 60 - self.log.seconds
        limit_s, start = min(options.minutes * 60, max(left_s, 1.0)), time.monotonic()
        step, num_tokens, window, losses, waited = 0, 0, start, [], 0.0
        while True:
            progress = max((time.monotonic() - start) / limit_s, step / options.max_steps)
            if progress >= 1:
                break
            rate = self._set_rate(step, progress)
            begun = time.monotonic()
            batches = [corpus.take() for _ in range(options.batches_per_step)]
            waited += time.monotonic() - begun
            losses.append(self._step(batches, timed=step % 100 == 50))
            num_tokens += sum(batch.tokens.size for batch in batches)
            step += 1
            if step % 100 == 0 or step in (1, 10, 30):
                loss = torch.stack(losses).mean().item()
                now = time.monotonic()
                self.log(
                    f"step {step} loss {loss:.4f} rate {rate:.2e} tokens {num_tokens / 1e6:.0f}M"
                    f" ({num_tokens / (now - start) / 1e6:.2f}M/s, last {len(losses)} steps in"
                    f" {now - window:.1f} s) made {corpus.num_tokens / 1e6:.0f}M"
                    f" waiting {corpus.num_waiting}"
                )
                losses, window = [], now
        self.log(f"trained {step} steps on {num_tokens / 1e6:.0f}M tokens")
        self.log(f"waited {waited:.1f} s for batches; parts of a step: {self._parts()}")

    def _set_rate(self, step: int, progress: float) -> float:
        warm = min(1.0, (step + 1) / _WARMUP_STEPS)
        rate = self.options.learning_rate * warm * (0.5 + 0.5 * math.cos(math.pi * progress))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _step(self, batches: Sequence[Batch], *, timed: bool = False) -> torch.Tensor:
        """One update. Returns the mean loss per assistant token, a scalar on the device.

        A `timed` step waits for the device after each part, to measure the parts.
        """
        num_targets = sum(len(batch.targets) for batch in batches)
        total = torch.zeros((), device=self.device)
        for batch in batches:
            with self._part("forward", timed):
                loss = self._loss(batch) / num_targets
            with self._part("backward", timed):
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        with self._part("update", timed):
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return total

    @contextmanager
    def _part(self, name: str, timed: bool) -> Iterator[None]:
        if not timed:
            yield
            return
        self._synchronize()
        with self._step_times.stage(name):
            yield
            self._synchronize()

    def _parts(self) -> str:
        """The shares of the parts in the time of the timed steps."""
        stages = self._step_times.stages
        whole = sum(stages.values()) or 1.0
        return ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in stages.items())

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _loss(self, batch: Batch) -> torch.Tensor:
        """The summed cross entropy of the targets. Since padding is on the right, the causal mask
        is enough."""
        tokens = self._on_device(torch.from_numpy(batch.tokens)).long()
        positions = self._on_device(torch.from_numpy(batch.positions))
        targets = self._on_device(torch.from_numpy(batch.targets)).long()
        with self._autocast():
            hidden = self.model.model(input_ids=tokens, use_cache=False).last_hidden_state
            logits = self.model.lm_head(hidden.flatten(0, 1).index_select(0, positions))
        return functional.cross_entropy(logits.float(), targets, reduction="sum")

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor

    def _autocast(self) -> AbstractContextManager[object]:
        if self.device.type == "cuda":
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()


def save_model(
    model: transformers.LlamaForCausalLM, out: Path, eos_ids: list[int], pad_id: int
) -> None:
    """Write config.json, generation_config.json, and model.safetensors in bfloat16."""
    plain = transformers.LlamaForCausalLM(model.config)
    plain.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
    plain = plain.to(torch.bfloat16)  # type: ignore[arg-type]  # as in Trainer
    plain.generation_config = transformers.GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True,
        temperature=0.3,
        top_p=0.9,
        eos_token_id=eos_ids,
        pad_token_id=pad_id,
    )
    plain.save_pretrained(out)


def run(options: Options) -> Accuracy:
    """Write the model's folder, and FOLDER.log beside it. Returns the model's accuracy."""
    options.out.mkdir(parents=True, exist_ok=True)
    out = options.out.resolve()
    log = Log(out.with_name(f"{out.name}.log"))
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    log(f"torch {torch.__version__} on {options.device}, {os.cpu_count()} cores")
    with log.stage("tokenizer"):
        tokenizer = make_tokenizer(options, log)
    eos, pad = token_id(tokenizer, TURN_END), token_id(tokenizer, END_OF_TEXT)
    model = transformers.LlamaForCausalLM(
        config_of(options.size, tokenizer.get_vocab_size(), eos, pad)
    )
    log(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    corpus = Corpus(
        tokenizer,
        seed=options.seed + 2,
        tokens_per_batch=options.tokens_per_batch,
        num_workers=options.workers,
    )
    try:
        train(model, corpus, options, log)
    finally:
        corpus.close()
        with log.stage("saving"):
            save_model(model, options.out, [eos, pad], pad)
        size = sum(file.stat().st_size for file in options.out.iterdir())
        log(f"saved {options.out}: {size / 1e6:.2f} MB")
    with log.stage("measuring"):
        accuracy = measure(options.out, options.eval_per_kind, log, options.device)
    log("where the time went\n" + log.summary())
    return accuracy


def train(model: transformers.LlamaForCausalLM, corpus: Corpus, options: Options, log: Log) -> None:
    with log.stage("model to the device"):
        trainer = Trainer(model, options, log)
    with log.stage("first batches"):
        batches = [corpus.take() for _ in range(3)]
    with log.stage("compiling, warm-up"):
        trainer.warm_up(batches)
    with log.stage("training"):
        trainer.train(corpus)


def parse(argv: Sequence[str] | None = None) -> Options:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(prog="engine.demo.train", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the model folder to write")
    parser.add_argument("--minutes", type=float, default=5, help="training time, evaluation apart")
    parser.add_argument(
        "--train-until", type=float, default=1e6, help="minutes after the start, at the latest"
    )
    parser.add_argument("--device", default="cuda" if cuda else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-steps", type=int, default=1_000_000)
    parser.add_argument("--tokens-per-batch", type=int, default=98304)
    parser.add_argument("--batches-per-step", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    # A worker makes 0.3M tokens a second: six feed the device, and leave cores to the compiler.
    parser.add_argument("--workers", type=int, default=max(1, min(6, (os.cpu_count() or 2) - 2)))
    parser.add_argument("--tokenizer-chats", type=int, default=40_000)
    parser.add_argument("--eval-per-kind", type=int, default=100)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=cuda)
    parser.add_argument("--size", default="demo", choices=("demo", "tiny"))
    return Options(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    print(json.dumps({"overall": run(parse()).overall}))
