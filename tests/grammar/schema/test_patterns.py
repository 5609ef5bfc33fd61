from __future__ import annotations

import json
import re
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from grammar.schema import ecma
from grammar.schema.patterns import MAX_EXPANDED_SIZE, Pattern, PatternError
from tests.grammar.schema.rust import rust_matches

# Characters on which the dialects disagree, and their neighbours.
CHARS = (
    'aAzZ_09-.^$ \t\n\r\x0b\x0c\x1c\x1f\x85\xa0é日١²\u0300\u2028\u3000\ufeff\U0001f600"\\\x7f\x01/'
)


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        ("foo", ["foo", "xfooy", "a\nfoo"], ["fo"]),
        ("^foo$", ["foo"], ["xfoo", "foox", "foo\n"]),
        ("^foo", ["foo", "foox\n"], ["xfoo"]),
        ("foo$", ["foo", "\nfoo"], ["foox"]),
        ("", ["", "a\n"], []),
        ("^$", [""], ["a", "\n"]),
        ("^a|b$", ["a", "ax", "xb"], ["xa", "bx"]),
        ("(^a|b)c", ["ac", "acx", "xbc"], ["xac", "b"]),
        ("c(a$|b)", ["ca", "xca", "cbx"], ["cax"]),
        ("(^a|b)x(c$|d)", ["axc", "ybxc", "axdz"], ["yaxc", "axcz"]),
        ("^(a|b)*$", ["", "abba"], ["c"]),
        (r"^(?:ab){2,3}$", ["abab", "ababab"], ["ab", "abababab"]),
        ("^a{2,}$", ["aa", "aaaaa"], ["a"]),
        ("^a{2}?b+?c*?$", ["aab", "aabbcc"], ["ab"]),
        (r"^\d+$", ["12"], ["١", "a", ""]),
        (r"^\D$", ["a", "١"], ["1"]),
        (r"^\w$", ["a", "_"], ["-", "é"]),
        (r"^\W$", ["-", " ", "é", "²"], ["a"]),
        (r"^\s$", [" ", "\t", "\u3000", "\ufeff"], ["a", "\x1c", "\x85"]),
        (r"^\S$", ["a", "é", "\x1c", "\x85"], [" ", "\ufeff"]),
        (r"^.$", ["a", "é"], ["\n", "\r", "\u2028"]),
        (r"^[^a]$", ["b", "\n", '"'], ["a"]),
        (r"^[^\d\s]$", ["a", "١"], ["1", " ", "\ufeff"]),
        (r"^[\w.-]+@[\w-]+\.[a-z]{2,}$", ["a.b@c.de"], ["a@b", "@c.de"]),
        (r"^[a\-z\]]$", ["a", "-", "]", "z"], ["b"]),
        (r"^[\b\n]$", ["\b", "\n"], ["b"]),
        (r"^\x41\u0042\t\/\-\.$", ["AB\t/-."], ["AB"]),
        ("^{a}]$", ["{a}]"], ["a"]),
        ("^[&~#\\[-]$", ["&", "[", "-"], ["\\"]),
        ("^日+é$", ["日日é"], ["é"]),
        (r"^\p{L}+$", ["é日a"], ["a1", ""]),
        (r"^\P{Lu}$", ["a", "1"], ["A", "É"]),
        (r"^[\p{Nd}\p{sc=Greek}-]+$", ["1-λ"], ["l"]),
        (r"^[^\p{Letter}\P{gc=Lu}]$", [], ["A", "a", "1", "\u0378"]),
        (r"^[^\P{General_Category=Uppercase_Letter}]$", ["A"], ["a", "1"]),
        (r"^(?<year>\d{4})$", ["2026"], ["1"]),
        ("^(?!foo)[a-z]+$", ["fo", "xfoo"], ["foo", "foox"]),
        ("^(?=.*[A-Z])(?=.*\\d).{3,5}$", ["aA1", "1aaA"], ["aaa", "A1", "A1aaaa"]),
        ("a(?=b)", ["ab", "xab"], ["a", "ac"]),
        ("a(?!b)", ["a", "ac", "aba"], ["ab"]),
        ("^(?!.*(?:ab|$))", [], ["", "ab", "c"]),
        ("(?:^|/)a(?:$|/)", ["a", "x/a", "a/x"], ["ba", "ab"]),
        ("^(?:[a-z]*($|/))*$", ["", "a/b", "a/", "a/b/"], ["A"]),
        ("x(?:a$)?", ["x", "xb", "xa"], ["a"]),
        ("a$b", [], ["ab", "a"]),
        ("a^b", [], ["ab"]),
        ("$^", [""], ["a"]),
        ("^(^a)b", ["ab"], ["aab"]),
        (r"^\u{1f600}\cJ$", ["\U0001f600\n"], ["u"]),
    ],
)
def test_patterns_mean_what_they_say(source: str, good: list[str], bad: list[str]) -> None:
    expressions = Pattern.parse(source).full
    for text in good:
        assert all(rust_matches(e, text) for e in expressions), text
        assert ecma.matches(source, text), text
    for text in bad:
        assert not all(rust_matches(e, text) for e in expressions), text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("(?<=a)b", "look-behind"),
        ("(?P<n>a)", "look-behind and flags"),
        ("(?i:a)", "flags"),
        ("(?>a)", "look-behind and flags"),
        (r"a\b", "word boundary"),
        (r"(a)\1", "back-reference"),
        (r"\07", "back-reference"),
        (r"\p{Emoji}", "the property 'Emoji' at position 0"),
        (r"[\P{Any}]", "the property 'Any'"),
        (r"\pL", "not a regular expression"),
        (r"(?<n>a)\k<n>", "the escape"),
        ("a(", "not a regular expression"),
        ("a++", "repeated repetition"),
        ("a{,3}", r"\{0,n\}"),
        ("(^a)*", "repeated assertion"),
        ("(a(?=b))*", "repeated assertion"),
        ("^(?!.*a.{20}$)", "take too much"),
        ("[]a]", r"\]"),
        ("[a-\\d]", "bad"),
        ("\\ud83d", "surrogate"),
        (r"\A", "the escape"),
        ("(" * 5000 + ")" * 5000, "nested too deeply|not a regular"),
        ("([a-z]{1,100}){1,100}", "expand to 10000"),
        (f"a{{{MAX_EXPANDED_SIZE + 1}}}", "expand to"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_the_reason(source: str, message: str) -> None:
    with pytest.raises(PatternError, match=message):
        Pattern.parse(source)


@pytest.mark.parametrize(
    ("source", "prefix"),
    [("^ab[c]", "abc"), ("^ab[cd]", "ab"), ("ab", ""), ("^a*b", ""), ("^a|b", ""), ("^x-", "x-")],
)
def test_prefix(source: str, prefix: str) -> None:
    assert Pattern.parse(source).prefix == prefix


@pytest.mark.parametrize("source", ['"', r"\\", r"\n", r"^\p{L}$", "^(?!a)"])
def test_no_json_form_where_it_would_take_an_escape(source: str) -> None:
    assert Pattern.parse(source).json is None


ATOMS = ["a", "Z", "0", "_", "é", " ", "-", ".", r"\.", r"\/", r"\n", "[a-z]", "[^a-z]"]
ATOMS += [r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"[\d_]", r"[^\d_]", r"[^\w]", r"[^\s]"]
ATOMS += [r"[\W\d]", r"[^\D]", r"[^\S]", r"\p{L}", r"\P{N}", r"[^\p{Ll}]", r"[\P{L}_]"]
atoms = st.sampled_from(ATOMS)


def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map("(?:{})".format)
    quantified = st.tuples(group, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}"]))
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join).map("({})".format),
        quantified.map("".join),
    )


