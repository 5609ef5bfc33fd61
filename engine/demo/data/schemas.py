"""JSON with any keys: sentences composed of clauses, keys asked for in every way people ask."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.demo.data import facts, knowledge
from engine.demo.data.example import (
    Check,
    JsonAbout,
    JsonEquals,
    Turn,
    fill,
    join_words,
    phrase,
    say,
)
from engine.demo.data.schema_table import PERSON, SUBJECTS, Field, Subject, code, where, who
from engine.demo.data.words import COLOURS, FIRST_NAMES, JOBS, WORDS, any_word, made_up

KIND = "schema"
Values = dict[str, Any]

_ASK_KEYS = (
    "Extract {keys}: {text}",
    "Extract {keys} as JSON: {text}",
    "Extract the {keys}.\n\n{text}",
    "{text} Extract {keys}.",
    "{text}\nReturn {keys} as JSON.",
    "Return JSON with the keys {keys}.\n{text}",
    "Give me a JSON object with {keys} for this text: {text}",
    "From this text get {keys} as JSON: {text}",
    "What are the {keys}? Answer as JSON. {text}",
    "as JSON with keys {keys}: {text}",
    "json ({keys}) {text}",
    "Make a JSON object with {keys} from: {text}",
    "Text: {text}\nKeys: {keys}",
    "Pull out {keys} from the following sentence and answer with JSON.\n{text}",
    "I need {keys} in JSON format. {text}",
    "Write {keys} as JSON. Here is the text: {text}",
)
_ASK_FORM = (
    "Fill in this JSON: {form}\n{text}",
    "{text}\nUse exactly this format: {form}",
    "Extract the data as {form} from: {text}",
    "Return JSON like {form}\n\n{text}",
    "Schema: {form}\nText: {text}",
    "Answer with JSON that follows this schema: {form}\n\n{text}",
    "Extract this schema {form} from the text: {text}",
)
_ASK_FREELY = (
    "Extract the {what}: {text}",
    "Extract the {what} as JSON: {text}",
    "Extract the data: {text}",
    "Extract the information from this text: {text}",
    "Get the {what} from this sentence: {text}",
    "Who or what is this about? Extract the {what}. {text}",
    "Turn this into JSON: {text}",
    "Convert to JSON: {text}",
    "{text} Return JSON.",
    "{text}\nAs JSON, please.",
    "{text} Extract the {what}.",
    "Parse this: {text}",
    "Describe the {what} as JSON: {text}",
    "Make JSON out of this: {text}",
    "Return the {what} as JSON. {text}",
    "Structured data please: {text}",
    "Read this and fill in the {what}: {text}",
)
_SYSTEM = (
    "Answer with JSON only.",
    "You answer only in JSON.",
    "Reply with a JSON object and nothing else.",
    "You extract data from text. Return JSON.",
    "You are an extraction service. Output valid JSON.",
    "Always respond with JSON.",
)
_SYSTEM_KEYS = (
    "Extract {keys} from the user's text. Answer with JSON only.",
    "Answer with a JSON object with the keys {keys}.",
    "You extract {keys}. Return JSON.",
)
_SYSTEM_FORM = (
    "Answer with JSON that matches this schema: {form}",
    "Always answer in this format: {form}",
)
_ASK_WRAPPED = ("{question} Answer as JSON.", "{question} Reply in JSON.", "{question}\nAs JSON.")
_ASK_WRAPPED_AS = (
    '{question} Answer as JSON with the key "{key}".',
    "{question} Return JSON with the key {key}.",
    '{question}\nFormat: {"{key}": ""}',
)
_ASK_ALL = (
    "Extract all people: {text}",
    "Extract all people as JSON: {text}",
    "List the people in this text as JSON: {text}",
    "{text} Return all people as a JSON list.",
)


@dataclass(frozen=True)
class Story:
    """A sentence and everything that can be read from it: each value with its keys."""

    what: str
    text: str
    told: tuple[tuple[Sequence[str], Any], ...]
    missing: tuple[Sequence[str], ...] = ()


def turns(rng: random.Random) -> list[Turn]:
    roll = rng.random()
    if roll < 0.06:
        return [_people(rng)]
    if roll < 0.1:
        return [_answer(rng)]
    story = _pairs(rng) if roll < 0.24 else _composed(rng, _subject(rng))
    if roll < 0.5:
        return [_asked_keys(rng, story)]
    if roll < 0.64:
        return [_asked_form(rng, story)]
    return [_asked_freely(rng, story)]


# --- sentences ---------------------------------------------------------------------------------


def _subject(rng: random.Random) -> Subject:
    return PERSON if rng.random() < 0.45 else rng.choice(SUBJECTS)


def _composed(rng: random.Random, subject: Subject) -> Story:
    """A subject and one to five clauses about it, in one sentence or two, or as a form."""
    name = subject.name.draw(rng)
    count = min(rng.choice((1, 1, 2, 2, 3, 3, 4, 5)), len(subject.fields) - 1)
    *picked, left = rng.sample(subject.fields, count + 1)
    values = [field.draw(rng) for field in picked]
    told = [(subject.name.keys, name)]
    told += [(field.keys, value) for field, value in zip(picked, values, strict=True)]
    if rng.random() < 0.1:
        text = _as_form(rng, told)
    else:
        lead = rng.choice(subject.leads).replace("{v}", name)
        clauses = [_clause(rng, field, value) for field, value in zip(picked, values, strict=True)]
        text = _sentences(rng, lead, subject.pronouns, clauses)
    return Story(rng.choice(subject.words), text, tuple(told), (left.keys,))


def _clause(rng: random.Random, field: Field, value: Any) -> str:
    return fill(rng.choice(field.denials if value is False else field.clauses), {"v": _read(value)})


def _read(value: Any) -> str:
    if isinstance(value, list):
        return join_words(value)
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _sentences(
    rng: random.Random, lead: str, pronouns: Sequence[str], clauses: Sequence[str]
) -> str:
    end = rng.choice((".", ".", ".", ".", ""))
    if len(clauses) > 1 and rng.random() < 0.4:
        cut = rng.randrange(1, len(clauses))
        second = f"{rng.choice(pronouns)} {join_words(clauses[cut:])}"
        return f"{lead} {join_words(clauses[:cut])}. {second}{end}"
    if len(clauses) == 2 and rng.random() < 0.2:
        return f"{lead} {clauses[0]}, {clauses[1]}{end}"
    return f"{lead} {join_words(clauses)}{end}"


def _as_form(rng: random.Random, told: Sequence[tuple[Sequence[str], Any]]) -> str:
    """`Name: Maria, Age: 31`, as it stands on forms."""
    colon, between = rng.choice(((": ", ", "), (": ", "\n"), (" = ", ", "), (" is ", ", ")))
    return between.join(
        f"{keys[0].replace('_', ' ').capitalize()}{colon}{_read(value)}" for keys, value in told
    )


def _pairs(rng: random.Random) -> Story:
    """Keys that mean nothing to the model, so that they have to be copied."""
    keys = list(dict.fromkeys(_any_key(rng) for _ in range(rng.randint(1, 5))))
    values = [_any_value(rng) for _ in keys]
    clauses = [
        f"the {key.replace('_', ' ')} is {_read(value)}"
        for key, value in zip(keys, values, strict=True)
    ]
    told = tuple(((key,), value) for key, value in zip(keys, values, strict=True))
    if rng.random() < 0.4:
        colon, between = rng.choice(((": ", ", "), (": ", "\n"), ("=", " "), (" is ", ", ")))
        text = between.join(f"{keys[0]}{colon}{_read(value)}" for keys, value in told)
    else:
        text = join_words(clauses)
        text = text[0].upper() + text[1:] + "."
    return Story(rng.choice(("data", "fields", "values")), text, told, ((_any_key(rng),),))


def _any_key(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.5:
        return rng.choice(WORDS)
    if roll < 0.75:
        return f"{rng.choice(WORDS)}_{rng.choice(WORDS)}"
    return made_up(rng)


def _any_value(rng: random.Random) -> Any:
    draws = (any_word, who, where, code, lambda rng: rng.randint(0, 9999), any_word)
    value = rng.choice(draws)(rng)
    return int(value) if isinstance(value, str) and value.isdigit() else value


# --- what is asked -----------------------------------------------------------------------------


def _named(rng: random.Random, story: Story) -> Values:
    """Some of what was told under names that an asker may use, at times a key without a value."""
    count = rng.randint(1, min(5, len(story.told)))
    picked = rng.sample(story.told, count)
    if rng.random() < 0.7:
        picked = [pair for pair in story.told if pair in picked]
    values: Values = {}
    for keys, value in picked:
        values.setdefault(_styled(rng, rng.choice(keys) if rng.random() < 0.5 else keys[0]), value)
    if rng.random() < 0.07 and story.missing:
        told = {key for keys, _ in story.told for key in keys}
        key = story.missing[0][0]
        if key not in told:
            values.setdefault(key, None)
    return values


def _styled(rng: random.Random, key: str) -> str:
    roll = rng.random()
    if roll < 0.9:
        return key
    first, *rest = key.split("_")
    if roll < 0.95:
        return first + "".join(word.capitalize() for word in rest)
    return key.capitalize()


def _asked_keys(rng: random.Random, story: Story) -> Turn:
    values = _named(rng, story)
    keys = _key_list(rng, list(values))
    if rng.random() < 0.12:
        return _under_system(rng, rng.choice(_SYSTEM_KEYS), {"keys": keys}, values, story)
    shown, _ = phrase(rng, _ASK_KEYS, keys=keys, text=story.text)
    return _json(shown, values, story)


def _key_list(rng: random.Random, keys: list[str]) -> str:
    roll = rng.random()
    if roll < 0.5:
        return join_words(keys)
    if roll < 0.85:
        return ", ".join(keys)
    quote = rng.choice("\"'`")
    return ", ".join(f"{quote}{key}{quote}" for key in keys)


def _asked_form(rng: random.Random, story: Story) -> Turn:
    values = _named(rng, story)
    if len(values) > 1 and rng.random() < 0.25:
        inner = dict(list(values.items())[: rng.randint(1, len(values))])
        rest = {key: value for key, value in values.items() if key not in inner}
        if story.what not in rest:
            values = {story.what: inner, **rest}
    form = json.dumps(_schema(values) if rng.random() < 0.4 else _empty(values))
    if rng.random() < 0.12:
        return _under_system(rng, rng.choice(_SYSTEM_FORM), {"form": form}, values, story)
    shown, _ = phrase(rng, _ASK_FORM, form=form, text=story.text)
    return _json(shown, values, story)


def _empty(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _empty(item) for key, item in value.items()}
    if isinstance(value, bool):
        return False
    return [] if isinstance(value, list) else 0 if isinstance(value, int | float) else ""


def _schema(value: Any) -> Any:
    if isinstance(value, Mapping):
        inner = {key: _schema(item) for key, item in value.items()}
        return {"type": "object", "properties": inner, "required": list(value)}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, list):
        return {"type": "array", "items": {"type": "string"}}
    number = "integer" if isinstance(value, int) else "number"
    return {"type": number if isinstance(value, int | float) else "string"}


def _asked_freely(rng: random.Random, story: Story) -> Turn:
    """No key is named: mostly the plain keys of all that was told, at times any keys that fit.

    Where a grammar forces the keys they are none that the prompt names: their values must still
    be right, whatever they are called and in whatever order they come.
    """
    values = {keys[0]: value for keys, value in story.told}
    if rng.random() < 0.4:
        values = _named(rng, replace(story, missing=()))
    allowed = {key: value for keys, value in reversed(story.told) for key in keys}
    styled = {_camel(key): value for key, value in allowed.items()}
    capital = {key.capitalize(): value for key, value in allowed.items()}
    check = JsonAbout(styled | capital | allowed | values)
    if rng.random() < 0.15:
        system = {"role": "system", "content": rng.choice(_SYSTEM)}
        text = story.text if rng.random() < 0.7 else _freely(rng, story)
        return replace(_json(text, values, story, check), inputs=(system, _user(text)))
    return _json(_freely(rng, story), values, story, check)


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _freely(rng: random.Random, story: Story) -> str:
    return phrase(rng, _ASK_FREELY, what=story.what, text=story.text)[0]


def _people(rng: random.Random) -> Turn:
    """Several of one kind: a list of objects."""
    ages = {name: rng.randint(1, 99) for name in rng.sample(FIRST_NAMES, rng.randint(2, 4))}
    clauses, people = [], []
    key, draw, clause = rng.choice(
        (
            ("age", lambda: rng.randint(1, 99), "{n} is {v} years old"),
            ("job", lambda: rng.choice(JOBS), "{n} is a {v}"),
            ("city", lambda: where(rng), "{n} lives in {v}"),
            ("color", lambda: rng.choice(COLOURS), "{n} likes {v}"),
        )
    )
    for name in ages:
        value = draw()
        clauses.append(fill(clause, {"n": name, "v": value}))
        people.append({"name": name, key: value})
    text = join_words(clauses) + "."
    shown, _ = phrase(rng, _ASK_ALL, text=text)
    story = Story("people", text, ())
    return _json(shown, {"people": people}, story)


def _answer(rng: random.Random) -> Turn:
    """A question about anything, its answer wrapped."""
    asked = rng.choice((facts.turns, knowledge.turns))(rng)[0]
    question, answer = asked.inputs[0]["content"], asked.output["content"]
    key = rng.choice(("answer", "answer", "answer", "result", "response", "text"))
    template = rng.choice(_ASK_WRAPPED if key == "answer" else _ASK_WRAPPED_AS)
    prompt = fill(template, {"question": question, "key": key})
    value = {key: answer}
    return say(
        KIND, prompt, json.dumps(value, ensure_ascii=False), JsonEquals(value), key=asked.key
    )


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _under_system(
    rng: random.Random, template: str, filling: Values, values: Values, story: Story
) -> Turn:
    """The system prompt says what is wanted, the user only gives the text."""
    system = {"role": "system", "content": fill(template, filling)}
    return replace(_json(story.text, values, story), inputs=(system, _user(story.text)))


def _json(prompt: str, values: Values, story: Story, check: Check | None = None) -> Turn:
    answer = json.dumps(values, ensure_ascii=False)
    return say(KIND, prompt, answer, check or JsonEquals(values), key=story.text)
