"""Whether a model can be served, and what it takes, from its config.json alone: ``python -m
engine.runner.startup.estimate MODEL``, which ``sluice models check`` calls.

No weight is read, and no GPU needed. Weights and caches are counted to the byte; what a step needs
besides is measured when an engine starts, and only estimated here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch

from engine import hub
from engine.architectures import ENCODERS, FALLBACK_TESTED, NATIVE, QuantizationMethod
from engine.cache.groups import max_request_tokens, peak_blocks
from engine.config import EngineConfig
from engine.errors import ConfigError, ModelLoadError
from engine.model_check import REQUEST_TOKENS, Check, Need
from engine.models.base import ModelConfig, ModelFacts
from engine.models.config import read_architecture
from engine.models.registry import create_model
from engine.models.sharding import obstacle, of_rank
from engine.parallel.group import Group
from engine.quant.base import quantize
from engine.quant.config import read_quantization
from engine.runner.memory import block_bytes, choose_groups
from engine.runner.startup.model import read_facts
from engine.runner.startup.vision import GPU_CACHE_BYTES, encoder_bytes, refusal
from engine.runner.states import num_default_rows, num_default_snapshots, slot_bytes

SIZES = (1, 2, 4, 8)
"""Values of ``tensor_parallel_size``."""
_NOWHERE = torch.device("meta")
_GPU = torch.device("cuda")
_WIDTHS = 12
"""What a step is taken to keep of each token at once, in hidden states."""


def check(model: str, revision: str | None, gpu_bytes: int) -> Check:
    """Raises ``ModelLoadError`` if there is no config.json to read."""
    folder = hub.fetch_descriptions(model, revision)
    architecture = read_architecture(folder)
    if architecture in ENCODERS:
        return Check(architecture, "native", "embeddings and scores")
    family = NATIVE.get(architecture)
    found = Check(architecture, "native" if family else "transformers")
    found.family = "" if family is None else family.name
    config = EngineConfig(model=str(folder)).for_device("cuda", gpu_bytes)
    try:
        facts = read_facts(config)
        quantization = read_quantization(folder, None)
    except (ConfigError, ModelLoadError) as error:
        found.runs_on, found.missing = "", [str(error)]
        return found
    if facts.recurrent is not None:
        most = num_default_rows(
            config.num_seqs, slot_bytes(facts.recurrent, facts.dtype), gpu_bytes
        )
        config = msgspec.structs.replace(config, max_num_seqs=most)
    found.max_num_seqs = config.num_seqs
    found.max_len, found.missing = facts.max_position_embeddings, list(_missing(folder))
    if facts.vision is not None and (reason := refusal(facts.vision, config)):
        found.missing.append(f"pictures: {reason}")
    if not isinstance(facts, ModelConfig):
        where = "tested" if architecture in FALLBACK_TESTED else "tried while it loads"
        found.missing.append(f"no native implementation: through transformers, {where}")
        return found
    methods: list[QuantizationMethod | None] = [None] if quantization else [None, "fp8"]
    for method in methods:
        for size in SIZES:
            if obstacle(facts, size) is None:
                found.needs.append(_need(config, facts, method, size, gpu_bytes))
    if len(found.needs) < len(methods) * len(SIZES):
        why = {size: obstacle(facts, size) for size in SIZES}
        found.missing += [
            f"tensor_parallel_size {size} does not divide {what}"
            for size, what in why.items()
            if what is not None
        ]
    return found


def _missing(folder: Path) -> Iterator[str]:
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        yield "there is no tokenizer.json"
    has_template = (folder / "chat_template.jinja").is_file()
    beside = folder / "tokenizer_config.json"
    if beside.is_file():
        has_template |= b'"chat_template"' in beside.read_bytes()
    if not has_template:
        yield "there is no chat template: completions only, unless models.chat_template names one"


def _need(
    config: EngineConfig,
    facts: ModelConfig,
    method: QuantizationMethod | None,
    size: int,
    gpu_bytes: int,
) -> Need:
    of_one = of_rank(facts, Group(0, size))
    model = create_model(of_one, max_model_len=1, dtype=facts.dtype, device=_NOWHERE)
    quantization = read_quantization(config.model_dir, method)
    if quantization is not None:
        quantize(model, quantization)
    weights = sum(weight.data.nbytes for _, weight in model.named_weights())
    of_encoder = encoder_bytes(config, facts.vision, facts.dtype)
    weights += of_encoder
    recurrent = of_one.recurrent
    state = 0 if recurrent is None else slot_bytes(recurrent, facts.dtype)
    groups = choose_groups(config, of_one, facts.max_position_embeddings, _GPU)
    block = block_bytes(of_one, config.block_size, facts.dtype, groups)
    in_flight = 2 * config.chunk_tokens
    room = int(gpu_bytes * config.gpu_memory_utilization) - weights - _step_bytes(config, facts)
    if of_encoder:
        room -= GPU_CACHE_BYTES
    if recurrent is not None:
        num_snapshots = num_default_snapshots(config.num_seqs, state, _GPU)
        room -= (config.num_seqs + 1 + num_snapshots) * state
    blocks = peak_blocks(groups.kinds, REQUEST_TOKENS, config.block_size, in_flight)
    request = blocks * block
    longest, fits = facts.max_position_embeddings, room // block
    if fits < 1:
        longest = 0
    elif (most := max_request_tokens(groups.kinds, fits, config.block_size, in_flight)) is not None:
        longest = min(longest, most)
    num = min(config.num_seqs, room // request) if longest >= REQUEST_TOKENS else 0
    return Need(method or "", size, weights, state, request, longest, num)


def _step_bytes(config: EngineConfig, facts: ModelFacts) -> int:
    """An estimate of what the largest step takes, twice, as graphs have memory of their own."""
    assert isinstance(facts, ModelConfig)
    of_token = _WIDTHS * facts.hidden_size * facts.dtype.itemsize
    logits = config.num_seqs * facts.vocab_size * (facts.dtype.itemsize + 4)
    return 2 * (config.step_tokens * of_token + logits)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--revision")
    parser.add_argument("--gpu-bytes", type=int, required=True)
    options = parser.parse_args()
    try:
        found = check(options.model, options.revision, options.gpu_bytes)
    except ModelLoadError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
