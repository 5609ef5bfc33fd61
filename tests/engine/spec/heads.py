"""Random draft networks for a tiny model, in the published layouts, and what they say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from engine.demo.heads.answers import Batch
from engine.demo.heads.networks import Eagle3
from engine.demo.heads.train import Heads, Target, save
from tests.engine.runner.tiny_llama import save_tiny_llama
from tests.engine.spec.tiny_heads import draw_medusa, save_medusa

VOCAB, DRAFT_VOCAB = 512, 200


def options(out: Path) -> Any:
    return SimpleNamespace(
        out=out,
        model=out / "target",
        device="cpu",
        num_passes=4,
        draft_vocab_size=DRAFT_VOCAB,
    )


class Networks(NamedTuple):
    heads: Heads
    medusa: dict[str, torch.Tensor]


def random_heads(out: Path) -> Networks:
    """Written to ``out`` beside their ``target``; float32 values that bfloat16 holds, so that files
    lose nothing."""
    save_tiny_llama(out / "target", vocab_size=VOCAB, max_position_embeddings=256)
    torch.manual_seed(3)
    chosen = options(out)
    target = Target(chosen)
    draft_ids = torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values
    heads = Heads(target, draft_ids, chosen)
    with torch.no_grad():
        for name, parameter in heads.named_parameters():
            if "norm" not in name:
                parameter.normal_(0, 0.08)
            parameter.copy_(parameter.bfloat16().float())
    save(heads, chosen)
    medusa = draw_medusa(target.shape.hidden_size, VOCAB)
    save_medusa(out / "medusa", medusa)
    return Networks(heads.eval(), medusa)


@torch.no_grad()
def chain(networks: Networks, method: str, known: list[int], num_tokens: int) -> list[int]:
    """What an EAGLE head drafts greedily, by the network as it is trained."""
    heads = networks.heads
    drafts: list[int] = []
    for index in range(num_tokens):
        # The last row says what the passes read; tokens behind it change nothing.
        tokens = torch.tensor([known + drafts])
        seen = heads.target.see(Batch(tokens.numpy(), torch.zeros_like(tokens).bool().numpy()))
        if method == "eagle3":
            passes = heads.eagle3.unroll(seen.embeds, seen.aux, index + 1)
        else:
            lm_head = heads.target.lm_head
            passes = heads.eagle.unroll(seen.embeds, seen.features, lm_head, index + 1)
        best = int(passes[index][0][0, len(known) - 1 + index].argmax())
        drafts.append(_target_id(heads.eagle3, best) if method == "eagle3" else best)
    return drafts


def _target_id(head: Eagle3, token_id: int) -> int:
    return token_id + int(head.d2t[token_id])


@torch.no_grad()
def parallel(networks: Networks, known: list[int]) -> list[int]:
    """What the Medusa heads draft greedily."""
    heads, medusa = networks
    tokens = torch.tensor([known])
    seen = heads.target.see(Batch(tokens.numpy(), torch.zeros_like(tokens).bool().numpy()))
    feature = seen.features[0, len(known) - 2]
    drafts = []
    for head in range(3):
        block = F.linear(
            feature, medusa[f"{head}.0.linear.weight"], medusa[f"{head}.0.linear.bias"]
        )
        drafts.append(int((medusa[f"{head}.1.weight"] @ (feature + F.silu(block))).argmax()))
    return drafts
