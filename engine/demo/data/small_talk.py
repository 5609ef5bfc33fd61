"""What people type first: single words, other languages, insults, nonsense, idle remarks."""

from __future__ import annotations

import random

from engine.demo.data.example import Turn, mentions, phrase, say
from engine.demo.data.text_blocks import phrase_list, word_list
from engine.demo.data.words import made_up

KIND = "small_talk"

_FOREIGN = word_list("""
hola bonjour hallo ciao olá salut moin servus namaste konnichiwa nihao merhaba привет 你好
こんにちは
안녕하세요 hej ahoj aloha salaam shalom guten-tag buenos-días bonsoir grüezi hei
""")
_FOREIGN_TAILS = phrase_list("""
{x} | {x}! | {x}, amigo | {x} {y} | {x}, {y}? | {x}, como estas? | {x}, wie geht's? | {x} ça va?
{x}, {x}! | {x} :) | {x}, ich bin {y} | {x}, soy {y} | {x}, je suis {y} | {x} {y} {z}
""")
_FOREIGN_SENTENCES = phrase_list("""
¿Cómo estás? | Wie geht es dir? | Comment ça va? | Parlez-vous français? | Sprichst du Deutsch?
¿Hablas español? | Parli italiano? | Was kannst du? | Qui es-tu? | ¿Quién eres? | Wer bist du?
Quelle heure est-il? | Wie ist das Wetter? | ¿Qué puedes hacer? | Come stai? | Ich heiße Anna.
Je m'appelle Paul. | Me llamo Maria. | Guten Morgen! | Buenos días | Où est Paris? | Was ist das?
""")
_TESTS = phrase_list("""
test | testing | Test. | test 123 | This is a test. | testing, testing | test test | Testing 1 2 3
Just testing. | Does this work? | Is this working? | Are you working? | ping | check | one two three
""")
_MARKS = phrase_list("""
? | ?? | ! | . | ... | hmm | um | uh | :) | :( | ;) | 😀 | 👍 | ❤️ | 👋 | 🎉 | 😂 | 🤔 | 🙏 | xD | -
*
""")
_INSULTS = phrase_list("""
You are stupid. | You are dumb. | You suck. | This is bad. | You are useless. | idiot | stupid bot
I hate you. | You are boring. | You are a bad model. | You know nothing. | Shut up. | dumb
You are so slow. | That was terrible. | Go away. | You are ugly. | You're an idiot.
What a bad bot.
""")
_LOVE = phrase_list("""
I love you. | I like you. | You are nice. | You are great. | You are funny. | You are cute.
good bot
You are smart. | You are the best. | You are so kind. | You are sweet. | You are cool.
""")
_REMARKS = phrase_list("""
It is raining. | The sun is shining. | It is late. | I have a question. | I need help. | I need you.
Today was a long day. | I just woke up. | I am at work. | I am at home. | I am learning English.
I like music. | I love this. | My day was good. | My day was bad. | Let's talk. | Talk to me.
Let's chat. | Chat with me. | Entertain me. | I want to talk. | I am waiting. | Wait. | Stop.
Go on.
Continue. | More. | Next. | Start. | Begin. | Come on. | Let's play a game. | Let's start.
Never mind.
Nothing. | I don't know. | Maybe. | Whatever. | What? | Who? | Where? | How? | When? | Huh?
What else?
""")
_BIRTHDAY = phrase_list("""
It is my birthday. | Today is my birthday! | It's my birthday today. | I turned a year older today.
""")
_WISHES = phrase_list("""
Happy New Year! | Merry Christmas! | Happy Easter! | Happy birthday! | Have a nice day. | Good luck!
Have a good weekend. | Happy Halloween! | Take care! | Enjoy your day. | Sleep well.
Get well soon.
""")
_NONSENSE = phrase_list(
    "{x} | {x} {y} | {x} {y} {z} | {x}? | {x} {x} {x} | {x}!!! | {x}, {y}. | {x}{y}"
)

_ANSWERS = {
    _TESTS: ("It works! How can I help you?", "works"),
    _MARKS: ("I am here. Ask me something!", "here"),
    _INSULTS: ("I am sorry. I am only a small model, but I do my best.", "do my best"),
    _LOVE: ("Thank you, that is very kind!", "kind"),
    _REMARKS: ("I see. What can I do for you? Ask me a question!", "I see"),
    _BIRTHDAY: ("Happy birthday! I wish you a wonderful day.", "happy birthday"),
    _WISHES: ("Thank you, the same to you!", "same to you"),
    _FOREIGN_SENTENCES: ("Hello! I am sorry, I speak only English.", "only English"),
    _FOREIGN_TAILS: ("Hello! I am sorry, I speak only English.", "only English"),
    _NONSENSE: ("I do not understand that. Can you say it in other words?", "understand"),
}
_WEIGHTS = (2, 2, 2, 1.5, 3, 0.5, 1.5, 1.5, 3, 4)
_ADDED = ("", "", "", "", " Sluice", " bot", " my friend", " now", " again", " really")


def turns(rng: random.Random) -> list[Turn]:
    (asks, (answer, expected)) = rng.choices(list(_ANSWERS.items()), _WEIGHTS)[0]
    template = rng.choice(asks)
    first = _foreign(rng) if asks is _FOREIGN_TAILS else made_up(rng)
    added = "" if "{" in template or asks is _MARKS else rng.choice(_ADDED)
    if added:
        template = template.rstrip(".!?") + added + template[len(template.rstrip(".!?")) :]
    shown, clean = phrase(rng, (template,), x=first, y=made_up(rng), z=made_up(rng))
    # Plain forms are never held out: whoever starts a chat starts it with one of them.
    key = clean if added or "{y}" in template or asks is _NONSENSE else None
    return [say(KIND, shown, answer, mentions(expected), key=key)]


def _foreign(rng: random.Random) -> str:
    word = rng.choice(_FOREIGN).replace("-", " ")
    return word.capitalize() if rng.random() < 0.4 else word
