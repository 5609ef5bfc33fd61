"""The port every grammar engine implements. EOS, padding and special tokens never reach it."""

from __future__ import annotations

from typing import Protocol

from grammar.spec import GrammarSpec
from grammar.vocabulary import Mask


class BackendMatcher(Protocol):
    """The state of one output. Not thread-safe: one owner at a time."""

    def accept(self, token_id: int) -> bool:
        """Advances by a token that stands for bytes; False, and no change, where it is illegal."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undoes the last accepted tokens, exactly."""
        ...

    def fill(self, row: Mask) -> None:
        """Overwrites ``row``; bits of EOS and special ids are meaningless. May raise
        ``MatcherFailed``. Releases the GIL."""
        ...

    def is_accepting(self) -> bool:
        """Whether the output may end here."""
        ...

    def forced_bytes(self) -> bytes:
        """What every continuation starts with; ``b""`` when there is a choice."""
        ...


class BackendGrammar(Protocol):
    """A compiled grammar, shared by any number of matchers."""

    memory_bytes: int
    """What keeping it costs, an estimate."""

    def matcher(self) -> BackendMatcher: ...


class Backend(Protocol):
    """One grammar engine bound to one vocabulary."""

    name: str

    def compile(self, spec: GrammarSpec) -> BackendGrammar:
        """Raises ``InvalidGrammar``, or ``UnsupportedKeyword`` for what it knowingly refuses."""
        ...
