"""Loading safetensors checkpoints, single or sharded, one tensor at a time.

The headers of all files are compared with the model first: a checkpoint that does not fit is
refused before a weight is read. Files are mapped, so that a tensor needs no memory of its own on
its way to the device, and one file at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelLoadError
from engine.hub import weight_files
from engine.layers.module import Module
from engine.messages import LoadProgress
from engine.weights.names import Target, is_ignored, targets
from engine.weights.shards import Shards

OnProgress = Callable[[LoadProgress], None]

_PROGRESS_STEP = 0.01
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_DTYPES = {"F8_E4M3": torch.float8_e4m3fn, "I32": torch.int32, "U8": torch.uint8}
"""Dtypes of quantized weights, by safetensors' names."""
_NOT_TOGETHER = "config.json and the weights do not belong together"


def load_weights(
    model: Module,
    model_dir: Path,
    *,
    tied: bool,
    place_of: Callable[[str], str | None] = lambda name: name,
    on_progress: OnProgress | None = None,
    shards: Shards | None = None,
) -> None:
    """Fill every parameter of ``model``. place_of: maps a checkpoint's tensor to its parameter,
    None if it is not needed. shards: which part of each tensor ``model`` holds; None: all.

    ``ModelLoadError`` names a tensor that is missing, superfluous or misshapen, and a file that is
    missing or truncated.
    """
    wanted = targets(model)
    files = weight_files(model_dir)

    def place(name: str) -> str | None:
        return None if is_ignored(name, tied=tied) else place_of(name)

    _check(files, wanted if shards is None else shards.whole, place)
    of_rank = {} if shards is None else shards.of_rank
    total = sum(path.stat().st_size for path in files)
    read, next_report = 0, 0.0
    for path in files:
        before = read
        for name, file in _tensors(path):
            if on_progress is not None and read / total >= next_report:
                on_progress(LoadProgress(f"Loading {path.name}", read / total))
                next_report = read / total + _PROGRESS_STEP
            parameter = place(name) or ""
            target = wanted.get(parameter)
            if target is not None:
                shard = of_rank.get(parameter)
                if shard is None:
                    tensor = file.get_tensor(name)
                else:
                    tensor = shard.read(file.get_slice(name))
                target.load(tensor)
                read += tensor.nbytes
        read = before + path.stat().st_size


def check_files(model_dir: Path) -> None:
    """Raises ``ModelLoadError``, which names a file that is missing or truncated."""
    for path in weight_files(model_dir):
        with _opened(path):
            pass


def _check(
    files: list[Path], wanted: Mapping[str, Target], place: Callable[[str], str | None]
) -> None:
    missing = set(wanted)
    for path in files:
        with _opened(path) as file:
            for name in file.offset_keys():
                parameter = place(name)
                if parameter is None:
                    continue
                if parameter not in wanted:
                    raise ModelLoadError(
                        f"{path.name} holds tensor {name!r}, which the model has no place for: "
                        + _NOT_TOGETHER
                    )
                missing.discard(parameter)
                _check_form(name, wanted[parameter], file.get_slice(name))
    if missing:
        raise ModelLoadError(
            f"{files[0].parent} lacks tensor {min(missing)!r}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + ": download the checkpoint again"
        )


def _check_form(name: str, target: Target, stored: Any) -> None:
    shape, shapes = list(stored.get_shape()), target.weight.shapes(target.part)
    if shape not in shapes:
        raise ModelLoadError(
            f"tensor {name!r} has shape {shape}, the config asks for {shapes[0]}: {_NOT_TOGETHER}"
        )
    dtype, wanted = stored.get_dtype(), target.weight.stored_dtype
    fits = dtype in _FLOATS if wanted is None else _DTYPES.get(dtype) == wanted
    if not fits:
        asked = "a float dtype" if wanted is None else str(wanted).removeprefix("torch.")
        raise ModelLoadError(
            f"tensor {name!r} has dtype {dtype}, the config asks for {asked}: {_NOT_TOGETHER}"
        )


def _tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """The names in a file, with the opened file."""
    with _opened(path) as file:
        for name in file.offset_keys():  # as they lie on the disk
            yield name, file


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
    except SafetensorError as error:
        raise ModelLoadError(
            f"{path} cannot be read: it is cut short or damaged, download it again ({error})"
        ) from error
