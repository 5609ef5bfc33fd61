"""The interface that every grammar engine implements. It never sees EOS, padding or special
tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from grammar.spec import GrammarSpec
from grammar.vocabulary import Mask, Vocabulary

MAX_INDENT = 64
"""The most blanks at the beginning of a line: 16 levels of four, or 32 of two."""
# For engines that do not distinguish indentation from other blanks. Without a limit a model could
# generate blanks forever.
MAX_WHITESPACE = MAX_INDENT + 2


class BackendMatcher(Protocol):
    """The state of one output. Not thread-safe: one owner at a time."""

    def accept(self, token_id: int) -> bool:
        """Advance by a token that stands for bytes. False, with no change, if it is illegal, or if
        a limit was hit; in the second case ``fill`` raises."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last accepted tokens, exactly."""
        ...

    def fill(self, row: Mask) -> None:
        """Overwrite ``row`` with the mask; its bits of EOS and special ids have no meaning.
        Releases the GIL. Raises ``MatcherFailed``."""
        ...

    def is_accepting(self) -> bool:
        """Whether the output is complete, so that it may end here."""
        ...

    def forced_bytes(self) -> bytes:
        """The bytes that every continuation begins with; ``b""`` if there is a choice."""
        ...


class BatchMatcher(ABC):
    """A ``BackendMatcher`` whose engine can fill the masks of many outputs at once."""

    @staticmethod
    @abstractmethod
    def fill_many(matchers: Sequence[tuple[Any, int]], rows: Mask, num_threads: int) -> None:
        """``fill`` without its errors: ``rows[i]`` for each (matcher of this kind, ``i``)."""

    @abstractmethod
    def settle(self, row: Mask) -> None:
        """Complete ``fill`` after ``fill_many``; raises its errors."""


class BackendGrammar(Protocol):
    """A compiled grammar, shared by any number of matchers."""

    @property
    def memory_bytes(self) -> int:
        """Estimated bytes of memory that it takes."""
        ...

    def matcher(self) -> BackendMatcher: ...

    def dump(self) -> bytes:
        """What another process needs besides the source to load it without compiling."""
        ...


class Backend(Protocol):
    """One grammar engine bound to one vocabulary.

    A ``json_schema`` reaches it lowered to its dialect, a ``structural_tag`` with such schemas in
    it, everything else as the caller wrote it.
    """

    name: str

    def __init__(self, vocabulary: Vocabulary) -> None: ...

    def compile(self, spec: GrammarSpec) -> BackendGrammar:
        """Compile a spec. Raises ``InvalidGrammar``."""
        ...

    def load(self, spec: GrammarSpec, data: bytes) -> BackendGrammar:
        """The grammar that ``compile`` made of ``spec``, from its ``dump``."""
        ...
