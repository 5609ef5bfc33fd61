"""``sluice models``: lists the architectures that can be served; ``check`` says what one takes."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import msgspec
import typer

from engine.architectures import ENCODERS, FALLBACK_QUANTIZATIONS, FALLBACK_TESTED, NATIVE
from engine.model_check import Check
from gateway.commands.tables import Table

OTHERS = "Other decoders run on transformers, too, where a trial while loading finds them exact."
_GIB = 1 << 30

app = typer.Typer(invoke_without_command=True)


@app.callback()
def models(context: typer.Context) -> None:
    """List the architectures that can be served, or check a model.

    Any other causal language model runs, too, if its attention goes through transformers'
    attention interface; one that cannot is refused with the reason when it is loaded.
    """
    if context.invoked_subcommand is not None:
        return
    table = Table("architecture", "family", "runs on", "quantization", caption=OTHERS)
    for architecture, family in NATIVE.items():
        table.add_row(architecture, family.name, "native", ", ".join(family.quantizations))
    for architecture in ENCODERS:
        table.add_row(architecture, "embeddings and scores", "native", "")
    for architecture in FALLBACK_TESTED:
        table.add_row(architecture, "", "transformers", ", ".join(FALLBACK_QUANTIZATIONS))
    table.show()


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="A folder, or the id of a model of the hub.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the hub.")] = None,
    gpu_memory: Annotated[float, typer.Option(min=1, help="GiB of each GPU.")] = 80.0,
) -> None:
    """Say what a model takes, from its config.json alone: no weight is read, no GPU needed.

    Weights and caches are exact; what a step takes besides is estimated.
    """
    # A process of its own: the gateway and its commands never import torch.
    program = [sys.executable, "-m", "engine.runner.startup.estimate", model]
    program += ["--gpu-bytes", str(int(gpu_memory * _GIB))]
    program += [] if revision is None else ["--revision", revision]
    ran = subprocess.run(program, capture_output=True, check=False)
    if ran.returncode:
        from gateway.errors import SetupError  # It loads the server's parts.

        lines = ran.stderr.decode(errors="replace").strip().splitlines()
        raise SetupError(lines[-1] if lines else f"{model} cannot be read")
    found = msgspec.json.decode(ran.stdout, type=Check)
    runs_on = found.runs_on or "cannot be served"
    sys.stdout.write(": ".join(filter(None, [found.architecture, found.family, runs_on])) + "\n")
    for line in found.missing:
        sys.stdout.write(f"- {line}\n")
    if found.needs:
        _show(found, gpu_memory)
    if not found.runs_on:
        raise typer.Exit(1)


def _show(found: Check, gpu_memory: float) -> None:
    table = Table(
        "weights",
        "GPUs",
        "weights, GiB",
        "state, MiB",
        "request of 4k, MiB",
        "longest",
        "requests of 4k",
        caption=f"Of each GPU with {gpu_memory:g} GiB, beside states for {found.max_num_seqs} "
        f"requests, if it keeps states. The model's own length is {found.max_len}.",
    )
    for need in found.needs:
        table.add_row(
            need.quantization or "as stored",
            str(need.size),
            f"{need.weight_bytes / _GIB:.2f}",
            f"{need.state_bytes / (1 << 20):.1f}",
            f"{need.request_bytes / (1 << 20):.1f}",
            str(need.longest) if need.longest else "does not fit",
            str(need.num_requests),
        )
    table.show()
