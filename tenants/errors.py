"""All errors of the package. The docstrings say what happened, the messages how to correct it.

TenantsError
├── InvalidValue             a field that can never be stored: names the field
├── ObjectExists             the name of a tenant, project or adapter, or the id of a key, is taken
├── ObjectNotFound           no such tenant, project, key, adapter or webhook
├── StoreUnavailable         the database does not answer; trying again later may help
├── SchemaMismatch           the database's schema is not the one this version needs
├── MigrationRefused         the database's login may not make what the schema needs
├── EmbeddedPostgresError    the private PostgreSQL cannot be started or used
├── QuotaExceeded            a limit of the key, its project or its tenant is reached
├── NotAllowed               a good key lacks a scope, or may not use the model
└── AuthenticationFailed     the key is malformed, unknown, revoked or expired, its tenant disabled

No message ever holds a secret: keys are named by their public id, databases without password.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenants.limits import QuotaAnswer

_FIRST_RELEASE = "0116"
"""The schema of the oldest version whose databases can be migrated."""

_EXISTS = {
    "tenant": "A tenant named {!r} exists already; choose another name.",
    "project": "The tenant has a project named {!r} already; choose another name.",
    "key": "A key with the public id {!r} exists already; mint a new one.",
    "adapter": "The tenant has an adapter named {!r} already; unload it or choose another name.",
    "item": "The conversation has an item of this id already.",
    "admin key": "There is an admin key already, and the first one is made only once; "
    "`sluice key create TENANT --scope admin` makes another.",
}
_NOT_FOUND = {
    "tenant": "There is no tenant {!r}; `sluice tenant list` shows them all.",
    "project": "The tenant has no project {!r}.",
    "key": "There is no key {!r}; `sluice key list` shows a tenant's keys.",
    "adapter": "The tenant has no adapter {!r}.",
    "mcp_server": "The tenant has no MCP server {!r}.",
    "scope": "The tenant has no {} to limit.",
    "webhook": "There is no webhook {!r}; `sluice webhook list` shows them all.",
    "file": "There is no file {!r}.",
}
_REASONS = {
    "malformed": "The API key is malformed: it was cut, mistyped or is not a Sluice key.",
    "unknown": "The API key {} is unknown.",
    "revoked": "The API key {} was revoked.",
    "expired": "The API key {} has expired.",
    "disabled": "The tenant of the API key {} is disabled.",
}
_LIMITS = {
    "requests": "requests per minute",
    "tokens": "tokens per minute",
    "concurrent": "concurrent requests",
    "monthly_tokens": "tokens per month",
    "monthly_cost": "spending per month",
    None: "quota",
}


class TenantsError(Exception):
    """Base of all errors tenants raise."""


class InvalidValue(TenantsError, ValueError):
    """A field that can never be stored."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class ObjectExists(TenantsError):
    """What should be made is there already."""

    def __init__(self, kind: str, name: str = "") -> None:
        super().__init__(_EXISTS[kind].format(name))


class ObjectNotFound(TenantsError):
    """Nothing of this kind has this name or id, or it is another tenant's."""

    def __init__(self, kind: str, name: object) -> None:
        super().__init__(_NOT_FOUND[kind].format(str(name)))


class StoreUnavailable(TenantsError):
    """The database does not answer."""


class SchemaMismatch(TenantsError):
    """The database's schema is not the one this version needs."""

    def __init__(
        self, current: str | None, expected: str, *, differing: Sequence[str] = ()
    ) -> None:
        """differing: functions whose body is not this version's."""
        found, mend = f"has its schema at {current}", "run `sluice migrate`"
        if current is None:
            found = "has no schema yet"
        elif current > expected:
            mend = "it is a newer version's: update Sluice"
        elif current < _FIRST_RELEASE:
            mend = "it was made before 0.1.0, which cannot be migrated: begin with a new database"
        elif differing:
            found = f"has another version's function {', '.join(differing[:3])}"
        super().__init__(f"The database {found}, this version needs {expected}; {mend}.")
        self.current = current
        self.expected = expected


class MigrationRefused(TenantsError):
    """The database's login may not make what the schema needs."""


class EmbeddedPostgresError(TenantsError):
    """The private PostgreSQL cannot be started or used."""


class QuotaExceeded(TenantsError):
    """A limit of the key, its project or its tenant is reached."""

    def __init__(self, answer: QuotaAnswer) -> None:
        wait = "" if answer.wait_us is None else f"; try again in {answer.wait_us / 1e6:.3f} s"
        super().__init__(
            f"The {answer.scope_kind}'s limit of {_LIMITS[answer.refused_by]} is reached{wait}."
        )
        self.answer = answer

    @property
    def is_budget(self) -> bool:
        """Whether it is a month's limit: ``insufficient_quota``, and retrying is in vain."""
        return self.answer.refused_by in ("monthly_tokens", "monthly_cost")

    @property
    def is_too_large(self) -> bool:
        """Whether the request alone is above the limit of tokens per minute."""
        return self.answer.refused_by == "tokens" and self.answer.wait_us is None

    @property
    def retry_after_us(self) -> int | None:
        """Microseconds; None when waiting is in vain."""
        return self.answer.wait_us


class NotAllowed(TenantsError):
    """The key is good, but not for this. ``field``: of the request, if one asks for too much."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class AuthenticationFailed(TenantsError):
    """The key that was presented opens nothing."""

    def __init__(self, reason: str, public_id: str = "") -> None:
        super().__init__(_REASONS[reason].format(public_id))
        self.reason = reason
