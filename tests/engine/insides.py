"""What is behind an LLM, by its own types: the contract between the parts names less of them."""

from __future__ import annotations

from engine.core import EngineCore
from engine.llm import LLM
from engine.runner.runner import TorchRunner


def core_of(llm: LLM) -> EngineCore:
    core = llm._core
    assert isinstance(core, EngineCore)
    return core


def runner_of(llm: LLM) -> TorchRunner:
    runner = core_of(llm)._runner
    assert isinstance(runner, TorchRunner)
    return runner
