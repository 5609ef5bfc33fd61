"""The vocabulary that the other kinds draw from: names, places, things, words to repeat."""

from __future__ import annotations

import random

from engine.demo.data.text_blocks import phrase_list, word_list

FIRST_NAMES = word_list("""
Ada Adam Agnes Aiko Alan Alice Amara Amir Amy Ana Andre Anna Anton Aria Arthur Ben Bella Bilal
Boris Bruno Carl Carla Carmen Chen Chloe Clara Claude Cleo Dan Daniel Daria David Diana Diego
Dina Dora Edgar Elena Eli Ella Elsa Emil Emily Emma Eric Esther Eva Fatima Felix Finn Fiona
Frank Frida Gabriel George Gina Grace Greta Hana Hannah Harry Hassan Hector Helen Henry Hugo
Ibrahim Ida Igor Ines Ingrid Irene Iris Isaac Ivan Jack Jacob James Jamal Jana Jane Jasmine Jean
Jin Joan Joe Johan John Jonas Jose Julia Julian Kai Karen Karim Kate Kenji Kira Klaus Lara Laura
Layla Lea Lee Leila Lena Leo Liam Lily Lina Linda Lisa Lola Louis Lucas Lucia Lucy Luis Luna
Maria Mark Marta Martin Mary Mateo Max Maya Mei Mia Michael Mila Milo Mina Mohamed Mona Nadia
Naomi Nia Nina Noah Nora Oliver Olga Omar Oscar Otto Pablo Paul Paula Pedro Peter Petra Pia
Priya Quinn Rachel Rafael Raj Ravi Rita Robert Robin Rosa Rose Ruth Sam Samir Sara Sarah Sasha
Selma Simon Sofia Sonia Stella Steve Susan Sven Tara Theo Thomas Tim Tina Tom Uma Vera Victor
Wanda Wei Wendy Will Yara Yuki Yusuf Zara Zoe
""")

LAST_NAMES = word_list("""
Adams Ahmed Baker Becker Bell Berg Brown Carter Chen Clark Costa Cruz Davis Diaz Evans Fischer
Ford Fox Garcia Gray Green Hall Hill Ito Jones Kaya Khan Kim King Klein Kumar Lee Lopez Martin
Meyer Miller Moore Morales Murphy Nguyen Novak Okafor Park Patel Perez Popov Reed Rossi Sato
Schmidt Silva Singh Smith Stone Suzuki Tanaka Taylor Torres Turner Walker Wang Weber White
Wilson Wolf Wood Wright Young
""")

CITIES = [
    *word_list("""
        Amsterdam Athens Atlanta Auckland Baghdad Baku Bangkok Barcelona Basel Beijing Beirut
        Belgrade Berlin Bern Birmingham Bogota Bologna Bordeaux Boston Bratislava Bremen
        Brisbane Bristol Brussels Bucharest Budapest Cairo Calgary Canberra Caracas Cardiff
        Casablanca Chicago Cologne Copenhagen Dakar Dallas Damascus Delhi Denver Detroit Dhaka
        Doha Dresden Dubai Dublin Edinburgh Florence Frankfurt Geneva Genoa Glasgow Hamburg
        Hanoi Havana Helsinki Houston Istanbul Jakarta Jerusalem Kathmandu Kiev Kingston Kyoto
        Lagos Leeds Leipzig Lima Lisbon Liverpool London Lyon Madrid Malaga Manchester Manila
        Marseille Melbourne Miami Milan Minsk Monaco Montreal Moscow Mumbai Munich Nairobi
        Nantes Naples Nice Osaka Oslo Ottawa Oxford Palermo Paris Perth Philadelphia Phoenix
        Porto Prague Pretoria Quito Riga Rome Rotterdam Salzburg Santiago Seattle Seoul Seville
        Shanghai Singapore Sofia Stockholm Stuttgart Sydney Taipei Tallinn Tehran Tokyo Toronto
        Toulouse Tunis Turin Utrecht Valencia Vancouver Venice Vienna Vilnius Warsaw Wellington
        Zagreb Zurich
    """),
    *phrase_list("""
        Buenos Aires | Cape Town | Hong Kong | Kuala Lumpur | Los Angeles | Mexico City
        New York | Rio de Janeiro | San Francisco | Sao Paulo | Tel Aviv
    """),
]

JOBS = word_list("""
actor architect artist baker barber builder carpenter chef chemist clerk coach cook dancer
dentist designer doctor driver editor electrician engineer farmer firefighter fisher florist
gardener guide journalist judge lawyer librarian mechanic musician nurse painter pharmacist
photographer pilot plumber poet programmer sailor scientist secretary singer soldier surgeon
tailor teacher translator waiter writer
""")

COLOURS = word_list("""
red blue green yellow orange purple pink brown black white grey gold silver turquoise violet
""")

FOODS = word_list("""
apples bananas beans bread butter cake carrots cheese cherries chicken chips chocolate cookies
eggs fish grapes honey jam lemons milk mushrooms noodles nuts olives onions oranges pancakes
pasta peaches pears peas pizza plums potatoes rice salad salt soup strawberries sugar sushi tea
tomatoes waffles yogurt
""")

