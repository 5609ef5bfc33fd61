"""All errors of the package. The docstrings say what happened, the messages how to correct it.

GrammarError
├── InvalidGrammar       not a grammar at all, or one that no backend can ever run
│   ├── GrammarTooLarge  over a size, depth or count limit
│   └── Unsatisfiable    no output satisfies it
├── UnsupportedKeyword   a valid schema, but no backend enforces this keyword exactly
├── CompileFailed        the compiler gave up on it
│   ├── CompileTimeout   over the time limit
│   ├── CompileMemory    over the memory limit
│   └── CompilerCrashed  the process that compiled it died
├── CompilerUnavailable  nothing can be compiled: the installation or the machine is at fault
└── MatcherFailed        a running matcher hit a limit; its request cannot go on
    └── DeadEnd          no token of the vocabulary can continue the output, nor may it end

Paths are JSONPath-like and start at the root of the source: ``$.properties.name.pattern``.
"""

from __future__ import annotations


def _at(path: str, problem: str) -> str:
    return f"{problem}; simplify {'it' if path == '$' else path}"


class GrammarError(Exception):
    """Base of all errors the package raises."""


class InvalidGrammar(GrammarError, ValueError):
    """The source is not a grammar of its kind."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(path, message)
        self.path = path
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} (at {self.path})"


class GrammarTooLarge(InvalidGrammar):
    """The source exceeds a limit."""


class Unsatisfiable(InvalidGrammar):
    """No output satisfies the source."""


class UnsupportedKeyword(GrammarError, ValueError):
    """The keyword at ``path`` cannot be enforced exactly while the output is generated."""

    def __init__(self, keyword: str, path: str, reason: str = "") -> None:
        super().__init__(keyword, path, reason)
        self.keyword = keyword
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        because = f": {self.reason}" if self.reason else ""
        return f"keyword '{self.keyword}' at {self.path} cannot be enforced{because}"


class CompileFailed(GrammarError):
    """The grammar could not be compiled."""


class CompileTimeout(CompileFailed):
    """Compiling took longer than the limit. ``path``: the keyword that most likely did."""

    def __init__(self, limit_s: float, path: str = "$") -> None:
        super().__init__(limit_s, path)
        self.limit_s = limit_s
        self.path = path

    def __str__(self) -> str:
        return _at(self.path, f"the grammar takes more than {self.limit_s:g} s to compile")


class CompileMemory(CompileFailed):
    """Compiling needed more memory than the limit. ``path``: the keyword that most likely did."""

    def __init__(self, limit_bytes: int, path: str = "$") -> None:
        super().__init__(limit_bytes, path)
        self.limit_bytes = limit_bytes
        self.path = path

    def __str__(self) -> str:
        size = f"{self.limit_bytes >> 20} MiB"
        return _at(self.path, f"the grammar takes more than {size} to compile")


class CompilerCrashed(CompileFailed):
    """The process that compiled it died."""

    def __str__(self) -> str:
        return "the grammar crashed the compiler; simplify it"


class CompilerUnavailable(GrammarError):
    """Nothing can be compiled, whatever the grammar: a library is missing, too old or broken, or
    no process starts. The message is for whoever runs the server."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"the grammar compiler is not available: {self.cause}"


class MatcherFailed(GrammarError):
    """The grammar became too complex to follow at this point of the output."""


class DeadEnd(MatcherFailed):
    """No token of the vocabulary can continue the output, nor may it end here."""
