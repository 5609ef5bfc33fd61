"""Bounds and divisors. Text is exact and validators compute in binary floating point: only what
both see alike can be enforced."""

from __future__ import annotations

from grammar.schema.scope import Scope

_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# Any two decimals of at most this many digits are different doubles, in the same order.
_DIGITS = 15
_MAX_FRACTION_DIGITS = 9
_MAX_DIVISOR = 10_000


def lower(scope: Scope) -> None:
    present = scope.present(_KEYWORDS)
    if scope.types.isdisjoint({"integer", "number"}):
        scope.enforce(*present)
        return
    for keyword in present:
        value = scope.schema[keyword]
        problem = _divisor_problem(value) if keyword == "multipleOf" else _bound_problem(value)
        if problem is None:
            scope.keep(keyword, int(value) if value == int(value) else value)
        else:
            scope.drop(keyword, problem)
    _keep_clear_of_open_bounds(scope)


def _keep_clear_of_open_bounds(scope: Scope) -> None:
    """Limits the fraction digits next to an exclusive bound: 0.99999999999999999 is below 1, but
    the nearest double is 1."""
    bounds = [scope.lowered.get(k) for k in ("exclusiveMinimum", "exclusiveMaximum")]
    magnitudes = [abs(bound) for bound in bounds if bound is not None]
    if not magnitudes or "multipleOf" in scope.lowered or "number" not in scope.types:
        return
    whole_digits = len(str(int(max(magnitudes))))
    digits = max(0, min(_MAX_FRACTION_DIGITS, _DIGITS - whole_digits))
    scope.lowered["multipleOf"] = 10**-digits if digits else 1


def _bound_problem(value: float) -> str | None:
    if abs(value) > 10**_DIGITS:
        return f"a bound of more than {_DIGITS} digits"
    if value != 0 and abs(value) < 10**-_MAX_FRACTION_DIGITS:
        return "a bound too close to 0"
    return None


def _divisor_problem(value: float) -> str | None:
    numerator, denominator = value.as_integer_ratio()
    if max(numerator, denominator) <= _MAX_DIVISOR:
        return None
    if value != int(value):
        return f"{value} is no exact binary fraction, so validators disagree on its multiples"
    return f"a divisor over {_MAX_DIVISOR}"
