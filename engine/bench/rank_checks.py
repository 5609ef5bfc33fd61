"""What several ranks must do on the devices at hand, with random checkpoints; each check runs in a
process of its own, which ``engine.bench.ranks`` starts.

``agree NAME``: the tokens of several ranks are those of one, as far as sums in another order allow.
``lose PHASE``: a rank that is killed or stopped takes the whole engine along.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine.client.client import EngineClient
from engine.config import EngineConfig
from engine.errors import EngineDead, EngineError
from engine.llm import LLM, LoRARequest
from engine.messages import GenerateRequest, LoadProgress
from engine.models.registry import create_model, read_config
from engine.outputs import GenerationOutput
from engine.sampling_params import SamplingParams
from engine.weights.names import targets

_COMMON = {
    "torch_dtype": "bfloat16",
    "vocab_size": 4000,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
}
_EXPERTS = {"moe_intermediate_size": 256, "num_experts_per_tok": 2}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {**_COMMON, "architectures": ["LlamaForCausalLM"]},
    "Llama with adapters": {**_COMMON, "architectures": ["LlamaForCausalLM"]},
    "mixture of experts": {
        **_COMMON,
        **_EXPERTS,
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 8,
        "norm_topk_prob": True,
    },
    "latent attention": {
        **_COMMON,
        **_EXPERTS,
        "architectures": ["DeepseekV2ForCausalLM"],
        "num_key_value_heads": 8,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    },
}
TOLERANCE = {"float32": (1e-4, 2e-3), "bfloat16": (0.1, 1.0)}
"""How far log-probabilities of prompts may be apart on average, and those of two tokens of which
either was generated: in 16 bits a near-tie may send a token to another expert."""
STARTING = ("loading", "capturing", "warming up")
"""How what an engine says of its progress begins."""
_STAGES = " in stages"
PHASES = (
    *STARTING,
    *("idle", "decoding", "stopped while decoding", "rank 0"),
    *(f"decoding{_STAGES}", f"rank 0{_STAGES}"),
)
"""Layers are divided, but where it says stages."""
_ADAPTED = ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj")
_ENDS_WITHIN_S = 5.0


def write_checkpoint(folder: Path, config: dict[str, Any]) -> None:
    """Random weights, wide enough that layers matter."""
    (folder / "config.json").write_text(json.dumps(config))
    facts, generator = read_config(folder), torch.Generator().manual_seed(0)
    model = create_model(facts, max_model_len=64, dtype=torch.float32, device=torch.device("meta"))
    tensors = {}
    for name, target in targets(model).items():
        shape = target.weight.shapes(target.part)[0]
        noise = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.1 * noise if len(shape) == 1 else noise / math.sqrt(shape[-1])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_adapter(folder: Path, config: dict[str, Any], seed: int) -> None:
    """In PEFT's layout."""
    folder.mkdir()
    fields = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": list(_ADAPTED)}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    generator = torch.Generator().manual_seed(seed)
    base = folder.parent
    model = create_model(
        read_config(base), max_model_len=64, dtype=torch.float32, device=torch.device("meta")
    )
    tensors = {}
    for name, target in targets(model).items():
        module = name.removesuffix(".weight")
        if module.split(".")[-1] not in _ADAPTED:
            continue
        rows, columns = target.weight.shapes(target.part)[0]
        for side, shape in (("A", (8, columns)), ("B", (rows, 8))):
            key = f"base_model.model.{module}.lora_{side}.weight"
            tensors[key] = torch.randn(shape, generator=generator) * 0.1
    save_file(tensors, folder / "adapter_model.safetensors")


def sizes_of(name: str) -> dict[str, dict[str, Any]]:
    """What is compared with one rank, as far as the devices suffice."""
    found: dict[str, dict[str, Any]] = {
        "TP 2": {"tensor_parallel_size": 2},
        "PP 2": {"pipeline_parallel_size": 2},
    }
    if name in ("mixture of experts", "latent attention"):
        found["EP 2"] = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    if not torch.cuda.is_available() or torch.cuda.device_count() >= 4:
        found["TP 2 x PP 2"] = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    return found


def agree(name: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="sluice-ranks-") as directory:
        folder = Path(directory)
        write_checkpoint(folder, MODELS[name])
        adapters = []
        if name == "Llama with adapters":
            for seed in range(2):
                write_adapter(folder / str(seed), MODELS[name], seed)
                adapters.append(LoRARequest(str(seed), str(folder / str(seed))))
        found = [_agrees(name, folder, adapters, dtype) for dtype in TOLERANCE]
        return all(found)


def _agrees(name: str, folder: Path, adapters: Sequence[LoRARequest], dtype: str) -> bool:
    want = _generate(folder, adapters, dtype, {})
    all_right = True
    for words, sizes in sizes_of(name).items():
        try:
            problem = compare(want, _generate(folder, adapters, dtype, sizes), TOLERANCE[dtype])
        except EngineError as error:
            problem = str(error)
        all_right &= not problem.startswith("WRONG")
        print(f"{name}, {words}, {dtype}: {problem}", flush=True)
    return all_right


