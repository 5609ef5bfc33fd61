"""The tree that models and layers form.

Not ``torch.nn.Module``: a model that is only run needs nothing of it but the tree, and would pay
two microseconds per call for the rest, which is a tenth of a step of a small model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from engine.layers.parameter import Weight


class Numbered(list[Any]):
    """Modules whose names count from ``first``: the layers of one stage of several."""

    def __init__(self, first: int, modules: Iterable[Any]) -> None:
        super().__init__(modules)
        self.first = first


class Module:
    """Weights, modules and lists of modules in public attributes make up the tree."""

    names: ClassVar[Mapping[str, str]] = {}
    """What the checkpoint calls the attributes that have another name there."""

    def children(self) -> Iterator[tuple[str, Module | Weight]]:
        for name, value in vars(self).items():
            if name.startswith("_"):
                continue
            name = self.names.get(name, name)
            if isinstance(value, Module | Weight):
                yield name, value
            elif isinstance(value, list):
                first = value.first if isinstance(value, Numbered) else 0
                yield from ((f"{name}.{i}", item) for i, item in enumerate(value, first))

    def named_weights(self, prefix: str = "") -> Iterator[tuple[str, Weight]]:
        """Every weight with its path, such as ``layers.0.mlp.down_proj.weight``."""
        for name, child in self.children():
            if isinstance(child, Weight):
                yield prefix + name, child
            else:
                yield from child.named_weights(f"{prefix}{name}.")

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        yield self
        for _, child in self.children():
            if isinstance(child, Module):
                yield from child.modules()

    def pack(self) -> None:
        """Call once the weights are loaded: puts them into their fastest form."""
        for _, child in self.children():
            if isinstance(child, Module):
                child.pack()
