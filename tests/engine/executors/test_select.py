"""Which executors a model gets for which steps."""

from __future__ import annotations

import torch

from engine.executors.layers import LayerByLayer
from engine.executors.select import executors_of
from engine.models.granite import GraniteDecoderLayer
from tests.engine.executors.example import model


def test_a_model_that_nothing_fuses_runs_layer_by_layer() -> None:
    for made in (model(dtype=torch.bfloat16), model(GraniteDecoderLayer)):
        made.pack()
        executors = executors_of(made)
        assert type(executors.recorded) is LayerByLayer
        assert executors.eager is executors.recorded
        assert executors.fused is None
        assert executors.resting is None
