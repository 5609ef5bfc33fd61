"""Bounds and divisors of numbers. Text is exact, but validators compute in binary floating point,
so only those can be enforced for which both agree."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

from grammar.schema.scope import Scope

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
KEYWORDS = (*_BOUNDS, "multipleOf")
# Any two decimals of at most this many digits are different doubles, in the same order.
_DIGITS = 15
# Whole numbers below it are exact as doubles, and rounding never exceeds it.
_MAX_BOUND = 2**53 - 1
_MAX_FRACTION_DIGITS = 9
# An engine walks an automaton of as many states as the divisor has units of its last digit, or as
# the least common multiple of all the divisors that it merges has.
_MAX_STATES = 10_000
_MAX_ALL_STATES = 50_000


def lower(scope: Scope) -> None:
    present = scope.present(KEYWORDS)
    if scope.types.isdisjoint({"integer", "number"}):
        scope.enforce(*present)
        return
    for keyword in scope.present(_BOUNDS):
        problem = _bound_problem(keyword, scope.schema[keyword])
        if problem is None:
            _keep_bound(scope, keyword)
            scope.enforce(keyword)
        else:
            scope.drop(keyword, problem)
    if "multipleOf" in present:
        _lower_divisor(scope)


def _keep_bound(scope: Scope, keyword: str) -> None:
    value = scope.schema[keyword]
    if abs(value) > _MAX_BOUND:
        # The wide side of a range ends where not every integer is a double.
        keyword = keyword.replace("exclusiveM", "m")
        _narrow(scope, keyword, _MAX_BOUND if keyword == "maximum" else -_MAX_BOUND)
        return
    if keyword in ("minimum", "maximum") or "number" not in scope.types:
        _narrow(scope, keyword, value)
    elif keyword == "exclusiveMinimum":
        _narrow(scope, "minimum", _beside(value, 1))
    else:
        _narrow(scope, "maximum", _beside(value, -1))


def _narrow(scope: Scope, keyword: str, value: float) -> None:
    tighter = min if keyword.lower().endswith("maximum") else max
    value = tighter(value, scope.lowered.get(keyword, value))
    scope.lowered[keyword] = int(value) if value == int(value) else value


def _beside(bound: float, direction: int) -> float:
    """The nearest decimal above or below an exclusive bound that is surely another double:
    0.99999999999999999 is below 1, but the double nearest to it is 1."""
    whole_digits = len(str(int(abs(bound))))
    digits = max(0, min(_MAX_FRACTION_DIGITS, _DIGITS - whole_digits))
    return float(Decimal(repr(bound)) + direction * Decimal(10) ** -digits)


def _bound_problem(keyword: str, value: float) -> str | None:
    is_wide = (value > 0) == keyword.lower().endswith("maximum")
    if abs(value) > _MAX_BOUND and not is_wide:
        return f"a bound beyond {_MAX_BOUND}, where not every integer is a double"
    if value != 0 and abs(value) < 10**-_MAX_FRACTION_DIGITS:
        return "a bound too close to 0"
    return None


def _lower_divisor(scope: Scope) -> None:
    value = scope.schema["multipleOf"]
    if Fraction(value) != Fraction(repr(value)):
        reason = f"{value} is no exact binary fraction, so validators disagree on its multiples"
        scope.drop("multipleOf", reason)
        return
    divisors = [*scope.lowering.divisors, Fraction(value)]
    total = sum(num_states([divisor]) for divisor in set(divisors))
    if num_states([Fraction(value)]) > _MAX_STATES:
        scope.drop("multipleOf", f"a divisor of more than {_MAX_STATES} units")
    elif total > _MAX_ALL_STATES:
        scope.drop("multipleOf", f"with the other divisors more than {_MAX_ALL_STATES} units")
    elif scope.document.merges and num_states(divisors) > _MAX_STATES:
        scope.drop("multipleOf", "too large a common multiple with other divisors")
    else:
        scope.lowering.divisors = divisors
        numerator, denominator = Fraction(value).as_integer_ratio()
        if numerator > 1 < denominator:
            # A validator reads a longer number as the double beside it, which may be no multiple.
            most = _MAX_BOUND // denominator
            _narrow(scope, "maximum", most)
            _narrow(scope, "minimum", -most)
        scope.keep("multipleOf", int(value) if value == int(value) else value)


def num_states(divisors: list[Fraction]) -> int:
    """The least common multiple in units of the finest last decimal digit."""
    # Binary fractions of 2**n take n decimals.
    decimals = max(divisor.denominator.bit_length() - 1 for divisor in divisors)
    return math.lcm(*(int(divisor * 10**decimals) for divisor in divisors))
