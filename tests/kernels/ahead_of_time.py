"""Compiles the launches of Triton kernels for GPUs that are not here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}


class Recorded:
    """Stands for a kernel: keeps what each launch is given, and launches nothing."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(size >= 1 for size in grid)
        return lambda *arguments, **constants: self.launches.append((arguments, constants))

    def compile(self, capability: int) -> list[Any]:
        """What Triton makes of each launch for GPUs such as those of 8.0, which is 80."""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        made = []
        names = self.kernel.arg_names
        for arguments, constants in self.launches:
            given = dict(zip(names, arguments, strict=False))
            options = {name: value for name, value in constants.items() if name not in names}
            fixed = {name: value for name, value in constants.items() if name in names}
            source = ASTSource(
                fn=self.kernel,
                signature={name: _type(name, given) for name in names},
                constexprs={(names.index(name),): value for name, value in fixed.items()},
                attrs={
                    (names.index(name),): [["tt.divisibility", 16]]
                    for name, value in given.items()
                    if self._is_divisible(name, value)
                },
            )
            target = GPUTarget("cuda", capability, 32)
            made.append(triton.compile(source, target=target, options=options))
        return made

    def _is_divisible(self, name: str, value: torch.Tensor | float | None) -> bool:
        """Tensors are; of integers Triton looks."""
        if isinstance(value, torch.Tensor):
            return True
        return (
            isinstance(value, int) and value % 16 == 0 and name not in self.kernel.do_not_specialize
        )


def _type(name: str, given: dict[str, torch.Tensor | float | None]) -> str:
    value = given.get(name)
    if value is None:
        return "constexpr"
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    return "i32" if isinstance(value, int) else "fp32"
