"""The torch half of the engine: executes plans. Start with ``load_runner``."""

from engine.runner.load import load_runner
from engine.runner.runner import TorchRunner

__all__ = ["TorchRunner", "load_runner"]
