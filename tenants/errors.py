"""All errors of the package. The docstrings say what happened, the messages how to correct it.

TenantsError
├── InvalidValue             a field that can never be stored: names the field
├── TenantExists             the name is taken
├── TenantNotFound
├── ProjectExists            the tenant has a project of this name
├── ProjectNotFound
├── KeyExists                the public id is taken
├── KeyNotFound
├── AdapterExists            the tenant has an adapter of this name
├── AdapterNotFound
├── AdminKeyExists           the first admin key was made before
├── ScopeNotFound            the tenant has no such project or key to limit
├── StoreUnavailable         the database does not answer; trying again later may help
├── SchemaMismatch           the database's schema is not the one this version needs
├── MigrationRefused         the database's login may not make what the schema needs
├── EmbeddedPostgresError    the private PostgreSQL cannot be started or used
├── QuotaExceeded            a limit of the key, its project or its tenant is reached
├── NotAllowed               base of what a good key may still not do
│   ├── ScopeMissing
│   └── ModelNotAllowed
└── AuthenticationFailed     base of the five answers to a bad key
    ├── MalformedKey         not of our format, or its checksum is wrong: found without a query
    ├── UnknownKey           well formed, but nobody's
    ├── RevokedKey           or its grace after a rotation is over
    ├── ExpiredKey
    └── DisabledTenant

No message ever holds a secret: keys are named by their public id, databases without password.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenants.limits import QuotaAnswer

_FIRST_RELEASE = "0100"
"""The schema of the oldest version whose databases can be migrated."""

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


class TenantExists(TenantsError):
    """The tenant's name is taken."""

    def __init__(self, name: str) -> None:
        super().__init__(f"A tenant named {name!r} exists already; choose another name.")
        self.name = name


class TenantNotFound(TenantsError):
    """No tenant has this name or id."""

    def __init__(self, name: object) -> None:
        super().__init__(f"There is no tenant {str(name)!r}; `sluice tenant list` shows them all.")
        self.name = str(name)


class ProjectExists(TenantsError):
    """The tenant has a project of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The tenant has a project named {name!r} already; choose another name.")
        self.name = name


class ProjectNotFound(TenantsError):
    """The tenant has no project with this name or id."""

    def __init__(self, project: object) -> None:
        super().__init__(f"The tenant has no project {str(project)!r}.")
        self.project = str(project)


class KeyExists(TenantsError):
    """The key's public id is taken."""

    def __init__(self, public_id: str) -> None:
        super().__init__(f"A key with the public id {public_id!r} exists already; mint a new one.")
        self.public_id = public_id


class KeyNotFound(TenantsError):
    """No key has this public id, or the key is not this tenant's."""

    def __init__(self, key: object) -> None:
        super().__init__(f"There is no key {str(key)!r}; `sluice key list` shows a tenant's keys.")
        self.key = str(key)


class AdapterExists(TenantsError):
    """The tenant has an adapter of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The tenant has an adapter named {name!r} already; unload it or choose another name."
        )
        self.name = name


class AdapterNotFound(TenantsError):
    """The tenant has no adapter with this name or id."""

    def __init__(self, adapter: object) -> None:
        super().__init__(f"The tenant has no adapter {str(adapter)!r}.")
        self.adapter = str(adapter)


class AdminKeyExists(TenantsError):
    """The first admin key was made before."""

    def __init__(self) -> None:
        super().__init__(
            "There is an admin key already, and the first one is made only once; "
            "`sluice key create TENANT --scope admin` makes another."
        )


class ScopeNotFound(TenantsError):
    """The tenant has no such project or key to limit."""

    def __init__(self, kind: str, scope_id: object) -> None:
        super().__init__(f"The tenant has no {kind} {scope_id} to limit.")
        self.kind = kind
        self.scope_id = scope_id


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
    """The key is good, but not for this."""


class ScopeMissing(NotAllowed):
    """The key lacks the scope."""

    def __init__(self, scope: str, scopes: tuple[str, ...]) -> None:
        super().__init__(
            f"The API key lacks the scope {scope!r}, it has {', '.join(scopes)}; "
            f"`sluice key create TENANT --scope {scope}` makes one that has it."
        )
        self.scope = scope


class ModelNotAllowed(NotAllowed):
    """The model is not on the key's list."""

    def __init__(self, model: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"The API key may not use {model!r}; it may use {', '.join(allowed)}.")
        self.model = model
        self.allowed = allowed


class AuthenticationFailed(TenantsError):
    """The key that was presented opens nothing."""


class MalformedKey(AuthenticationFailed):
    """Not of our format, or its checksum is wrong."""

    def __init__(self) -> None:
        super().__init__("The API key is malformed: it was cut, mistyped or is not a Sluice key.")


class UnknownKey(AuthenticationFailed):
    """Well formed, but nobody's."""

    def __init__(self, public_id: str) -> None:
        super().__init__(f"The API key {public_id} is unknown.")
        self.public_id = public_id


class RevokedKey(AuthenticationFailed):
    """The key was revoked."""

    def __init__(self, public_id: str) -> None:
        super().__init__(f"The API key {public_id} was revoked.")
        self.public_id = public_id


class ExpiredKey(AuthenticationFailed):
    """The key is past its end."""

    def __init__(self, public_id: str) -> None:
        super().__init__(f"The API key {public_id} has expired.")
        self.public_id = public_id


class DisabledTenant(AuthenticationFailed):
    """All keys of the tenant are shut out."""

    def __init__(self, public_id: str) -> None:
        super().__init__(f"The tenant of the API key {public_id} is disabled.")
        self.public_id = public_id
