"""The facts that the demo model knows, as tables. `facts.py` asks about them."""

from __future__ import annotations

from engine.demo.data.text_blocks import rows

# country | capital | continent
COUNTRIES = rows("""
Afghanistan|Kabul|Asia
Albania|Tirana|Europe
Algeria|Algiers|Africa
Andorra|Andorra la Vella|Europe
Angola|Luanda|Africa
Argentina|Buenos Aires|South America
Armenia|Yerevan|Asia
Australia|Canberra|Oceania
Austria|Vienna|Europe
Azerbaijan|Baku|Asia
Bahrain|Manama|Asia
Bangladesh|Dhaka|Asia
Barbados|Bridgetown|North America
Belarus|Minsk|Europe
Belgium|Brussels|Europe
Belize|Belmopan|North America
Benin|Porto-Novo|Africa
Bhutan|Thimphu|Asia
Bolivia|Sucre|South America
Bosnia|Sarajevo|Europe
Botswana|Gaborone|Africa
Brazil|Brasilia|South America
Bulgaria|Sofia|Europe
Burundi|Gitega|Africa
Cambodia|Phnom Penh|Asia
Cameroon|Yaounde|Africa
Canada|Ottawa|North America
Chad|N'Djamena|Africa
Chile|Santiago|South America
China|Beijing|Asia
Colombia|Bogota|South America
Costa Rica|San Jose|North America
Croatia|Zagreb|Europe
Cuba|Havana|North America
Cyprus|Nicosia|Europe
Czechia|Prague|Europe
Denmark|Copenhagen|Europe
Djibouti|Djibouti City|Africa
Ecuador|Quito|South America
Egypt|Cairo|Africa
El Salvador|San Salvador|North America
Eritrea|Asmara|Africa
Estonia|Tallinn|Europe
Ethiopia|Addis Ababa|Africa
Fiji|Suva|Oceania
Finland|Helsinki|Europe
France|Paris|Europe
Gabon|Libreville|Africa
Georgia|Tbilisi|Asia
Germany|Berlin|Europe
Ghana|Accra|Africa
Greece|Athens|Europe
Guatemala|Guatemala City|North America
Guinea|Conakry|Africa
Guyana|Georgetown|South America
Haiti|Port-au-Prince|North America
Honduras|Tegucigalpa|North America
Hungary|Budapest|Europe
Iceland|Reykjavik|Europe
India|New Delhi|Asia
Indonesia|Jakarta|Asia
Iran|Tehran|Asia
Iraq|Baghdad|Asia
Ireland|Dublin|Europe
Israel|Jerusalem|Asia
Italy|Rome|Europe
Jamaica|Kingston|North America
Japan|Tokyo|Asia
Jordan|Amman|Asia
Kazakhstan|Astana|Asia
Kenya|Nairobi|Africa
Kuwait|Kuwait City|Asia
Kyrgyzstan|Bishkek|Asia
Laos|Vientiane|Asia
Latvia|Riga|Europe
Lebanon|Beirut|Asia
Lesotho|Maseru|Africa
Liberia|Monrovia|Africa
Libya|Tripoli|Africa
Lithuania|Vilnius|Europe
Luxembourg|Luxembourg City|Europe
Madagascar|Antananarivo|Africa
Malawi|Lilongwe|Africa
Malaysia|Kuala Lumpur|Asia
Maldives|Male|Asia
Mali|Bamako|Africa
Malta|Valletta|Europe
Mauritania|Nouakchott|Africa
Mauritius|Port Louis|Africa
Mexico|Mexico City|North America
Moldova|Chisinau|Europe
Monaco|Monaco|Europe
Mongolia|Ulaanbaatar|Asia
Montenegro|Podgorica|Europe
Morocco|Rabat|Africa
Mozambique|Maputo|Africa
Myanmar|Naypyidaw|Asia
Namibia|Windhoek|Africa
Nepal|Kathmandu|Asia
the Netherlands|Amsterdam|Europe
New Zealand|Wellington|Oceania
Nicaragua|Managua|North America
Niger|Niamey|Africa
Nigeria|Abuja|Africa
North Korea|Pyongyang|Asia
Norway|Oslo|Europe
Oman|Muscat|Asia
Pakistan|Islamabad|Asia
Panama|Panama City|North America
Paraguay|Asuncion|South America
Peru|Lima|South America
the Philippines|Manila|Asia
Poland|Warsaw|Europe
Portugal|Lisbon|Europe
Qatar|Doha|Asia
Romania|Bucharest|Europe
Russia|Moscow|Europe
Rwanda|Kigali|Africa
Samoa|Apia|Oceania
Saudi Arabia|Riyadh|Asia
Senegal|Dakar|Africa
Serbia|Belgrade|Europe
Sierra Leone|Freetown|Africa
Singapore|Singapore|Asia
Slovakia|Bratislava|Europe
Slovenia|Ljubljana|Europe
Somalia|Mogadishu|Africa
South Africa|Pretoria|Africa
South Korea|Seoul|Asia
Spain|Madrid|Europe
Sri Lanka|Colombo|Asia
Sudan|Khartoum|Africa
Suriname|Paramaribo|South America
Sweden|Stockholm|Europe
Switzerland|Bern|Europe
Syria|Damascus|Asia
Taiwan|Taipei|Asia
Tajikistan|Dushanbe|Asia
Tanzania|Dodoma|Africa
Thailand|Bangkok|Asia
Togo|Lome|Africa
Tunisia|Tunis|Africa
Turkey|Ankara|Asia
Turkmenistan|Ashgabat|Asia
Uganda|Kampala|Africa
Ukraine|Kyiv|Europe
the United Kingdom|London|Europe
the United States|Washington|North America
Uruguay|Montevideo|South America
Uzbekistan|Tashkent|Asia
Venezuela|Caracas|South America
Vietnam|Hanoi|Asia
Yemen|Sanaa|Asia
Zambia|Lusaka|Africa
Zimbabwe|Harare|Africa
""")

