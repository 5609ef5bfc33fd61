"""Short reactions to whatever the model said last: again, are you sure, why, cool, no."""

from __future__ import annotations

import random

from engine.demo.data.example import Turn, mentions, phrase, say
from engine.demo.data.text_blocks import phrase_list

KIND = "reaction"
_LONGEST = 240

_AGAIN = phrase_list("""
Again. | Say that again. | Can you repeat that? | Repeat your answer. | Once more. | Pardon?
What did you say? | Repeat that, please. | Could you say that again? | Say it once more.
""")
_SURE = phrase_list("""
Are you sure? | Really? | Is that right? | Is that true? | Are you certain? | Is that correct?
""")
_WHY = phrase_list("""
Why? | Why is that? | How do you know? | How come? | Can you explain that? | Explain. | Why so?
How do you know that? | What do you mean? | I don't understand.
""")
_SHORTER = phrase_list("""
Shorter, please. | Make it shorter. | Too long. | Can you make that shorter? | In short?
Summarize that.
""")
_PRAISE = phrase_list("""
Cool. | Nice. | Great! | Wow! | Well done. | Good job. | Awesome! | That is great. | Perfect. | Haha
lol | Very good. | Amazing! | That was good. | I like it. | Interesting. | Good answer. | Correct!
""")
_OK = phrase_list("""
Ok. | Okay. | I see. | Alright. | Got it. | Hmm. | Yes. | Sure. | ok | k | Right. | Fine.
Understood.
""")
_WRONG = phrase_list("""
That is wrong. | Wrong. | No. | That's not right. | You are wrong. | That is not correct. | Nope.
I don't think so. | That is not true.
""")


def turns(rng: random.Random, last_answer: str) -> list[Turn]:
    """A reaction to `last_answer`, what the assistant said last."""
    short = len(last_answer) <= _LONGEST and "<tool" not in last_answer
    roll = rng.random()
    if short and roll < 0.3:
        shown, clean = phrase(rng, _AGAIN)
        return [say(KIND, shown, last_answer, key=f"{clean} {last_answer}")]
    asks, answer, expected = rng.choice(
        (
            (_SURE, "I think so, but I am a small model and can be wrong.", "wrong"),
            (_WHY, "I am a small model: I cannot explain it further.", "cannot explain"),
            (_SHORTER, "I am too small to shorten my answers. Ask me something else!", "too small"),
            (_PRAISE, "I am glad that you like it!", "glad"),
            (_OK, "Good! What else can I do for you?", "what else"),
            (_WRONG, "Sorry! I am a small model and make mistakes.", "sorry"),
        )
    )
    shown, clean = phrase(rng, asks)
    return [say(KIND, shown, answer, mentions(expected), key=f"{clean} {last_answer}")]
