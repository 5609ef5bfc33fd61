"""``python3 -m engine.demo.vision.train --out FOLDER``: trains the demo model that sees.

On one H200, with the fonts of a folder, in six minutes with all that it does besides:

    python3 -m engine.demo.vision.train --out $OUT/model --fonts FONTS --minutes 4.8

Draws pictures and asks about them on all cores, trains a Qwen3-VL of 5.6 million parameters on the
answers, writes a folder in Hugging Face layout, and measures it on held-out pictures: of other
fonts, angles and sizes. It needs torch, numpy, Pillow, tokenizers, safetensors and jinja2, and no
network. The output is also written to FOLDER.log. On a CPU, ``--size tiny --max-steps 30 --chats
16`` tries it in a minute.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional

from engine.demo.log import Log
from engine.demo.vision import network
from engine.demo.vision.batches import (
    END,
    IMAGE,
    SPECIAL,
    START,
    VIDEO,
    Batch,
    Batches,
    Encoder,
    held_out,
    split_of,
)
from engine.demo.vision.evaluate import Accuracy, Codec, judged
from engine.demo.vision.fonts import FOLDERS
from engine.demo.vision.questions import KINDS, examples
from engine.demo.vocabulary import END_OF_TEXT, TURN_END, save_tokenizer, token_id, train_tokenizer

VOCAB_SIZE = 1024
TEMPLATE_FILE = Path(__file__).parent / "chat_template.jinja"
_WARMUP_STEPS = 200
_NAMING = 0.5
"""The first weight of the encoder's own loss; it is zero from half of the time on."""
_FEWEST_KEPT, _MOST_KEPT = 32, 3000
"""Batches on the device: before any comes again, and at most (38 GB of 256 chats each)."""
_GRID = (8, 8)
_MAX_ANSWER = 40


@dataclass(frozen=True)
class Options:
    out: Path
    fonts: list[Path]
    minutes: float
    device: str
    seed: int
    max_steps: int
    chats: int
    learning_rate: float
    workers: int
    eval_per_kind: int
    size: str


def make_tokenizer(options: Options) -> Tokenizer:
    split, source = split_of("train", options.fonts), random.Random(options.seed)
    texts = []
    for chat in islice(examples((32, 32), split, source), 6000):
        texts += [text for turn in chat.turns for text in turn]
    tokenizer = train_tokenizer(texts, VOCAB_SIZE, special=SPECIAL, markers=())
    save_tokenizer(tokenizer, options.out, TEMPLATE_FILE, network.MAX_LENGTH)
    return tokenizer


