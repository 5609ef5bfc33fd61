"""Jokes, riddles, facts and kind words, as tables."""

from __future__ import annotations

from engine.demo.data.text_blocks import phrase_list, rows

JOKES = phrase_list("""
Why did the computer go to the doctor? Because it had a virus!
Why do programmers prefer dark mode? Because light attracts bugs!
Why was the maths book sad? Because it had too many problems!
What do you call a bear without teeth? A gummy bear!
Why did the tomato turn red? Because it saw the salad dressing!
What do you call cheese that is not yours? Nacho cheese!
Why did the bicycle fall over? Because it was two-tired!
How do you organise a party in space? You planet!
Why did the scarecrow win a prize? He was outstanding in his field!
What do you call a fish without eyes? A fsh!
Why can't a nose be 12 inches long? Because then it would be a foot!
What is brown and sticky? A stick!
Why did the cookie go to the doctor? Because it felt crummy!
What do you get if you cross a snowman and a dog? Frostbite!
Why are ghosts bad liars? Because you can see right through them!
What do you call a sleeping bull? A bulldozer!
Why did the student eat his homework? The teacher said it was a piece of cake!
What has four wheels and flies? A garbage truck!
Why was six afraid of seven? Because seven ate nine!
What did the ocean say to the beach? Nothing, it just waved!
Why do bees have sticky hair? Because they use honeycombs!
What do you call a dog magician? A labracadabrador!
Why did the golfer bring two pairs of trousers? In case he got a hole in one!
How does the moon cut its hair? Eclipse it!
What is a cat's favourite colour? Purr-ple!
What do you call a lazy kangaroo? A pouch potato!
Why did the banana go to the doctor? It was not peeling well!
How do cows stay up to date? They read the moos-paper!
What kind of music do planets like? Neptunes!
Why did the robot go on holiday? To recharge its batteries!
""")

# riddle | answer
RIDDLES = rows("""
What has hands but cannot clap?|a clock
What has keys but opens no door?|a piano
What gets wetter the more it dries?|a towel
What has a neck but no head?|a bottle
What has teeth but cannot bite?|a comb
What goes up but never comes down?|your age
What has one eye but cannot see?|a needle
What can you catch but not throw?|a cold
What has many leaves but is not a tree?|a book
What is full of holes but still holds water?|a sponge
What runs but never walks?|a river
What has a head and a tail but no body?|a coin
What belongs to you but is used more by others?|your name
What has legs but cannot walk?|a table
""")

FACTS = phrase_list("""
Honey never spoils: pots that are thousands of years old can still be eaten.
An octopus has three hearts and blue blood.
Bananas are berries, but strawberries are not.
A day on Venus is longer than a year on Venus.
Sharks are older than trees.
A group of flamingos is called a flamboyance.
The heart of a blue whale is about as big as a small car.
Water can boil and freeze at the same time, at its triple point.
Sea otters hold hands while they sleep.
The Eiffel Tower grows by some centimetres in summer, because heat expands iron.
Cows have best friends.
A bolt of lightning is hotter than the surface of the sun.
Wombats make droppings in the shape of cubes.
Butterflies taste with their feet.
The shortest war lasted less than an hour.
Hummingbirds can fly backwards.
Some turtles can breathe through their rear end.
There are more stars in the universe than grains of sand on all beaches of the Earth.
Light from the sun takes about eight minutes to reach us.
The dot over the letter i is called a tittle.
""")

COMPLIMENTS = phrase_list("""
You ask wonderful questions! | You have great taste in chat partners! | You are kinder than most!
Your curiosity is a gift! | You make this chat brighter! | You type like a poet!
The world is better with you in it! | You are doing better than you think!
""")

QUOTES = phrase_list("""
Every long road begins with a small step. | A good day begins with a good thought.
Small steps are still steps. | Be kind: everybody is carrying something.
Mistakes are how we learn to walk. | A calm sea never made a good sailor.
What you do today, tomorrow will thank you for.
""")

# Lines about a topic {x}; a haiku's have about 5, 7 and 5 syllables.
HAIKU = (
    phrase_list("""
    Quiet {x} at dawn | I dream of {x} | A touch of {x} now | The {x} is waiting
    Soft light on the {x}
    """),
    phrase_list("""
    The world is holding its breath | A gentle wind passes by | Slow clouds wander far away
    The morning opens its eyes | A small bird begins to sing
    """),
    phrase_list("""
    Everything is still. | And then it is gone. | My heart is at home. | The day has begun.
    Silence falls like snow.
    """),
)
POEM = (
    phrase_list("""
    I sat beneath the evening sky, | The morning came without a sound,
    One day the wind came passing by, | I walked along the river shore,
    """),
    (
        ("and thought of {x}, and wondered why.", "and whispered {x}, a soft goodbye."),
        ("and there was {x}, all around.", "and {x} was all that I had found."),
        ("it sang of {x}, wild and high.", "with {x} in a lullaby."),
        ("and dreamed of {x}, nothing more.", "and {x} was there as before."),
    ),
    phrase_list("""
    It made me smile, it made me stay, | It was a gift, it was a song,
    The stars came out to hear it too, | I kept it with me, safe and near,
    """),
    (
        ("and stayed with me the whole long day.", "and would not ever go away."),
        ("and in my heart it will belong.", "and kept me company so long."),
        ("and all the world was fresh and new.", "and in the grass there shone the dew."),
        ("and carried it from year to year.", "and never had a thing to fear."),
    ),
)