# element | symbol | atomic number
ELEMENTS = rows("""
hydrogen|H|1
helium|He|2
lithium|Li|3
beryllium|Be|4
boron|B|5
carbon|C|6
nitrogen|N|7
oxygen|O|8
fluorine|F|9
neon|Ne|10
sodium|Na|11
magnesium|Mg|12
aluminium|Al|13
silicon|Si|14
phosphorus|P|15
sulfur|S|16
chlorine|Cl|17
argon|Ar|18
potassium|K|19
calcium|Ca|20
titanium|Ti|22
chromium|Cr|24
iron|Fe|26
cobalt|Co|27
nickel|Ni|28
copper|Cu|29
zinc|Zn|30
silver|Ag|47
tin|Sn|50
iodine|I|53
tungsten|W|74
platinum|Pt|78
gold|Au|79
mercury|Hg|80
lead|Pb|82
uranium|U|92
""")

OPPOSITES = rows("""
hot|cold
big|small
fast|slow
high|low
old|young
happy|sad
light|dark
hard|soft
wet|dry
rich|poor
strong|weak
early|late
open|closed
full|empty
thick|thin
wide|narrow
loud|quiet
clean|dirty
easy|difficult
good|bad
up|down
left|right
in|out
day|night
love|hate
begin|end
buy|sell
win|lose
push|pull
give|take
long|short
deep|shallow
sharp|blunt
sweet|sour
safe|dangerous
cheap|expensive
near|far
first|last
true|false
always|never
alive|dead
awake|asleep
brave|cowardly
smooth|rough
beautiful|ugly
ancient|modern
inside|outside
before|after
above|below
""")

# animal | young | sound | legs
ANIMALS = rows("""
dog|puppy|barks|4
cat|kitten|meows|4
cow|calf|moos|4
sheep|lamb|bleats|4
horse|foal|neighs|4
pig|piglet|oinks|4
duck|duckling|quacks|2
lion|cub|roars|4
frog|tadpole|croaks|4
goat|kid|bleats|4
chicken|chick|clucks|2
owl|owlet|hoots|2
wolf|pup|howls|4
bear|cub|growls|4
kangaroo|joey|chuckles|2
goose|gosling|honks|2
swan|cygnet|hisses|2
deer|fawn|bellows|4
rabbit|kit|squeaks|4
elephant|calf|trumpets|4
""")

# planet | place from the sun | a word for it
PLANETS = rows("""
Mercury|first|the smallest planet
Venus|second|the hottest planet
Earth|third|the planet we live on
Mars|fourth|the red planet
Jupiter|fifth|the largest planet
Saturn|sixth|the planet with the big rings
Uranus|seventh|the planet that lies on its side
Neptune|eighth|the windiest planet
""")

