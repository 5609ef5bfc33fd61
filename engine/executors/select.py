"""Which executors a model has."""

from __future__ import annotations

import torch

from engine.executors.base import Executor, Executors
from engine.executors.cuda_layer import CudaLayers
from engine.executors.fused_cpu import FusedCpu
from engine.executors.layers import LayerByLayer
from engine.executors.persistent import PersistentLayers
from engine.models.base import Model


@torch.inference_mode()
def executors_of(model: Model) -> Executors:
    """model: with its weights, packed, and its kernels registered."""
    recorded = plain_executor(model)
    return Executors(
        eager=CudaLayers.of(model) or recorded,
        recorded=recorded,
        fused=PersistentLayers.of(model),
    )


@torch.inference_mode()
def plain_executor(model: Model) -> Executor:
    """The one for recorded steps, and for all steps of a model that drafts."""
    return FusedCpu.of(model) or LayerByLayer(model)
