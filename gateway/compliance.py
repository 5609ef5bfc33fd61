"""What became of schemas that nobody held an answer to while it was generated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple
from uuid import UUID

from gateway.lanes import Lanes
from gateway.schemas.chat import FunctionDefinition
from gateway.schemas.common import Compliance, SchemaViolation, UnenforcedKeyword
from grammar.errors import GrammarError
from grammar.schema.document import Schema
from grammar.schema.paths import ROOT
from grammar.schema.scope import Finding
from grammar.spec import GrammarSpec
from grammar.validation import Report

logger = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 10.0
"""How long the end of an answer waits for its check."""
NO_PARAMETERS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
"""What a function without ``parameters`` takes, as in OpenAI's API."""
WHOLE = (Finding("parameters", ROOT, enforced=False),)
"""Of arguments that were written freely."""


class Unenforced(NamedTuple):
    """A schema, and what of it the engine does not enforce."""

    spec: GrammarSpec
    findings: tuple[Finding, ...]


class LooseCalls(NamedTuple):
    """Functions whose arguments nothing held to all of their schema."""

    functions: Mapping[str, FunctionDefinition]
    """By name: all that the model was shown."""
    findings: Mapping[str, tuple[Finding, ...]]
    """By name: what was not enforced; strict functions are not in it."""

    def unenforced(self, name: str) -> Unenforced | None:
        """None where there is nothing to check."""
        if not (findings := self.findings.get(name, ())):
            return None
        parameters = self.functions[name].parameters
        schema = NO_PARAMETERS if parameters is None else {"type": "object"} | parameters
        return Unenforced(GrammarSpec.from_schema(schema, strict=False), findings)


class Call(NamedTuple):
    id: str
    name: str
    arguments: str


class ComplianceChecks:
    """Checks finished answers, in a worker process: a pattern can take for ever."""

    def __init__(self, validate: Callable[[GrammarSpec, str], Future[Report]]) -> None:
        self._validate = validate
        self._lanes = Lanes()

    async def of_document(self, unenforced: Unenforced, text: str, *, tenant: UUID) -> Compliance:
        """``tenant``: whose it is; each has one document checked at a time."""
        report = await self._report(unenforced.spec, text, tenant)
        return Compliance(
            unenforced=[
                UnenforcedKeyword(keyword=f.keyword, path=f.path) for f in unenforced.findings
            ],
            valid=None if report is None else report.passed,
            violations=[] if report is None else _violations(report),
        )

    async def of_calls(
        self, loose: LooseCalls, calls: Sequence[Call], *, tenant: UUID
    ) -> Compliance | None:
        """None where every call was held to its schema."""
        keywords: dict[tuple[str, str, str], UnenforcedKeyword] = {}
        violations: list[SchemaViolation] = []
        verdicts: list[bool | None] = []
        for call in calls:
            if call.name not in loose.functions:
                message = f"there is no function {call.name!r}"
                violations.append(SchemaViolation(path=ROOT, message=message, call_id=call.id))
                verdicts.append(False)
            elif (unenforced := loose.unenforced(call.name)) is not None:
                report = await self._report(unenforced.spec, call.arguments, tenant)
                verdicts.append(None if report is None else report.passed)
                violations += [] if report is None else _violations(report, call.id)
                for f in unenforced.findings:
                    keyword = UnenforcedKeyword(keyword=f.keyword, path=f.path, function=call.name)
                    keywords[call.name, f.path, f.keyword] = keyword
        if not verdicts:
            return None
        valid = False if False in verdicts else None if None in verdicts else True
        return Compliance(
            unenforced=list(keywords.values()), valid=valid, violations=violations[:10]
        )

    async def _report(self, spec: GrammarSpec, text: str, tenant: UUID) -> Report | None:
        """None where it cannot be found out in time."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S), self._lanes.turn(tenant):
                return await asyncio.wrap_future(self._validate(spec, text))
        except (GrammarError, TimeoutError) as error:
            logger.warning("an answer could not be checked: %s", error)
            return None


def _violations(report: Report, call_id: str | None = None) -> list[SchemaViolation]:
    return [
        SchemaViolation(path=v.path, message=v.message)
        if call_id is None
        else SchemaViolation(path=v.path, message=v.message, call_id=call_id)
        for v in report.violations
    ]
