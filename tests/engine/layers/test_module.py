from __future__ import annotations

import torch

from engine.layers.module import Module
from engine.layers.parameter import Weight


class Leaf(Module):
    def __init__(self) -> None:
        self.weight = Weight(torch.zeros(2))
        self.bias: Weight | None = None
        self.packed = 0

    def pack(self) -> None:
        self.packed += 1


class Tree(Module):
    def __init__(self) -> None:
        self.layers = [Leaf(), Leaf()]
        self.head = Leaf()
        self.scale = Weight(torch.zeros(1))
        self._shared = self.head
        self.size = 3


def test_weights_are_named_by_their_path() -> None:
    tree = Tree()
    weights = dict(tree.named_weights())
    assert list(weights) == ["layers.0.weight", "layers.1.weight", "head.weight", "scale"]
    assert weights["head.weight"] is tree.head.weight


def test_packing_reaches_every_module_once() -> None:
    tree = Tree()
    tree.pack()
    assert [leaf.packed for leaf in (*tree.layers, tree.head)] == [1, 1, 1]
