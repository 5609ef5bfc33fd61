"""``python3 -m engine.demo.heads.train --out FOLDER``: trains draft heads for the demo model.

Has the model answer prompts, trains an EAGLE-3 head and an EAGLE head on the answers at the same
time, and writes FOLDER/{eagle3,eagle} in their published layouts.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from engine.demo import MODEL_DIR
from engine.demo.heads.answers import Answer, Batch, answer, batches, draw_prompts
from engine.demo.heads.networks import Eagle, Eagle3, Shape
from engine.demo.log import Log
from engine.llm import LLM

_WARMUP_STEPS = 100
_PASS_WEIGHT = 0.8


@dataclass(frozen=True)
class Options:
    out: Path
    model: Path
    minutes: float
    max_steps: int
    answers: int
    held_out: int
    tokens_per_batch: int
    learning_rate: float
    draft_vocab_size: int
    num_passes: int
    device: str
    seed: int


@dataclass(frozen=True)
class Seen:
    """What the target computes for a batch."""

    token_ids: torch.Tensor
    """[rows, length]"""
    embeds: torch.Tensor
    aux: torch.Tensor
    """[rows, length, 3 * hidden]: the inputs of the layers ``aux_layers``"""
    features: torch.Tensor
    """[rows, length, hidden], normed"""
    probs: torch.Tensor
    """[rows, length, vocab]: of the token after each position"""
    counts: torch.Tensor
    """[rows, length] bool: whether the model generated the token after each position"""


class Target:
    """The demo model with frozen weights."""

    def __init__(self, options: Options) -> None:
        model = transformers.LlamaForCausalLM.from_pretrained(options.model, dtype=torch.float32)
        # `transformers` wraps to() so that mypy takes its argument for the model.
        model = model.to(options.device)  # type: ignore[arg-type]
        self.model = model.eval().requires_grad_(False)
        self.device = torch.device(options.device)
        self.config = config = self.model.config
        n = config.num_hidden_layers
        self.aux_layers = (2, n // 2, n - 3)
        self.lm_head: torch.Tensor = self.model.lm_head.weight.data
        self.shape = Shape(
            config.hidden_size,
            config.intermediate_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            float(config.rope_parameters["rope_theta"]),
            config.rms_norm_eps,
        )

    @torch.no_grad()
    def see(self, batch: Batch) -> Seen:
        token_ids = torch.from_numpy(batch.token_ids).to(self.device)
        said = torch.from_numpy(batch.said).to(self.device)
        with autocast(self.device):
            out = self.model.model(input_ids=token_ids, use_cache=False, output_hidden_states=True)
            logits = out.last_hidden_state @ self.lm_head.T
        aux = torch.cat([out.hidden_states[i] for i in self.aux_layers], -1)
        return Seen(
            token_ids,
            self.model.model.embed_tokens(token_ids),
            aux.float(),
            out.last_hidden_state.float(),
            logits.float().softmax(-1),
            F.pad(said[:, 1:], (0, 1)),
        )


def autocast(device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()


class Heads(nn.Module):
    """Both heads, which are trained together because they need the same of the target."""

    def __init__(self, target: Target, draft_ids: torch.Tensor, options: Options) -> None:
        super().__init__()
        self.target, self.num_passes = target, options.num_passes
        self.eagle3 = Eagle3(target.shape, draft_ids, target.config.vocab_size)
        self.eagle3.lm_head.weight.data.copy_(target.lm_head.cpu()[draft_ids])
        self.eagle = Eagle(target.shape)
        self.to(options.device)

    def losses(self, seen: Seen) -> dict[str, torch.Tensor]:
        return {"eagle3": self._eagle3_loss(seen), "eagle": self._eagle_loss(seen)}

    def _eagle3_loss(self, seen: Seen) -> torch.Tensor:
        """Cross entropy with the target's distribution over the draft vocabulary. Positions at
        which this lacks the target's most likely token do not count."""
        probs = seen.probs[..., self.eagle3.t2d]
        counts = seen.counts & self.eagle3.t2d[seen.probs.argmax(-1)]
        loss = torch.zeros((), device=probs.device)
        passes = self.eagle3.unroll(seen.embeds, seen.aux, self.num_passes)
        for index, (logits, _) in enumerate(passes):
            weight = _PASS_WEIGHT**index
            loss = loss + weight * cross_entropy(logits, probs, from_pass(counts, index))
        return loss

    def _eagle_loss(self, seen: Seen) -> torch.Tensor:
        loss = torch.zeros((), device=seen.probs.device)
        passes = self.eagle.unroll(seen.embeds, seen.features, self.target.lm_head, self.num_passes)
        for index, (logits, out) in enumerate(passes):
            counts = from_pass(seen.counts, index)
            feature = F.smooth_l1_loss(out[counts].float(), seen.features[counts])
            entropy = cross_entropy(logits, seen.probs, counts)
            loss = loss + _PASS_WEIGHT**index * (feature + entropy)
        return loss

    @torch.no_grad()
    def hit_rates(self, seen: Seen) -> dict[str, list[torch.Tensor]]:
        """For each position of a draft, [rows, length] bool: whether the head's most likely token
        is the target's, at the position from which the target predicts it."""
        best = seen.probs.argmax(-1)
        ids = torch.arange(len(self.eagle3.d2t), device=best.device) + self.eagle3.d2t
        eagle3 = self.eagle3.unroll(seen.embeds, seen.aux, self.num_passes)
        eagle = self.eagle.unroll(seen.embeds, seen.features, self.target.lm_head, self.num_passes)
        return {
            "eagle3": [ids[logits.argmax(-1)] == best for logits, _ in eagle3],
            "eagle": [logits.argmax(-1) == best for logits, _ in eagle],
        }


