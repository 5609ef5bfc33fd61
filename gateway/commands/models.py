"""``sluice models``: lists the architectures that can be served."""

from __future__ import annotations

from rich.table import Table

from engine.architectures import ENCODERS, FALLBACK_QUANTIZATIONS, FALLBACK_TESTED, NATIVE
from gateway.commands.tables import show

OTHERS = "Other decoders run on transformers, too, where a trial while loading finds them exact."


def models() -> None:
    """List the architectures that can be served.

    Any other causal language model runs, too, if its attention goes through transformers'
    attention interface; one that cannot is refused with the reason when it is loaded.
    """
    table = Table("architecture", "family", "runs on", "quantization", caption=OTHERS)
    for architecture, family in NATIVE.items():
        table.add_row(architecture, family.name, "native", ", ".join(family.quantizations))
    for architecture in ENCODERS:
        table.add_row(architecture, "embeddings and scores", "native", "")
    for architecture in FALLBACK_TESTED:
        table.add_row(architecture, "", "transformers", ", ".join(FALLBACK_QUANTIZATIONS))
    show(table)