class Trainer:
    """AdamW on float32 weights with bfloat16 arithmetic; the learning rate falls to zero when the
    time is over. Batches stay on the device: they come again while there is no new one.

    Beside the answers, the encoder is trained by itself to name their words from its mean output,
    by a matrix that is not kept: else it takes long until the text model looks at pictures."""

    def __init__(self, model: network.Network, options: Options, log: Log) -> None:
        self.device = torch.device(options.device)
        self.model = model.to(self.device).train()
        self.options, self.log = options, log
        self.naming = torch.nn.Linear(model.shape.hidden, VOCAB_SIZE).to(self.device)
        matrices = [p for p in (*model.parameters(), self.naming.weight) if p.dim() > 1]
        others = [p for p in (*model.parameters(), self.naming.bias) if p.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": 0.05},
            {"params": others, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, betas=(0.9, 0.98), fused=self.device.type == "cuda"
        )
        self._kept: list[tuple[torch.Tensor, ...]] = []

    def run(self, batches: Batches, deadline: float) -> None:
        """deadline: by the log's clock."""
        start, step, num_new, losses = self.log.seconds, 0, 0, []
        while self.log.seconds < deadline and step < self.options.max_steps:
            share = max(
                (self.log.seconds - start) / (deadline - start), step / self.options.max_steps
            )
            rate = self.options.learning_rate * _schedule(step, share)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            new = batches.take(wait=len(self._kept) < _FEWEST_KEPT)
            if new is not None:
                self._keep(new)
                num_new += 1
            tensors = self._kept[-1] if new is not None else random.choice(self._kept)
            losses.append(self._step(tensors, _NAMING * max(0.0, 1 - 2 * share)))
            step += 1
            if step % 100 == 0:
                loss = torch.stack(losses[-100:]).mean().item()
                self.log(f"step {step}, {num_new} new batches, rate {rate:.1e}, loss {loss:.4f}")
        self.log(f"trained {step} steps on {num_new} batches of {self.options.chats} chats")

    def _keep(self, batch: Batch) -> None:
        pinned = self.device.type == "cuda"
        arrays = (batch.token_ids, batch.places, batch.is_answer, batch.pictures)
        host = [torch.from_numpy(array) for array in arrays]
        on_device = [
            (tensor.pin_memory() if pinned else tensor).to(self.device, non_blocking=True)
            for tensor in host
        ]
        self._kept.append(tuple(on_device))
        if len(self._kept) > _MOST_KEPT:
            del self._kept[random.randrange(len(self._kept) - 1)]

    def _step(self, tensors: tuple[torch.Tensor, ...], naming: float) -> torch.Tensor:
        """The loss of the answers. naming: the weight of the other one."""
        token_ids, places, is_answer, pictures = tensors
        total = torch.zeros((), device=self.device)
        with _autocast(self.device):
            seen = self.model.see(pictures) if len(pictures) else []
            hidden = self.model(token_ids, places, seen)
            wanted = is_answer[:, 1:]
            logits = self.model.logits(hidden[:, :-1][wanted])
            if seen and naming:
                total = naming * self._naming_loss(seen[0], token_ids, is_answer)
        loss = functional.cross_entropy(logits.float(), token_ids[:, 1:][wanted])
        torch.autograd.backward(total + loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _naming_loss(
        self, embeddings: torch.Tensor, token_ids: torch.Tensor, is_answer: torch.Tensor
    ) -> torch.Tensor:
        """Of the words of each chat's answers. embeddings: [pictures, image tokens, hidden]."""
        num_tokens = (token_ids == self.model.image_token).sum(1)
        chats = torch.arange(len(token_ids), device=self.device)
        owners = chats.repeat_interleave(num_tokens // embeddings.shape[1])
        mean = embeddings.float().mean(1)
        sums = mean.new_zeros(len(token_ids), mean.shape[1]).index_add(0, owners, mean)
        counted = is_answer & (num_tokens > 0).unsqueeze(1)
        logits = self.naming(sums)[counted.nonzero()[:, 0]]
        return functional.cross_entropy(logits.float(), token_ids[counted])


def _autocast(device: torch.device) -> AbstractContextManager[Any]:
    if device.type == "cuda":
        return torch.autocast("cuda", torch.bfloat16)
    return nullcontext()


def _schedule(step: int, share: float) -> float:
    """Of the highest learning rate: rises, stays, and falls as a cosine from a fifth of the time
    on."""
    warm = min(1.0, (step + 1) / _WARMUP_STEPS)
    return warm * 0.5 * (1 + math.cos(math.pi * max(0.0, min(1.0, (share - 0.2) / 0.8))))


def save(model: network.Network, shape: network.Shape, tokenizer: Tokenizer, folder: Path) -> None:
    """In bfloat16, as transformers would."""
    names = {"image": IMAGE, "video": VIDEO, "start": START, "end": END, "turn_end": TURN_END}
    tokens = {name: token_id(tokenizer, token) for name, token in names.items()}
    weights = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    files = {
        "config": network.config(shape, tokens, VOCAB_SIZE),
        "generation_config": {
            "eos_token_id": [token_id(tokenizer, TURN_END), token_id(tokenizer, END_OF_TEXT)],
            "temperature": 0.2,
            "top_p": 0.9,
        },
        "preprocessor_config": {
            "image_processor_type": "Qwen2VLImageProcessor",
            "size": {"shortest_edge": network.FEWEST, "longest_edge": network.MOST},
            "patch_size": network.PATCH,
            "temporal_patch_size": 2,
            "merge_size": network.MERGE,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        },
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", "utf-8")


@torch.inference_mode()
def generate(model: network.Network, batch: Batch, lengths: list[int], end: int) -> list[list[int]]:
    """Greedy answers to prompts of equal pictures. batch: with room for the answers; lengths: of
    the prompts."""
    device = next(model.parameters()).device
    token_ids, places = (torch.from_numpy(a).to(device) for a in (batch.token_ids, batch.places))
    pictures = torch.from_numpy(batch.pictures).to(device)
    at = torch.tensor(lengths, device=device)
    rows = torch.arange(len(at), device=device)
    answers: list[list[int]] = [[] for _ in lengths]
    with _autocast(device):
        seen = model.see(pictures) if len(pictures) else []
    for _ in range(_MAX_ANSWER):
        with _autocast(device):
            hidden = model(token_ids, places, seen)
            chosen = model.logits(hidden[rows, at - 1]).argmax(-1)
        token_ids[rows, at] = chosen
        places[rows, :, at] = places[rows, :, at - 1] + 1
        at += 1
        for answer, token in zip(answers, chosen.tolist(), strict=True):
            if end not in answer:
                answer.append(token)
        if all(end in answer for answer in answers):
            break
    return answers


def measure(model: network.Network, tokenizer: Tokenizer, options: Options) -> Accuracy:
    """On held-out pictures, by the network itself."""
    model.eval()
    encoder, split = Encoder(tokenizer), split_of("heldout", options.fonts)
    codec: Codec = tokenizer
    end, outcomes = token_id(tokenizer, TURN_END), []
    for kind in KINDS:
        asked = held_out(kind, options.eval_per_kind, split)
        batch = encoder.batch(asked, _GRID)
        prompts = [encoder.prompt(one, _GRID) for one in asked]
        room = max(map(len, prompts)) + _MAX_ANSWER + 1
        shape = (len(asked), room)
        ids, places = torch.zeros(shape, dtype=torch.int64), torch.zeros(len(asked), 3, room)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
            places[row, :, : len(prompt)] = torch.from_numpy(encoder.places(prompt, _GRID))
        roomy = Batch(ids.numpy(), places.long().numpy(), batch.is_answer, batch.pictures)
        answers = generate(model, roomy, [len(prompt) for prompt in prompts], end)
        outcomes += judged(asked, answers, codec, end)
    return Accuracy(outcomes)


def main(argv: list[str] | None = None) -> None:
    options = _parse(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    log = Log(options.out.with_suffix(".log"))
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    with log.stage("tokenizer"):
        tokenizer = make_tokenizer(options)
    batches = Batches(
        tokenizer,
        options.fonts,
        workers=options.workers,
        chats=options.chats,
        seed=options.seed,
    )
    try:
        shape = network.SHAPES[options.size]
        model = network.Network(shape, VOCAB_SIZE, token_id(tokenizer, IMAGE))
        count = sum(p.numel() for p in model.parameters())
        log(f"{count} parameters, {options.workers} workers, {options.device}")
        with log.stage("training"):
            Trainer(model, options, log).run(batches, log.seconds + 60 * options.minutes)
    finally:
        batches.close()
    with log.stage("saving"):
        save(model, shape, tokenizer, options.out)
    with log.stage("measuring"):
        accuracy = measure(model, tokenizer, options)
    accuracy.save(options.out / "accuracy.json")
    log(f"held-out accuracy:\n{accuracy.table()}")
    for outcome in [o for o in accuracy.outcomes if not o.right][:40]:
        log(f"{outcome.kind}: {outcome.question!r} -> {outcome.answer!r}, not {outcome.wanted!r}")
    log(f"time:\n{log.summary()}")


def _parse(argv: list[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    cuda = torch.cuda.is_available()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--fonts", type=Path, nargs="+", default=list(FOLDERS), help="folders of fonts"
    )
    parser.add_argument("--minutes", type=float, default=4.8, help="of training")
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=10**9)
    parser.add_argument("--chats", type=int, default=256, help="in a batch")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--eval-per-kind", type=int, default=200 if cuda else 10)
    parser.add_argument("--size", choices=sorted(network.SHAPES), default="demo")
    return Options(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
