"""The libraries of the backends: their required versions, and the messages if one is missing.

An older version would not fail, but silently not enforce what ``schema.dialects`` says. The tests
of this package pass with each of these minimum versions, and fail below them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from grammar.backends.base import Backend
from grammar.errors import CompilerUnavailable
from grammar.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Library:
    distribution: str
    """The distribution's name for pip."""
    minimum: str
    adapter: str
    """The name of the class in the backend's module."""

    @property
    def mend(self) -> str:
        return f"pip install '{self.distribution}>={self.minimum}'"


LIBRARIES = {
    "llguidance": Library("llguidance", "1.8", "LLGuidanceBackend"),
    "xgrammar": Library("xgrammar", "0.2.8", "XGrammarBackend"),
    "outlines": Library("outlines-core", "0.2.13", "OutlinesBackend"),
}
"""The library of each backend."""


def adapter(backend: str) -> Callable[[Vocabulary], Backend]:
    """The backend's class; imports its library, which can take seconds. Raises
    ``CompilerUnavailable``."""
    library = LIBRARIES[backend]
    name = library.distribution
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        raise CompilerUnavailable(f"{name} is not installed: {library.mend}") from None
    if _numbers(installed) < _numbers(library.minimum):
        message = f"{name} {installed} is too old to be relied on: {library.mend}"
        raise CompilerUnavailable(message)
    try:
        module = importlib.import_module(f"grammar.backends.{backend}")
    except (ImportError, OSError) as error:  # OSError: a shared library is missing or broken
        mend = _mend_of_missing(name, error) or library.mend
        message = f"{name} {installed} does not load ({error}): {mend}"
        raise CompilerUnavailable(message) from None
    found: Callable[[Vocabulary], Backend] = getattr(module, library.adapter)
    return found


def _mend_of_missing(distribution: str, error: ImportError | OSError) -> str | None:
    """The message for a module that a library needs and that was not installed with it."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    module = error.name.partition(".")[0]
    for requirement in metadata.requires(distribution) or ():
        needed = requirement.partition(";")[0].strip()
        name = re.match(r"[\w.-]*", needed)
        if name is not None and re.sub(r"[.-]", "_", name[0]) == module:
            return f"pip install '{needed}'"
    return None


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
