"""``sluice schema check``: what is enforced of a JSON schema, without a server."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

app = typer.Typer(help="JSON schemas for structured outputs.", no_args_is_help=True)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A JSON schema; - for the standard input.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Say what of a schema is enforced, and what cannot be.

    Ends with 1 if strict: true would refuse it.
    """
    from gateway.admission import schema_report
    from grammar.compiler import GrammarChecker
    from grammar.vocabulary import Vocabulary

    text = sys.stdin.read() if str(file) == "-" else file.read_text()
    try:
        schema: Any = json.loads(text)
    except ValueError as error:
        raise SystemExit(f"{file} is not JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise SystemExit(f"{file}: a schema is an object or a boolean")
    # Bytes spell every text, so that no tokenizer is needed.
    vocabulary = Vocabulary([*(bytes([i]) for i in range(256)), b"<end>"], [256], [256], 257)
    checker = GrammarChecker(vocabulary, num_workers=1)
    try:
        report = asyncio.run(
            schema_report.report(schema, lambda spec: asyncio.wrap_future(checker.submit(spec)))
        )
    finally:
        checker.close()
    print(msgspec.json.format(msgspec.json.encode(report)).decode() if as_json else _lines(report))
    raise typer.Exit(0 if report.strict else 1)


def _lines(report: Any) -> str:
    if report.error is not None:
        return f"{report.error.pointer or '/'}: {report.error.message}"
    lines = [f"{k.pointer}: {k.keyword} cannot be enforced: {k.reason}" for k in report.unenforced]
    state = "all of it is enforced" if report.strict else "strict: true refuses it"
    size = f"{report.bytes} bytes, {report.compiled_chars} characters as {report.backend} gets it"
    return "\n".join([*lines, f"{state} ({size})"])
