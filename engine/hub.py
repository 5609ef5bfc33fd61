"""Models by name: a folder, or the id of a repository on the Hugging Face hub.

What has been fetched stays in huggingface_hub's cache; while it is complete there, the hub is never
asked. ``HF_TOKEN``, ``HF_HUB_OFFLINE``, ``HF_HOME`` and ``HF_ENDPOINT`` mean what they mean to that
library.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec

from engine.errors import ModelLoadError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.py"]
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def is_hub_id(model: str) -> bool:
    """Whether ``model``, which is not a folder, has the form ``owner/name``."""
    return _HUB_ID.fullmatch(model) is not None


def weight_files(model_dir: Path) -> list[Path]:
    """The safetensors files of a checkpoint, all of them present. Raises ``ModelLoadError``."""
    index = model_dir / _INDEX
    names = [_SINGLE]
    if index.exists():
        try:
            names = sorted(
                set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values())
            )
        except (OSError, msgspec.DecodeError) as error:
            raise ModelLoadError(f"{index}: {error}") from error
    for name in names:
        if not (model_dir / name).is_file():
            raise ModelLoadError(
                f"{model_dir} has no {name}: weights must be safetensors files, complete"
            )
    return [model_dir / name for name in names]


def fetch_descriptions(model: str, revision: str | None) -> Path:
    """The model's folder with all that describes it, and without weights where they are not there
    yet. Raises ``ModelLoadError`` naming the cause."""
    if Path(model).is_dir() or not is_hub_id(model):
        return fetch(model, revision)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    patterns = ["*.json", "*.jinja"]
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelLoadError(f"{model} cannot be downloaded: {reason}") from error


@cache
def fetch(model: str, revision: str | None, also: tuple[str, ...] = ()) -> Path:
    """The model's folder: itself, or in the cache, downloaded if it is not there yet.

    revision: a branch, tag or commit of a hub repository; also: patterns of more files to fetch.
    ``ModelLoadError`` names the cause.
    """
    patterns = [*_FILES, *also]
    folder = Path(model)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelLoadError(f"{folder} is not the folder of a model: it has no config.json")
        if revision is not None:
            raise ModelLoadError(
                f"revision {revision!r} is for models of the hub, and {folder} is a folder: "
                "leave it out"
            )
        return folder
    if not is_hub_id(model):
        raise ModelLoadError(
            f"there is no folder {model!r}: give a model's folder or its hub id (owner/name)"
        )
    # Imported here because a local folder does not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(
            snapshot_download(
                model, revision=revision, allow_patterns=patterns, local_files_only=True
            )
        )
        weight_files(cached)
        return cached
    except (LocalEntryNotFoundError, ModelLoadError):
        pass
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        at = "" if revision is None else f" at revision {revision!r}"
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelLoadError(
            f"there is no folder {model!r}, and as a hub model{at} it cannot be downloaded: "
            + reason
        ) from error
