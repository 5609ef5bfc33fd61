"""The interface of a family's image processor, and the files that it is read from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from engine.errors import ModelLoadError

Detail = Literal["low", "high", "auto"]
"""``auto`` and ``high``: as large as the checkpoint's own settings allow. ``low``: at most
``LOW_DETAIL_TOKENS`` image tokens, where a family's pictures have sizes of their own. Where all
take equally many tokens, it changes nothing."""
LOW_DETAIL_TOKENS = 256

_PROCESSOR, _PREPROCESSOR = "processor_config.json", "preprocessor_config.json"

T = TypeVar("T")


class Fit(msgspec.Struct, frozen=True):
    """What becomes of a picture of some size."""

    height: int
    """Of the resized picture, in pixels."""
    width: int
    rows: int
    """Of image tokens."""
    columns: int
    num_tokens: int
    """All that stand for it in the prompt: image tokens and what separates and encloses them."""


class Normalization(msgspec.Struct, frozen=True):
    """From bytes to the numbers that an encoder reads."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    rescale_factor: float

    def table(self) -> npt.NDArray[np.float32]:
        """[3, 256]: the number of each byte of each channel, with the bits of transformers' Pillow
        processors."""
        scaled = (np.arange(256) * self.rescale_factor).astype(np.float32)
        mean, std = (np.array([x], np.float32).T for x in (self.mean, self.std))
        return (scaled - mean) / std


class ImageProcessor(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How pictures enter a model, read from its folder. Can be pickled."""

    placeholder: int
    """The token that a chat template writes for a picture; ``tokens`` take its place."""
    image_token_id: int
    """The token whose embedding the encoder's output replaces."""
    resample: int
    """Pillow's number of the filter."""
    normalization: Normalization

    @classmethod
    def load(cls, model_dir: Path) -> Self:
        """Raises ``ModelLoadError`` naming the file and the field."""
        raise NotImplementedError

    def fit(self, width: int, height: int, detail: Detail = "auto") -> Fit:
        """Of a picture of this size. Raises ``ImageTooLarge`` for shapes that the model cannot
        see."""
        raise NotImplementedError

    def tokens(self, fit: Fit) -> list[int]:
        """What a placeholder becomes: ``fit.num_tokens`` ids."""
        return [self.image_token_id] * fit.num_tokens

    @property
    def most_image_tokens(self) -> int:
        """A bound on the image tokens of a picture, which hardly any reaches."""
        raise NotImplementedError

    def rendered(self, prompt: str) -> str:
        """The chat template's text as it is tokenized."""
        return prompt

    @property
    def parameters(self) -> bytes:
        """All of the above, in one form: what the digests of pictures depend on."""
        return msgspec.json.encode(self, order="deterministic")


class ImageFile(msgspec.Struct, kw_only=True):
    """The fields of preprocessor_config.json that families share; their subclasses add their own,
    with transformers' defaults."""

    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]
    resample: int
    rescale_factor: float = 1 / 255
    size: dict[str, int | None] | None = None
    do_resize: bool | None = True
    do_rescale: bool | None = True
    do_normalize: bool | None = True
    do_center_crop: bool | None = False

    @staticmethod
    def exists(model_dir: Path) -> bool:
        """Whether a model's folder has such a file."""
        return any((model_dir / name).exists() for name in (_PROCESSOR, _PREPROCESSOR))

    @classmethod
    def read(cls, model_dir: Path) -> Self:
        """From processor_config.json if the processor's settings stand there, else from
        preprocessor_config.json. Raises ``ModelLoadError``."""
        path = model_dir / _PROCESSOR
        fields = _fields(path).get("image_processor") if path.exists() else None
        if fields is None:
            path = model_dir / _PREPROCESSOR
            fields = _fields(path)
        fields = {name: value for name, value in fields.items() if value is not None}
        try:
            file = msgspec.convert(fields, cls)
            file.check()
        except ValueError as error:  # msgspec's are such, too
            raise ModelLoadError(f"{path}: {error}") from error
        return file

    def check(self) -> None:
        """Raises ``ValueError`` for a field that means something else than is done here."""
        for name in ("do_resize", "do_rescale", "do_normalize"):
            if getattr(self, name) is False:
                raise ValueError(f"{name}: false is not supported")
        if self.do_center_crop:
            raise ValueError("do_center_crop: true is not supported")
        if not 0 <= self.resample <= 5:
            raise ValueError(f"resample: must be one of Pillow's filters, got {self.resample}")
        if not all(self.image_std):
            raise ValueError(f"image_std: must not be 0, got {self.image_std}")

    @property
    def normalization(self) -> Normalization:
        return Normalization(self.image_mean, self.image_std, self.rescale_factor)


def read_config(model_dir: Path, kind: type[T]) -> T:
    """config.json as ``kind``. Raises ``ModelLoadError``."""
    return _decode(model_dir / "config.json", kind)


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _Tokenizer(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


def added_tokens(model_dir: Path) -> dict[str, int]:
    """The ids of the tokens that tokenizer.json adds to its vocabulary. Raises
    ``ModelLoadError``."""
    tokenizer = _decode(model_dir / "tokenizer.json", _Tokenizer)
    return {token.content: token.id for token in tokenizer.added_tokens}


def _fields(path: Path) -> dict[str, Any]:
    return _decode(path, dict[str, Any])


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ModelLoadError(
            f"cannot read {path} ({error.strerror}): a model that sees needs it"
        ) from error
    except msgspec.DecodeError as error:
        raise ModelLoadError(f"{path}: {error}") from error
