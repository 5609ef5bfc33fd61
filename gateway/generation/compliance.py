"""Checks of finished answers whose schema could not be enforced while they were generated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple
from uuid import UUID

from gateway.admission.unenforced import LooseCalls, Unenforced
from gateway.schemas.common import Compliance, SchemaViolation, UnenforcedKeyword
from grammar.errors import GrammarError
from grammar.schema.paths import ROOT
from grammar.spec import GrammarSpec
from grammar.validation import Report
from tenants.lanes import Lanes
from tenants.outage import CALM_S, OutageLog

logger = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 10.0
"""How long the end of an answer waits for its check."""


class Call(NamedTuple):
    id: str
    name: str
    arguments: str


class ComplianceChecks:
    """Checks finished answers, in a worker process: a pattern may take exponentially long.

    ``lanes`` are those of all work that is done there.
    """

    def __init__(
        self, validate: Callable[[GrammarSpec, str], Future[Report]], lanes: Lanes
    ) -> None:
        self._validate = validate
        self._lanes = lanes
        self._unchecked = OutageLog(logger, calm_s=CALM_S)

    async def of_document(self, unenforced: Unenforced, text: str, *, tenant: UUID) -> Compliance:
        """Check a document. tenant: the owner; one document of each tenant is checked at a time."""
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
        """Check the arguments of calls; None if every call was constrained to its schema."""
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
        """Check a text against a schema; None if that takes too long."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                report = await self._lanes.run(tenant, lambda: self._validate(spec, text))
        except (GrammarError, TimeoutError) as error:
            self._unchecked.failed("an answer could not be checked: %r", error)
            return None
        self._unchecked.succeeded("answers are checked again")
        return report


def _violations(report: Report, call_id: str | None = None) -> list[SchemaViolation]:
    return [
        SchemaViolation(path=v.path, message=v.message)
        if call_id is None
        else SchemaViolation(path=v.path, message=v.message, call_id=call_id)
        for v in report.violations
    ]
