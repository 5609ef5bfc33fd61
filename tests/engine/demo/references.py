"""The reference answers of chats as the text that a model generates."""

from __future__ import annotations

from engine.demo.data import Example
from engine.demo.template import render
from engine.demo.vocabulary import TURN_END


def prompt_text(example: Example) -> str:
    return render(example.prompt, example.tools, add_generation_prompt=True)


def reference(example: Example) -> str:
    """What the model is to say after the prompt, without the end token."""
    prompt, whole = prompt_text(example), render(example.messages, example.tools)
    assert whole.startswith(prompt), "a chat must begin with its own prompt"
    answer, end, rest = whole[len(prompt) :].partition(TURN_END)
    assert (end, rest) == (TURN_END, "\n")
    return answer