bodies = st.recursive(atoms, combine, max_leaves=6)
patterns = st.tuples(st.sampled_from(["^", ""]), bodies, st.sampled_from(["$", ""])).map("".join)


@given(patterns, st.lists(st.text(CHARS, max_size=5), max_size=12))
def test_what_is_generated_is_what_is_checked(source: str, texts: list[str]) -> None:
    pattern = Pattern.parse(source)
    for text in texts:
        found = all(rust_matches(each, text) for each in pattern.full)
        if r"\p" in source.lower():  # of which Python and Rust have different versions
            assert ecma.matches(source, text) or not found, text
        else:
            assert ecma.matches(source, text) == found, text


ASSERTIONS = ["^", "$", "(?=a)", "(?!a)", "(?=.*[0-9])", "(?!.*b$)", "(?:^|-)", "(?:$|-)", "(?!^a)"]
PARTS = ["a", "b", "[ab0]", "a*", "[^a]+", "(?:a|ab)?", "b{0,2}", ".*", r"\d?", "(?:ab|$)*"]


@given(
    st.lists(st.sampled_from(ASSERTIONS + PARTS), min_size=1, max_size=5).map("".join),
    st.lists(st.text("ab0-\n", max_size=5), max_size=25),
)
def test_assertions_mean_what_python_makes_of_them(source: str, texts: list[str]) -> None:
    try:
        pattern = Pattern.parse(source)
    except PatternError:  # what repeats an assertion
        assume(False)
    expression = re.compile(pattern.language.regex())
    conjuncts = [re.compile(each) for each in pattern.full]
    for text in texts:
        expected = ecma.matches(source, text)
        assert (expression.fullmatch(text) is not None) == expected, text
        assert all(each.fullmatch(text) for each in conjuncts) == expected, text
        assert (text in pattern.language) == expected, text


@given(patterns, st.lists(st.text(CHARS, max_size=5), max_size=12))
def test_the_json_form_matches_the_text_in_the_document(source: str, texts: list[str]) -> None:
    pattern = Pattern.parse(source)
    if pattern.json is None:
        return
    for text in texts:
        quoted = json.dumps(text, ensure_ascii=False)[1:-1]
        if rust_matches(pattern.json, quoted):
            assert quoted == text
            assert all(rust_matches(each, text) for each in pattern.full)


def test_deep_nesting_does_not_exhaust_the_stack() -> None:
    limit = sys.getrecursionlimit()
    with pytest.raises(PatternError):
        Pattern.parse("(?:" * limit + "a" + ")" * limit)


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ("", 0),
        ("^a$", 1),
        ("a.[b-d]", 3),
        (r"\d\p{L}\n", 3),
        ("(ab|cde)", 5),
        ("(ab){3}", 6),
        ("(ab){3,7}", 14),
        ("(ab){3,}", 6),
        ("(ab){0}", 2),
        ("(ab)*", 2),
        ("(){9}", 9),
    ],
)
def test_size_is_that_of_all_repetitions_written_out(source: str, size: int) -> None:
    assert Pattern.parse(source).size == size


@pytest.mark.parametrize(
    ("source", "full", "json"),
    [
        ("^[^a]$", "[^a]", r'[^\x00-\x1f"\\a\x7f]'),
        ("^[a-cé]$", "[a-cé]", "[a-cé]"),
        ('^["]$', '"', None),
        (r"^[\wé]$", "[0-9A-Z_a-zé]", "[0-9A-Z_a-zé]"),
        (r"^[^\d]$", r"[^0-9]", r'[^\x00-\x1f"0-9\\\x7f]'),
    ],
)
def test_classes_are_written_in_one_way(source: str, full: str, json: str | None) -> None:
    pattern = Pattern.parse(source)
    assert (pattern.full, pattern.json) == ((full,), json)
