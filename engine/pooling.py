"""What a checkpoint makes of a text that it does not continue: a vector, or a score of two texts.

The files are those of sentence-transformers: ``modules.json``, ``1_Pooling/config.json``,
``sentence_bert_config.json`` and ``config_sentence_transformers.json``. Never imports torch: the
gateway reads them, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from engine.architectures import ENCODERS, decoder_of
from engine.errors import InvalidRequest, ModelLoadError
from engine.text.tokenizer import read_json

RunnerName = Literal["auto", "generate", "pooling"]
Task = Literal["embed", "score"]
Method = Literal["cls", "mean", "max", "lasttoken"]
Vector = npt.NDArray[np.float32]

_METHODS: tuple[Method, ...] = ("cls", "mean", "max", "lasttoken")
_MODULES = ("Transformer", "Pooling", "Normalize")


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a vector or a score."""

    second_text: int | None = None
    """Of two texts in one prompt: the index of the first token of the second one, from which some
    encoders tell the two apart. None: one text."""


class PoolingModel(msgspec.Struct, frozen=True, kw_only=True):
    """How a model's hidden states become one result for a prompt."""

    task: Task
    """``score``: a cross-encoder, whose result is one number for a pair of texts."""
    architecture: str
    method: Method
    """Which hidden states count: the first, the last, or the mean or maximum of all of them."""
    normalize: bool = False
    """The vector has length 1."""
    activation: Literal["sigmoid", "identity"] = "identity"
    """What becomes of the number that a cross-encoder computes."""
    size: int
    """Numbers in a result."""
    max_len: int | None = None
    """Most tokens, if the checkpoint sets fewer than its architecture could take."""
    dimensions: tuple[int, ...] | None = None
    """Sizes that a vector may be cut to; empty: any size. None: it was not trained for that."""
    prompts: Mapping[str, str] = {}
    """What goes before a text, by the purpose: "query", "document", ..."""
    default_prompt: str = ""

    @property
    def is_encoder(self) -> bool:
        """Each token sees those after it, too, so a prompt is computed in one step."""
        return self.architecture in ENCODERS

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raises ``InvalidRequest`` if vectors cannot have this size."""
        if dimensions is None or dimensions == self.size:
            return
        if self.dimensions is None:
            raise InvalidRequest(
                f"dimensions is {dimensions}, but this model's vectors have {self.size} numbers, "
                "and it was not trained for fewer (no matryoshka_dimensions in its config.json)"
            )
        if self.dimensions and dimensions not in self.dimensions:
            sizes = ", ".join(map(str, self.dimensions))
            raise InvalidRequest(f"dimensions must be one of {sizes}, got {dimensions}")
        if not 1 <= dimensions <= self.size:
            raise InvalidRequest(f"dimensions must be in [1, {self.size}], got {dimensions}")

    def vector(self, pooled: bytes, dimensions: int | None = None) -> Vector:
        """The vector in a ``RequestOutput``, cut to ``dimensions``: [size] float32."""
        whole: Vector = np.frombuffer(pooled, "<f4")
        if dimensions is None or dimensions == len(whole):
            return whole
        cut = whole[:dimensions]
        return unit(cut) if self.normalize else cut


def unit(vector: Vector) -> Vector:
    """The vector with length 1; one of zeros stays as it is."""
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length else vector


def cosine(one: Vector, other: Vector) -> float:
    """How alike two vectors are, in [-1, 1]."""
    return max(-1.0, min(1.0, float(unit(one) @ unit(other))))  # which rounding may exceed


@cache
def read(model_dir: Path, runner: RunnerName) -> PoolingModel | None:
    """What the checkpoint pools; None if it generates. runner: ``EngineConfig.runner``.

    Raises ``ModelLoadError``, which names the file and what is not supported.
    """
    config = read_json(model_dir / "config.json")
    architecture = (config.get("architectures") or [""])[0]
    modules = _modules(model_dir)
    decoder = decoder_of(architecture)
    pools = architecture in ENCODERS or decoder not in (None, architecture) or modules is not None
    if runner == "generate" and (architecture in ENCODERS or decoder not in (None, architecture)):
        raise ModelLoadError(
            f"{model_dir}: {architecture} generates no text: set runner to 'auto' or 'pooling'"
        )
    if runner == "generate" or not (pools or runner == "pooling"):
        return None
    if architecture not in ENCODERS and decoder is None:
        raise ModelLoadError(
            f"{model_dir}: {architecture} has no implementation here that makes embeddings: the "
            f"encoders {', '.join(ENCODERS)} and all native decoders have one"
        )
    if architecture.endswith("ForSequenceClassification"):
        return _cross_encoder(model_dir, architecture, config)
    return _embedder(model_dir, architecture, config, modules or {})


def _modules(model_dir: Path) -> dict[str, Path] | None:
    """The folder of each module of a sentence-transformers model, by its class; None if it is no
    such model."""
    path = model_dir / "modules.json"
    if not path.is_file():
        return None
    try:
        listed = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
    except (OSError, msgspec.DecodeError) as error:
        raise ModelLoadError(f"{path}: {error}") from error
    found = {}
    for module in listed:
        name = str(module.get("type", "")).rpartition(".")[2]
        if name not in _MODULES:
            raise ModelLoadError(
                f"{path}: module {name!r} is not supported, only {', '.join(_MODULES)}"
            )
        found[name] = model_dir / str(module.get("path", ""))
    return found


def _embedder(
    model_dir: Path, architecture: str, config: dict[str, Any], modules: Mapping[str, Path]
) -> PoolingModel:
    is_encoder = architecture in ENCODERS
    # Without the files, what sentence-transformers and vLLM take for such models.
    method: Method = "mean" if is_encoder else "lasttoken"
    normalize = not is_encoder
    if "Pooling" in modules:
        method, normalize = _method(modules["Pooling"] / "config.json"), "Normalize" in modules
    if not is_encoder and method != "lasttoken":
        raise ModelLoadError(
            f"{modules['Pooling']}: pooling mode {method!r} is supported for encoders only; of "
            f"{architecture} only 'lasttoken'"
        )
    stated = read_json(model_dir / "config_sentence_transformers.json")
    prompts = {str(k): str(v) for k, v in (stated.get("prompts") or {}).items()}
    return PoolingModel(
        task="embed",
        architecture=architecture,
        method=method,
        normalize=normalize,
        size=int(config["hidden_size"]),
        max_len=_max_len(model_dir),
        dimensions=_dimensions(config | stated),
        prompts=prompts,
        default_prompt=prompts.get(stated.get("default_prompt_name") or "", ""),
    )


def _method(path: Path) -> Method:
    stated = read_json(path)
    if stated.get("include_prompt") is False:
        raise ModelLoadError(f"{path}: include_prompt: false is not supported")
    modes = stated.get("pooling_mode")
    if modes is None:  # the spelling until sentence-transformers 5.4
        found = [name for name, on in stated.items() if name.startswith("pooling_mode_") and on]
        modes = [n.removeprefix("pooling_mode_").removesuffix("_tokens") for n in found] or "mean"
        modes = ["cls" if mode == "cls_token" else mode for mode in modes] if found else modes
    modes = [modes] if isinstance(modes, str) else modes
    for method in _METHODS:
        if modes == [method]:
            return method
    raise ModelLoadError(
        f"{path}: pooling mode {' + '.join(map(str, modes))!r} is not supported, only one of "
        + ", ".join(_METHODS)
    )


def _cross_encoder(model_dir: Path, architecture: str, config: dict[str, Any]) -> PoolingModel:
    labels = config.get("num_labels") or len(config.get("id2label") or (0, 1))
    if labels != 1:
        raise ModelLoadError(
            f"{model_dir / 'config.json'}: id2label: the model has {labels} labels; a "
            "cross-encoder that scores pairs has one, and other classifiers are not supported"
        )
    stated = (config.get("sentence_transformers") or {}).get("activation_fn")
    stated = stated or config.get("sbert_ce_default_activation_function") or ""
    activation = str(stated).rpartition(".")[2] or "Sigmoid"
    if activation not in ("Sigmoid", "Identity"):
        raise ModelLoadError(
            f"{model_dir / 'config.json'}: activation_fn {stated!r} is not supported, only "
            "Sigmoid and Identity"
        )
    is_encoder = architecture in ENCODERS
    method: Method = "cls" if is_encoder else "lasttoken"
    return PoolingModel(
        task="score",
        architecture=architecture,
        method=config.get("classifier_pooling") or method,
        activation="identity" if activation == "Identity" else "sigmoid",
        size=1,
        max_len=_max_len(model_dir),
    )


def _max_len(model_dir: Path) -> int | None:
    length = read_json(model_dir / "sentence_bert_config.json").get("max_seq_length")
    return length if isinstance(length, int) else None


def _dimensions(stated: Mapping[str, Any]) -> tuple[int, ...] | None:
    sizes: Sequence[int] | None = stated.get("matryoshka_dimensions")
    if sizes:
        return tuple(sorted(sizes))
    return () if stated.get("is_matryoshka") else None