PRODUCTS = word_list("""
backpack ball bed bell belt bicycle blanket book bottle bowl box bracelet brush bucket camera
candle cap carpet chair clock coat computer cup desk dress drill fan flute fork glass glove
guitar hammer hat headphones jacket jar kettle keyboard kite knife ladder lamp laptop mirror
monitor mug necklace notebook oven pan pen pencil phone piano pillow plate printer radio ring
rope ruler saw scarf shelf shirt shovel sofa spoon stool suitcase sweater table tablet teapot
telescope tent towel toy umbrella vase violin wallet watch
""")

DAYS = word_list("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = word_list("""
January February March April May June July August September October November December
""")

ANIMALS = word_list("""
badger bat bear beaver bee camel cat chicken cow crab crow deer dog dolphin donkey duck eagle
elephant fox frog goat goose hamster hedgehog horse kangaroo koala lion lizard monkey moose
mouse otter owl panda parrot penguin pig rabbit raven seal sheep snail spider squirrel swan
tiger turtle whale wolf zebra
""")

PETS = word_list("""
Rex Bello Luna Coco Max Bella Charlie Daisy Rocky Simba Nala Oscar Milo Kiki Fluffy
""")

WORDS = word_list("""
able above across action after again age air alarm almost alone along amber among anchor angle
answer any apple april arch arm around arrow ash asleep autumn away baby back bag bake balance
bamboo band bank basket beach bean beauty because before begin behind bench better between
beyond big bird birthday bitter blossom boat body bold bone bottom brave break breeze bridge
bright bring broken brother bubble build burn bush busy button cabin call calm candle canyon
captain car card care carry castle catch cave center chain chance change chapel chase cheap
child choose circle city clean clear clever climb cloud coast coin cold color comet common
copper coral corner cotton count country courage cover crazy creek crisp cross crown curious
curtain dance dark dawn day deep desert diamond dinner dirt distant door double down dragon
dream drift drink drop dry dusk dust each early earth east easy echo edge eight empty engine
enough enter even every evening ever explore eye fabric face fair fall family far farm fast
father feather fence fern few field fire first flag flame flat float flood floor flower fly fog
follow forest forget forward found free fresh friend frost fruit full funny future galaxy game
garden gate gentle ghost giant gift give glad glow golden good grain grand grass gravity great
ground grow guard half hand happy harbor hard harvest hat hate have hear heart heavy hidden high
hold hollow home honest hope hour house huge hundred hungry hurry ice idea inside invite iron
island ivory jewel join journey joy jump jungle just keep key kind kingdom kitchen knee knock
know lake land language large last late laugh lazy leaf learn leather left lemon letter level
light like line little live lonely long look lost loud love low lucky lunch machine magic make
map marble market meadow mean medicine meet melody memory metal middle midnight mild million
mint minute mist moment money moon morning moss mother mountain move much mud music mystery
narrow near neck needle never new next night nine noise north nose nothing number oak ocean
often oil old olive once only open orange orbit other outside over own page paint pale paper
park part party path patient peace pearl people pepper perfect piece pilot pine place plain
planet plant play pocket point pond poor power pretty prince promise proud puzzle queen quick
quiet quite rain rainbow reach ready real record rest ribbon rice rich ride right ring river
road rock roof room root rope rough round royal run rush sad safe sail salt same sand scarlet
school sea season second secret seed seven shadow shallow shape share sharp shell shine ship
shore short shout show sick side silent silk simple sister six skill sky sleep slow small smart
smile smoke smooth snow soft some song soon south space spark special spring square stair star
station steam steel step still stone storm story strange street strong sugar summer sun sunday
sure surf sweet swim swing table tall tea temple ten thick thin thing thirsty thousand thunder
tide tiny tired today tomorrow tower town travel treasure tree true trust tunnel twelve twenty
twin under until valley velvet very village violet visit voice wait walk wall warm water wave
way weak week welcome west wheel whisper wide wild wind window wing winter wise wish wonder wood
word work world yellow yes yesterday young zero
""")

_ONSETS = word_list("""
b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sh sk sl st t th
tr v w y z
""")
_NUCLEI = word_list("a e i o u ai ea ee oo ou io")
_CODAS = word_list("n r l s t m k d x p sh nd nt rk st ng")


def person(rng: random.Random) -> str:
    """A first name, now and then with a last name."""
    first = rng.choice(FIRST_NAMES)
    return f"{first} {rng.choice(LAST_NAMES)}" if rng.random() < 0.3 else first


def made_up(rng: random.Random) -> str:
    """A word that means nothing, so that copying it cannot be learned by heart."""
    syllables = [rng.choice(_ONSETS) + rng.choice(_NUCLEI) for _ in range(rng.randint(1, 3))]
    return "".join(syllables) + (rng.choice(_CODAS) if rng.random() < 0.7 else "")


def any_word(rng: random.Random) -> str:
    """A common word, a name, a city, a thing, a number or a made-up word."""
    roll = rng.random()
    if roll < 0.55:
        return rng.choice(WORDS)
    if roll < 0.75:
        return rng.choice(rng.choice((PRODUCTS, FOODS, ANIMALS, COLOURS, JOBS)))
    if roll < 0.83:
        return rng.choice(rng.choice((FIRST_NAMES, CITIES)))
    if roll < 0.88:
        return str(rng.randint(0, 999))
    return made_up(rng)