def from_pass(counts: torch.Tensor, index: int) -> torch.Tensor:
    """Without the first places, where pass ``index`` attends to nothing that exists."""
    counts = counts.clone()
    counts[:, :index] = False
    return counts


def cross_entropy(logits: torch.Tensor, probs: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The mean over the positions that count."""
    chosen = probs[counts]
    chosen = chosen / chosen.sum(-1, keepdim=True).clamp_min(1e-9)
    entropy = -(chosen * logits[counts].float().log_softmax(-1)).sum(-1)
    return entropy.sum() / counts.sum().clamp_min(1)


def train(heads: Heads, data: Iterator[Batch], options: Options, log: Log) -> None:
    parameters = [p for p in heads.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, options.learning_rate, betas=(0.9, 0.95))
    start, step = time.monotonic(), 0
    totals: dict[str, torch.Tensor] = {}
    while True:
        progress = max(
            (time.monotonic() - start) / (60 * options.minutes), step / options.max_steps
        )
        if progress >= 1:
            break
        warm = min(1.0, (step + 1) / _WARMUP_STEPS)
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * warm * (0.5 + 0.5 * math.cos(math.pi * progress))
        seen = heads.target.see(next(data))
        with autocast(heads.target.device):
            losses = heads.losses(seen)
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        # One by one, so that the gradients of one head do not scale down those of others.
        for name in losses:
            nn.utils.clip_grad_norm_(getattr(heads, name).parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        for name, loss in losses.items():
            totals[name] = totals.get(name, torch.zeros_like(loss)) + loss.detach()
        if step % 200 == 0:
            means = ", ".join(f"{name} {float(t) / 200:.3f}" for name, t in totals.items())
            log(f"step {step} loss {means}")
            totals = {}
    log(f"trained {step} steps")


def measure(heads: Heads, held_out: Sequence[Answer], log: Log) -> dict[str, float]:
    """The mean number of tokens per step, the target's own included, if drafts begin at every
    position."""
    lengths: dict[str, list[float]] = {}
    data = batches(held_out, 16384, 0)
    num_rows = 0
    while num_rows < len(held_out):
        batch = next(data)
        num_rows += len(batch.token_ids)
        seen = heads.target.see(batch)
        greedy = seen.counts.clone()  # only where the text is that of greedy decoding
        greedy[:, :-1] &= seen.probs.argmax(-1)[:, :-1] == seen.token_ids[:, 1:]
        for name, hits in heads.hit_rates(seen).items():
            alive, length = greedy.clone(), torch.ones(greedy.shape, device=greedy.device)
            for ahead, hit in enumerate(hits):
                shifted = F.pad((hit & greedy)[:, ahead:], (0, ahead))
                alive &= shifted
                length += alive
            lengths.setdefault(name, []).extend(length[greedy].tolist())
    means = {name: float(np.mean(values)) for name, values in lengths.items()}
    log("tokens a step, held out: " + ", ".join(f"{n} {v:.2f}" for n, v in means.items()))
    return means


def save(heads: Heads, options: Options) -> None:
    """Write the weights in bfloat16, in the layouts of the published heads."""
    config = heads.target.config
    common: dict[str, Any] = {
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "num_hidden_layers": 1,
        **{
            name: getattr(config, name)
            for name in (
                *("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"),
                *("num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings"),
                *("rope_parameters", "attention_bias", "mlp_bias"),
            )
        },
    }
    layers = list(heads.target.aux_layers)
    eagle3 = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **common,
        "draft_vocab_size": len(heads.eagle3.d2t),
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": layers,
        },
    }
    _write(options.out / "eagle3", eagle3, heads.eagle3)
    eagle = {"architectures": ["LlamaForCausalLM"], **common}
    _write(options.out / "eagle", eagle, heads.eagle)


def _write(folder: Path, config: dict[str, Any], head: nn.Module) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {
        key: (tensor.bfloat16() if tensor.is_floating_point() else tensor).cpu().contiguous()
        for key, tensor in head.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def run(options: Options) -> dict[str, float]:
    options.out.mkdir(parents=True, exist_ok=True)
    log = Log(options.out / "train.log")
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    with log.stage("prompts"):
        asked = draw_prompts(options.model, "train", options.seed + 1, options.answers)
        tested = draw_prompts(options.model, "heldout", options.seed + 2, options.held_out)
    with log.stage("answers"):
        llm = LLM(
            options.model,
            device=options.device,
            skip_tokenizer_init=True,
            max_num_seqs=512,
            max_num_batched_tokens=16384,
            gpu_memory_utilization=0.3,
        )
        answers, held_out = answer(llm, asked), answer(llm, tested)
        del llm
    num_tokens = sum(len(a.token_ids) - a.num_prompt_tokens for a in answers)
    log(f"{len(answers)} answers of {num_tokens} tokens")
    target = Target(options)
    heads = Heads(target, _draft_ids(answers, target, options.draft_vocab_size), options)
    with log.stage("training"):
        train(heads, batches(answers, options.tokens_per_batch, options.seed), options, log)
    means = measure(heads, held_out, log)
    save(heads, options)
    log("where the time went\n" + log.summary())
    return means


def _draft_ids(answers: Sequence[Answer], target: Target, size: int) -> torch.Tensor:
    """The most frequent tokens, ascending."""
    said = np.concatenate([a.token_ids[a.num_prompt_tokens :] for a in answers])
    counts = torch.bincount(torch.from_numpy(said), minlength=target.config.vocab_size)
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def parse(argv: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog="engine.demo.heads.train", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--minutes", type=float, default=2.5, help="training time")
    parser.add_argument("--max-steps", type=int, default=1_000_000)
    parser.add_argument("--answers", type=int, default=100_000, help="to train on")
    parser.add_argument("--held-out", type=int, default=1000, help="answers to measure with")
    parser.add_argument("--tokens-per-batch", type=int, default=16384)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--draft-vocab-size", type=int, default=3072)
    parser.add_argument("--num-passes", type=int, default=5, help="drafts foreseen in training")
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--seed", type=int, default=0)
    return Options(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    print(json.dumps(run(parse())))