# thing | colour
COLOUR_OF = rows("""
a banana|yellow
the sky|blue
grass|green
snow|white
coal|black
a ripe tomato|red
a carrot|orange
chocolate|brown
a lemon|yellow
blood|red
an elephant|grey
a flamingo|pink
milk|white
an aubergine|purple
a strawberry|red
the night sky|black
a frog|green
a sunflower|yellow
""")

# two colours | their mix
MIXES = rows("""
blue and yellow|green
red and yellow|orange
red and blue|purple
red and white|pink
black and white|grey
yellow and blue|green
yellow and red|orange
blue and red|purple
white and red|pink
white and black|grey
""")

# work | who made it
AUTHORS = rows("""
Romeo and Juliet|William Shakespeare
Hamlet|William Shakespeare
Don Quixote|Miguel de Cervantes
War and Peace|Leo Tolstoy
Anna Karenina|Leo Tolstoy
Crime and Punishment|Fyodor Dostoevsky
Pride and Prejudice|Jane Austen
Emma|Jane Austen
Frankenstein|Mary Shelley
Dracula|Bram Stoker
Moby Dick|Herman Melville
Oliver Twist|Charles Dickens
Great Expectations|Charles Dickens
Faust|Johann Wolfgang von Goethe
The Odyssey|Homer
The Iliad|Homer
Les Miserables|Victor Hugo
Alice in Wonderland|Lewis Carroll
Treasure Island|Robert Louis Stevenson
The Time Machine|H. G. Wells
Around the World in Eighty Days|Jules Verne
1984|George Orwell
Animal Farm|George Orwell
The Divine Comedy|Dante Alighieri
Jane Eyre|Charlotte Bronte
""")

# word | plural
PLURALS = rows("""
child|children
mouse|mice
foot|feet
tooth|teeth
man|men
woman|women
goose|geese
person|people
leaf|leaves
knife|knives
wolf|wolves
sheep|sheep
fish|fish
box|boxes
city|cities
baby|babies
potato|potatoes
bus|buses
dish|dishes
half|halves
house|houses
book|books
country|countries
ox|oxen
life|lives
""")

# verb | past tense
PASTS = rows("""
go|went
see|saw
eat|ate
run|ran
write|wrote
take|took
give|gave
come|came
buy|bought
think|thought
bring|brought
teach|taught
swim|swam
sing|sang
drink|drank
fly|flew
know|knew
break|broke
speak|spoke
find|found
sleep|slept
walk|walked
play|played
stop|stopped
try|tried
make|made
do|did
have|had
begin|began
drive|drove
""")

# English | French | Spanish | German
TRANSLATIONS = rows("""
hello|bonjour|hola|hallo
thank you|merci|gracias|danke
yes|oui|sí|ja
no|non|no|nein
goodbye|au revoir|adiós|auf Wiedersehen
please|s'il vous plaît|por favor|bitte
water|eau|agua|Wasser
bread|pain|pan|Brot
cat|chat|gato|Katze
dog|chien|perro|Hund
house|maison|casa|Haus
book|livre|libro|Buch
sun|soleil|sol|Sonne
moon|lune|luna|Mond
friend|ami|amigo|Freund
red|rouge|rojo|rot
green|vert|verde|grün
one|un|uno|eins
two|deux|dos|zwei
three|trois|tres|drei
good morning|bonjour|buenos días|guten Morgen
apple|pomme|manzana|Apfel
milk|lait|leche|Milch
night|nuit|noche|Nacht
day|jour|día|Tag
""")

# unit | how many | of what
COUNTS = rows("""
days are in a week|7|days in a week
hours are in a day|24|hours in a day
minutes are in an hour|60|minutes in an hour
seconds are in a minute|60|seconds in a minute
months are in a year|12|months in a year
days are in a year|365|days in a year
letters are in the English alphabet|26|letters in the English alphabet
weeks are in a year|52|weeks in a year
legs does a spider have|8|legs on a spider
legs does an insect have|6|legs on an insect
sides does a triangle have|3|sides on a triangle
sides does a square have|4|sides on a square
sides does a hexagon have|6|sides on a hexagon
planets are in the solar system|8|planets in the solar system
continents are there|7|continents
centimetres are in a metre|100|centimetres in a metre
metres are in a kilometre|1000|metres in a kilometre
grams are in a kilogram|1000|grams in a kilogram
seasons are in a year|4|seasons in a year
eggs are in a dozen|12|eggs in a dozen
years are in a century|100|years in a century
years are in a decade|10|years in a decade
""")
