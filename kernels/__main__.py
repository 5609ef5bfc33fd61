"""``python -m kernels build [ARCH ...]``: build the CUDA kernels ahead of time."""

from __future__ import annotations

import sys

from kernels.build import BuildError, library

USAGE = "usage: python -m kernels build [ARCH ...]   (ARCH such as 80 or 90a; default: this GPU's)"


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] != "build":
        print(USAGE, file=sys.stderr)
        return 2
    try:
        archs: list[str | None] = [*arguments[1:]] or [None]
        for arch in archs:
            print(library(arch))
    except BuildError as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
