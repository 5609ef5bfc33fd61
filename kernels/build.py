"""Builds the CUDA kernels, a Python module, once per source, compiler, torch and architecture.

``library()`` returns the shared object, building it on first use; ``python -m kernels build`` does
the same ahead of time. Builds go to a cache folder named by a hash of everything that matters,
under a lock held across processes, so that ranks that start together build once. Where there is no
compiler, as in a container's last stage, what was built into the cache before is used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Self

SOURCES = Path(__file__).parent / "csrc"
ARCHITECTURES = ("80", "90a")
"""Compute capabilities that every kernel must compile for."""
PRECISE = frozenset({"logprobs.cu", "penalties.cu", "sampling.cu"})
"""Files whose logarithms and divisions must be the exact ones."""
_LIBRARY = "sluice_kernels.so"


class BuildError(RuntimeError):
    """The kernels cannot be built: the compiler is missing or refused a file, or there is no folder
    to keep them in."""

    @classmethod
    def unwritable(cls, folder: Path, error: OSError) -> Self:
        return cls(
            f"{folder} cannot be written ({error}): set SLUICE_KERNEL_CACHE to a folder that can"
        )


def cache_dir() -> Path:
    """``SLUICE_KERNEL_CACHE``, or a folder in the user's cache."""
    root = os.environ.get("SLUICE_KERNEL_CACHE")
    return Path(root) if root else Path.home() / ".cache" / "sluice" / "kernels"


def find_nvcc() -> str:
    """Path of nvcc. Raises BuildError when there is none."""
    candidates = [os.environ.get("CUDA_HOME", "") + "/bin/nvcc", "/usr/local/cuda/bin/nvcc"]
    found = shutil.which("nvcc") or next((c for c in candidates if Path(c).is_file()), None)
    if found is None:
        raise BuildError("nvcc was not found: install the CUDA toolkit or set CUDA_HOME")
    return found


def nvcc_command(source: Path, output: Path, arch: str, nvcc: str) -> list[str]:
    """The command that compiles one .cu file for one compute capability, e.g. "90a"."""
    target = f"arch=compute_{arch},code=sm_{arch}"
    flags = ["-O3", "-std=c++17", "-gencode", target, "-Xcompiler", "-fPIC", "-lineinfo"]
    flags.append(f"-I{SOURCES}")
    if source.name not in PRECISE:
        flags.append("--use_fast_math")
    return [nvcc, *flags, "-c", str(source), "-o", str(output)]


def library(arch: str | None = None) -> Path:
    """The built shared object for ``arch`` (default: the current device's), building it if needed.

    Raises BuildError with the compiler's or the system's own words.
    """
    import torch

    arch = arch or _device_architecture()
    folder = cache_dir() / _fingerprint(arch, torch.__version__)
    try:
        nvcc = find_nvcc()
    except BuildError as error:
        return built_before(folder.glob(f"*/{_LIBRARY}"), error)
    built = folder / version_hash(nvcc) / _LIBRARY
    try:
        if built.exists():
            return built
        built.parent.mkdir(parents=True, exist_ok=True)
        with locked(built.parent / "lock"):
            if not built.exists():  # another process may have built it while this one waited
                _build(built, arch, nvcc)
    except OSError as error:
        raise BuildError.unwritable(folder, error) from error
    return built


def built_before(libraries: Iterable[Path], missing: BuildError) -> Path:
    """The newest of ``libraries``, for want of a compiler; raises ``missing`` if there is none."""
    found = sorted(libraries, key=lambda path: path.stat().st_mtime)
    if not found:
        raise missing
    return found[-1]


def version_hash(compiler: str) -> str:
    """Names what is built by this version of a compiler."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    return hashlib.sha256(version).hexdigest()[:8]


def _device_architecture() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return "90a" if (major, minor) == (9, 0) else f"{major}{minor}"


def _fingerprint(arch: str, torch_version: str) -> str:
    digest = hashlib.sha256()
    add_sources(digest)
    for part in (arch, torch_version, f"{sys.version_info[:2]}"):
        digest.update(f"{part}\0".encode())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()[:24]


def add_sources(digest: hashlib._Hash) -> None:
    """Add all that the library is built from."""
    for path in sorted(SOURCES.rglob("*")):
        if path.is_file() and path.parent.name != "cpu":
            digest.update(f"{path.relative_to(SOURCES)}\0".encode())
            digest.update(path.read_bytes())


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock across processes; ``path`` is a file for nothing else."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(target: Path, arch: str, nvcc: str) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as tmp:
        scratch = Path(tmp)
        commands = [
            (source, nvcc_command(source, scratch / f"{source.stem}.o", arch, nvcc))
            for source in sorted(SOURCES.rglob("*.cu"))
        ]
        commands += [
            (path, host_command(path, scratch / f"{path.parent.name}-{path.stem}.o", nvcc))
            for path in host_sources()
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda job: _compile(*job), commands))
        objects = [str(path) for path in sorted(scratch.glob("*.o"))]
        linked = scratch / target.name
        libraries = torch_libraries("c10_cuda", "torch_cuda")
        _compile(target, [nvcc, "-shared", *objects, "-o", str(linked), *libraries])
        linked.rename(target)  # appears whole or not at all


def host_sources() -> list[Path]:
    """What states the ops' arguments, and binds them: plain C++."""
    return [path for path in sorted(SOURCES.rglob("*.cpp")) if path.parent.name != "cpu"]


def host_command(source: Path, output: Path, compiler: str, *flags: str) -> list[str]:
    """Only those of ``binding`` include torch's headers; nvcc knows where CUDA's are."""
    import torch
    from torch.utils.cpp_extension import include_paths

    includes = [f"-I{SOURCES}"]
    if source.parent.name == "binding":
        includes += [f"-I{path}" for path in (*include_paths(), sysconfig.get_paths()["include"])]
    abi = int(torch.compiled_with_cxx11_abi())
    flags = ("-O2", "-std=c++20", "-Xcompiler", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", *flags)
    return [compiler, *flags, *includes, "-c", str(source), "-o", str(output)]


def torch_libraries(*more: str) -> Sequence[str]:
    """What a module for Python that uses torch is linked to."""
    from torch.utils.cpp_extension import library_paths

    folders = [f"-L{path}" for path in library_paths()]
    return [
        *folders,
        *(f"-l{name}" for name in ("c10", "torch", "torch_cpu", "torch_python", *more)),
    ]


def _compile(source: Path, command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BuildError(f"building {source.name} failed:\n{result.stdout}{result.stderr}")
