"""What is enforced of a schema, as ``POST /v1/schemas/check`` and ``sluice schema check`` tell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gateway.schemas.schema_check import SchemaProblem, SchemaReport, UnenforcedKeyword
from grammar.compiler import Verdict
from grammar.errors import CompilerUnavailable, GrammarError
from grammar.schema.paths import ROOT, pointer
from grammar.spec import GrammarSpec


async def report(
    schema: dict[str, Any] | bool, check: Callable[[GrammarSpec], Awaitable[Verdict]]
) -> SchemaReport:
    """The report on a schema, which ``check`` compiles. Raises ``CompilerUnavailable``."""
    size = 0
    try:
        spec = GrammarSpec.from_schema(schema, strict=False)
        size = len(spec.source.encode())
        verdict = await check(spec)
    except CompilerUnavailable:
        raise
    except GrammarError as error:
        path = getattr(error, "path", ROOT)
        problem = SchemaProblem(message=str(error), pointer=pointer(path))
        return SchemaReport(
            strict=False,
            error=problem,
            unenforced=[],
            backend=None,
            bytes=size,
            compiled_chars=None,
        )
    return SchemaReport(
        strict=not verdict.unenforced,
        error=None,
        unenforced=[
            UnenforcedKeyword(keyword=f.keyword, pointer=pointer(f.path), reason=f.reason)
            for f in verdict.unenforced
        ],
        backend=verdict.backend,
        bytes=size,
        compiled_chars=verdict.size,
    )
