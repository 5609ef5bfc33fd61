"""Whole chats: a system prompt or none, tools or none, one to sixteen turns of mixed kinds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from engine.demo.data import (
    arithmetic,
    extraction,
    facts,
    fun,
    greetings,
    knowledge,
    letters,
    lists,
    lookups,
    markdown,
    memory,
    numbers,
    reactions,
    repeating,
    schemas,
    sentiment,
    sequences,
    small_talk,
    stories,
    tools,
)
from engine.demo.data.example import Example, Message, Turn, held_out
from engine.demo.data.text_blocks import phrase_list
from engine.demo.data.words import FIRST_NAMES

FOLLOW_UP = "follow_up"
Source = Callable[[random.Random], list[Turn]]

_SOURCES: dict[str, tuple[Source, float]] = {
    arithmetic.KIND: (arithmetic.turns, 16),
    numbers.KIND: (numbers.turns, 6),
    facts.KIND: (facts.turns, 16),
    knowledge.KIND: (knowledge.turns, 12),
    repeating.REPEAT: (repeating.repeat_turns, 6),
    repeating.REARRANGE: (repeating.rearrange_turns, 4),
    letters.KIND: (letters.turns, 8),
    extraction.KIND: (extraction.turns, 7),
    schemas.KIND: (schemas.turns, 17),
    lists.KIND: (lists.turns, 4),
    stories.KIND: (stories.turns, 3.5),
    sequences.KIND: (sequences.turns, 3.5),
    markdown.KIND: (markdown.turns, 5),
    sentiment.KIND: (sentiment.turns, 1.2),
    greetings.GREETING: (greetings.greeting_turns, 5),
    small_talk.KIND: (small_talk.turns, 4),
    fun.KIND: (fun.turns, 5.5),
    greetings.UNKNOWN: (greetings.unknown_turns, 8),
}
_OWN_SOURCES = {
    memory.KIND: 9.0,
    greetings.ABOUT: 5.0,
    lookups.KIND: 5.0,
    reactions.KIND: 5.0,
    tools.CALL: 60.0,
}

KINDS: tuple[str, ...] = (
    *_SOURCES,
    memory.KIND,
    greetings.ABOUT,
    lookups.KIND,
    reactions.KIND,
    tools.CALL,
    tools.ANSWER,
    FOLLOW_UP,
)
"""What accuracy is measured by. A follow-up only makes sense after the turn before it."""

_SYSTEM_PROMPTS = phrase_list("""
You are a helpful assistant. | You are a helpful assistant. | You are a small demo model.
Answer briefly. | You are a friendly chatbot. Answer in short sentences. | Be concise.
You are a helpful AI assistant that answers questions. | Be polite and helpful.
You are the assistant of the Sluice demo. | Answer the user's questions as well as you can.
You are an assistant with access to tools. | Today is Monday. | You talk to a new user.
""")
_PERSONAS = phrase_list("""
You are {name}. | You are {name}, a helpful assistant. | Your name is {name}.
You are an assistant called {name}. Be kind. | You are {name}, a chatbot that likes short answers.
""")
_HISTORY_LENGTHS = (0, 1, 2, 3, 4, 5)


class Chat:
    """A chat under construction: what the user told so far, the tools offered, the messages."""

    def __init__(self, rng: random.Random, *, with_tools: bool) -> None:
        self.rng = rng
        self.tools = tools.draw_tools(rng) if with_tools else []
        self.told: memory.Told = {}
        self.name = greetings.DEFAULT_NAME
        self.messages: list[Message] = []
        self.system = self._draw_system() if rng.random() < 0.35 else ""
        if self.system:
            self.messages.append({"role": "system", "content": self.system})

    def _draw_system(self) -> str:
        if self.rng.random() < 0.75:
            return self.rng.choice(_SYSTEM_PROMPTS)
        self.name = self.rng.choice(FIRST_NAMES)
        return self.rng.choice(_PERSONAS).replace("{name}", self.name)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in self.tools]

    @property
    def last_answer(self) -> str:
        """What the assistant said last, empty before it said anything."""
        answers = (m for m in reversed(self.messages) if m["role"] == "assistant")
        return str(next(answers, {"content": ""})["content"])

    def segment(self, kind: str) -> tuple[list[Turn], memory.Told]:
        """Turns of one kind that fit here, and what the user will have told after them."""
        told = dict(self.told)
        if kind == memory.KIND:
            return memory.turns(self.rng, told), told
        if kind == greetings.ABOUT:
            return greetings.about_turns(self.rng, self.name), told
        if kind == lookups.KIND:
            return lookups.turns(self.rng, [tool.spec for tool in self.tools]), told
        if kind == reactions.KIND:
            return reactions.turns(self.rng, self.last_answer), told
        if kind == tools.CALL:
            return tools.turns(self.rng, self.tools), told
        return _SOURCES[kind][0](self.rng), told

    def draw_kind(self) -> str:
        weights = {kind: weight for kind, (_, weight) in _SOURCES.items()} | _OWN_SOURCES
        if not self.tools:
            del weights[tools.CALL]
        if not self.last_answer:
            del weights[reactions.KIND]
        if self.told:
            weights[memory.KIND] *= 3
        if self.name != greetings.DEFAULT_NAME:
            weights[greetings.ABOUT] *= 6
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def extend(self) -> None:
        """Adds one segment of the training split."""
        while True:
            segment, told = self.segment(self.draw_kind())
            if not any(held_out(turn.key) for turn in segment):
                break
        self.told = told
        for turn in segment:
            self.messages += [*turn.inputs, turn.output]


def training_example(rng: random.Random) -> Example:
    """A chat none of whose turns is held out. Its kind says little: it may mix many."""
    chat = Chat(rng, with_tools=rng.random() < 0.22)
    length = rng.choices((1, 2, 3, 4, 5, 6), (50, 18, 12, 9, 6, 5))[0]
    if rng.random() < 0.02:
        length = rng.randint(7, 16)
    for _ in range(length):
        chat.extend()
    return Example("chat", chat.messages, lambda answer: True, chat.schemas)


def held_out_example(rng: random.Random, kind: str) -> Example:
    """A chat whose last turn is a held-out one of this kind, at times after turns of training."""
    while True:
        needs_tools = kind in (tools.CALL, tools.ANSWER)
        chat = Chat(rng, with_tools=needs_tools or rng.random() < 0.1)
        for _ in range(rng.choices(_HISTORY_LENGTHS, (60, 14, 10, 7, 5, 4))[0]):
            chat.extend()
        if kind == reactions.KIND and not chat.last_answer:
            chat.extend()
        segment, _ = chat.segment(_source_of(rng, kind))
        for index, turn in enumerate(segment):
            if held_out(turn.key) and _kind_of(turn, index) == kind:
                for earlier in segment[:index]:
                    chat.messages += [*earlier.inputs, earlier.output]
                messages = [*chat.messages, *turn.inputs, turn.output]
                return Example(kind, messages, turn.check, chat.schemas)


def _source_of(rng: random.Random, kind: str) -> str:
    if kind == tools.ANSWER:
        return tools.CALL
    if kind == FOLLOW_UP:
        return rng.choice(
            (
                arithmetic.KIND,
                facts.KIND,
                repeating.REPEAT,
                extraction.KIND,
                lists.KIND,
                stories.KIND,
                fun.KIND,
                knowledge.KIND,
            )
        )
    return kind


def _kind_of(turn: Turn, index: int) -> str:
    follows = index > 0 and turn.kind not in (memory.KIND, tools.CALL, tools.ANSWER)
    return FOLLOW_UP if follows else turn.kind