def _generate(
    folder: Path, adapters: Sequence[LoRARequest], dtype: str, sizes: dict[str, Any]
) -> list[GenerationOutput]:
    """Greedy, prompts of several lengths, two of them with a common start."""
    rng = random.Random(0)
    start = rng.choices(range(4000), k=90)
    prompts = [start + rng.choices(range(4000), k=k) for k in (3, 70)]
    prompts += [rng.choices(range(4000), k=k) for k in (1, 5, 33, 200)]
    llm = LLM(
        folder,
        skip_tokenizer_init=True,
        dtype=dtype,
        kv_cache_memory_bytes=64 << 20,
        max_num_seqs=8,
        max_model_len=512,
        max_num_batched_tokens=256,
        enable_lora=bool(adapters),
        max_loras=2,
        num_threads=1,
        **sizes,
    )
    params = SamplingParams(
        temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=5, prompt_logprobs=0
    )
    asked = [None, *adapters] * 2 if adapters else None
    return llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts], params, lora_request=asked
    )


def compare(
    want: Sequence[GenerationOutput],
    got: Sequence[GenerationOutput],
    tolerance: tuple[float, float],
) -> str:
    """In words; they begin with WRONG if more than near-ties differs."""
    num_equal, widest, apart = 0, 0.0, [0.0]
    for ours, theirs in zip(got, want, strict=True):
        of_prompts = theirs.prompt_logprobs or (), ours.prompt_logprobs or ()
        for token, a, b in zip(theirs.prompt_token_ids, *of_prompts, strict=True):
            if a and b:
                apart.append(abs(a[token].logprob - b[token].logprob))
        found, expected = ours.outputs[0], theirs.outputs[0]
        pairs = zip(found.token_ids, expected.token_ids, expected.logprobs or (), strict=True)
        differing = next(((a, b, known) for a, b, known in pairs if a != b), None)
        if differing is None:
            num_equal += 1
            continue
        mine, other, known = differing
        near = mine in known and known[other].logprob - known[mine].logprob
        widest = max(widest, math.inf if near is False else near)
    mean = sum(apart) / len(apart)
    words = f"{num_equal} of {len(want)} equal, log-probabilities of prompts {mean:.0e} apart"
    words += f" on average and {max(apart):.0e} at most"
    if num_equal < len(want):
        words += f", others part at a near-tie of {widest:.0e}"
    return words if mean <= tolerance[0] and widest <= tolerance[1] else f"WRONG: {words}"


# ---- ranks that are lost -----------------------------------------------------------------------


def lose(phase: str) -> bool:
    """Kill or stop a rank of two in this phase of an engine, and look for what is left."""
    with tempfile.TemporaryDirectory(prefix="sluice-ranks-") as directory:
        write_checkpoint(Path(directory), MODELS["Llama"])
        found = asyncio.run(_lose(Path(directory), phase))
    print(f"{phase}: {found}", flush=True)
    return not found.startswith("WRONG")


async def _lose(folder: Path, phase: str) -> str:
    config = EngineConfig(
        model=str(folder),
        skip_tokenizer_init=True,
        tensor_parallel_size=1 if phase.endswith(_STAGES) else 2,
        pipeline_parallel_size=2 if phase.endswith(_STAGES) else 1,
        kv_cache_memory_bytes=64 << 20,
        max_num_seqs=8,
        num_threads=1,
    )
    lost: list[float] = []
    of_engine: set[int] = set()

    def strike() -> None:
        ranks = _descendants(os.getpid())
        of_engine.update(ranks)
        wanted = "engine.process" if phase.startswith("rank 0") else "startup.rank"
        victim = next(pid for pid in ranks if wanted in _command(pid))
        is_stop = phase.startswith("stopped")
        os.kill(victim, signal.SIGSTOP if is_stop else signal.SIGKILL)
        lost.append(time.monotonic())

    def on_progress(progress: LoadProgress) -> None:
        if progress.message.lower().startswith(phase) and not lost:
            strike()

    client = EngineClient(config, on_progress=on_progress)
    try:
        await client.start()
        if not lost and phase in STARTING:
            return "an engine does not say that here"
        if not lost:
            stream = client.submit(
                GenerateRequest(
                    request_id="a",
                    prompt_token_ids=[5, 6, 7],
                    params=SamplingParams(max_tokens=1500, ignore_eos=True),
                )
            )
            if phase == "idle":
                await client.abort("a")
                await asyncio.sleep(0.2)
                strike()
            else:
                await anext(stream)
                strike()
                async for _ in stream:
                    pass
        while any(_lives(pid) for pid in of_engine):
            await asyncio.sleep(0.01)
            if time.monotonic() - lost[0] > _ENDS_WITHIN_S:
                return f"WRONG: an engine's process lives after {_ENDS_WITHIN_S:.0f} s"
    except EngineDead:
        pass
    finally:
        await client.close()
    taken = time.monotonic() - lost[0] if lost else 0.0
    await asyncio.sleep(0.1)
    if left := [_command(pid) for pid in _descendants(os.getpid()) if _lives(pid)]:
        return f"WRONG: left behind: {left}"
    return f"the engine ended within {taken:.1f} s, and no process is left"


def _descendants(pid: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents[int(entry.name)] = int(fields[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _lives(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def _stat(pid: int) -> list[str]:
    """What /proc says of a process, from its state on; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


if __name__ == "__main__":
    check, what = sys.argv[1:]
    sys.exit(0 if {"agree": agree, "lose": lose}[check](what) else 1)
