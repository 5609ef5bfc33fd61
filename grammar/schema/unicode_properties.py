"""The Unicode properties that can be enforced in patterns, by their names in ECMA-262.

Their characters are the same in every engine, except for unassigned ones, and for one that has
changed its category (U+0295).
"""

from __future__ import annotations

_CATEGORIES = {
    "L": "Letter",
    "LC": "Cased_Letter",
    "Lu": "Uppercase_Letter",
    "Ll": "Lowercase_Letter",
    "Lt": "Titlecase_Letter",
    "Lm": "Modifier_Letter",
    "Lo": "Other_Letter",
    "M": "Mark",
    "Mn": "Nonspacing_Mark",
    "Mc": "Spacing_Mark",
    "Me": "Enclosing_Mark",
    "N": "Number",
    "Nd": "Decimal_Number",
    "Nl": "Letter_Number",
    "No": "Other_Number",
    "P": "Punctuation",
    "Pc": "Connector_Punctuation",
    "Pd": "Dash_Punctuation",
    "Ps": "Open_Punctuation",
    "Pe": "Close_Punctuation",
    "Pi": "Initial_Punctuation",
    "Pf": "Final_Punctuation",
    "Po": "Other_Punctuation",
    "S": "Symbol",
    "Sm": "Math_Symbol",
    "Sc": "Currency_Symbol",
    "Sk": "Modifier_Symbol",
    "So": "Other_Symbol",
    "Z": "Separator",
    "Zs": "Space_Separator",
    "Zl": "Line_Separator",
    "Zp": "Paragraph_Separator",
}
_SCRIPTS = {
    "Arab": "Arabic",
    "Armn": "Armenian",
    "Beng": "Bengali",
    "Cyrl": "Cyrillic",
    "Deva": "Devanagari",
    "Geor": "Georgian",
    "Grek": "Greek",
    "Hang": "Hangul",
    "Hani": "Han",
    "Hebr": "Hebrew",
    "Hira": "Hiragana",
    "Kana": "Katakana",
    "Latn": "Latin",
    "Taml": "Tamil",
    "Thai": "Thai",
}

NAMES = frozenset(
    f"{prefix}{name}"
    for prefixes, names in (
        (("", "gc=", "General_Category="), _CATEGORIES),
        (("sc=", "Script="), _SCRIPTS),
    )
    for prefix in prefixes
    for name in (*names, *names.values())
)
"""The names as they are written between the braces."""
