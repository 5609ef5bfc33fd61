"""The torch half of the engine: executes plans. Start with ``load_runner``."""

from engine.runner.runner import TorchRunner
from engine.runner.startup.load import load_pooling_runner, load_runner

__all__ = ["TorchRunner", "load_pooling_runner", "load_runner"]
