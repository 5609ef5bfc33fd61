"""What of a schema is not enforced while an answer is generated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.schemas.chat import FunctionDefinition
from grammar.schema.document import Schema
from grammar.schema.paths import ROOT
from grammar.schema.scope import Finding
from grammar.spec import GrammarSpec

NO_PARAMETERS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
"""The parameters of a function that declares none, as in OpenAI's API."""
WHOLE = (Finding("parameters", ROOT, enforced=False),)
"""The finding for arguments that were generated without any constraint."""


class Unenforced(NamedTuple):
    """A schema, and the parts of it that the engine does not enforce."""

    spec: GrammarSpec
    findings: tuple[Finding, ...]


class LooseCalls(NamedTuple):
    """Functions whose arguments are not constrained to all of their schema."""

    functions: Mapping[str, FunctionDefinition]
    """All functions that the model was shown, by name."""
    findings: Mapping[str, tuple[Finding, ...]]
    """What was not enforced, by function name; strict functions are not in it."""

    def unenforced(self, name: str) -> Unenforced | None:
        """What is to be checked of a call to this function; None if nothing is."""
        if not (findings := self.findings.get(name, ())):
            return None
        parameters = self.functions[name].parameters
        schema = NO_PARAMETERS if parameters is None else {"type": "object"} | parameters
        return Unenforced(GrammarSpec.from_schema(schema, strict=False), findings)
