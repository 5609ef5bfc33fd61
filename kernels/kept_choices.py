"""Which GEMMs were measured to be the fastest, kept on disk: the next start need not measure.

A file holds the choices for one kind of weight, in a folder that is named by all that the times
depend on: another GPU, driver, library or version of the kernels has a folder of its own.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import torch

from kernels import build
from kernels.gemm import Gemm, Kind

_PARTS = Path(__file__).parent
_MEASURED = ("cuda.py", "kept_choices.py", "gemm.py", "tuning.py")
"""Beside the kernels' sources, what decides which GEMM is the fastest."""
_DRIVER = Path("/proc/driver/nvidia/version")

_logger = logging.getLogger(__name__)
_decoder = msgspec.json.Decoder(dict[int, Gemm])


class KeptChoices:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_refused = False

    @classmethod
    def of(cls, device: torch.device) -> KeptChoices:
        """Those of GPUs like this one, in the folder of the built kernels."""
        return cls(build.cache_dir() / "gemms" / _fingerprint(device))

    def read(self, kind: Kind) -> dict[int, Gemm]:
        """By numbers of rows; empty where nothing, or nothing legible, was kept."""
        path = self._path(kind)
        try:
            return _decoder.decode(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            _logger.warning("%s cannot be read, so GEMMs are measured anew: %s", path, error)
            return {}

    def write(self, kind: Kind, choices: Mapping[int, Gemm]) -> None:
        """In place of what was kept. Where that fails the log says so, once: nothing but time is
        lost."""
        path = self._path(kind)
        try:
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                written = Path(scratch) / path.name
                written.write_bytes(msgspec.json.encode(choices))
                written.rename(path)  # appears whole or not at all
        except OSError as error:
            if not self._is_refused:
                _logger.warning(
                    "The choice of GEMMs is not kept, so the next start measures anew: %s; set "
                    "SLUICE_KERNEL_CACHE to a folder that can be written",
                    error,
                )
            self._is_refused = True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held while measuring, so that engines that start together do not disturb each other, and
        measure once. Where there can be no lock, none is held."""
        with ExitStack() as stack:
            with suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(build.locked(self._folder / "lock"))
            yield

    def _path(self, kind: Kind) -> Path:
        features, k = kind.shape
        words = [f"{features}x{k}", str(kind.dtype).removeprefix("torch.")]
        words += ["gated"] * kind.gated
        return self._folder / f"{'-'.join(words)}.json"


def _fingerprint(device: torch.device) -> str:
    digest = hashlib.sha256()
    build.add_sources(digest)
    for path in [_PARTS / name for name in _MEASURED]:
        digest.update(f"{path.name}\0".encode())
        digest.update(path.read_bytes())
    gpu = torch.cuda.get_device_properties(device)
    driver = _DRIVER.read_text() if _DRIVER.exists() else ""
    for part in (
        *(gpu.name, gpu.multi_processor_count, gpu.total_memory, driver),
        *(torch.__version__, torch.version.cuda),
    ):
        digest.update(f"{part}\0".encode())
    return digest.hexdigest()[:24]
