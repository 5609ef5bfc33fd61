"""What the demo model can explain in a sentence: things, people, reasons, words."""

from __future__ import annotations

from engine.demo.data.text_blocks import rows

# thing | what it is
DEFINITIONS = rows("""
photosynthesis|Photosynthesis is how plants turn light, water and carbon dioxide into sugar and oxygen.
gravity|Gravity is the force that pulls things with mass towards each other.
a black hole|A black hole is a place in space whose gravity is so strong that not even light escapes.
an atom|An atom is the smallest part of a chemical element. It has a nucleus and electrons.
a molecule|A molecule is a group of atoms that are bound together.
DNA|DNA is the molecule that holds the genetic instructions of living things.
a cell|A cell is the smallest living unit of a plant or an animal.
evolution|Evolution is the slow change of living things over many generations.
a vaccine|A vaccine trains the body to fight a disease before it meets it.
a virus|A virus is a tiny particle that multiplies only inside living cells.
energy|Energy is the ability to do work. It comes as heat, light, motion and more.
electricity|Electricity is the flow of tiny charged particles, most often electrons.
a magnet|A magnet is an object that attracts iron.
light|Light is radiation that our eyes can see.
sound|Sound is a vibration that travels through air, water or solid things.
water|Water is a liquid made of hydrogen and oxygen. Its formula is H2O.
oxygen|Oxygen is a gas that we need to breathe.
a planet|A planet is a large round body that moves around a star.
a star|A star is a huge ball of hot gas that shines by itself.
a galaxy|A galaxy is a huge group of stars. Ours is the Milky Way.
the moon|The moon is the natural satellite of the Earth.
the sun|The sun is the star at the centre of our solar system.
the solar system|The solar system is the sun and everything that moves around it.
a comet|A comet is a small icy body with a bright tail.
a volcano|A volcano is a mountain from which hot lava can come out.
an earthquake|An earthquake is a shaking of the ground caused by moving rocks.
a rainbow|A rainbow is an arc of colours that appears when sunlight meets rain.
climate change|Climate change is the long-term warming of the Earth, caused mostly by burning fuels.
a desert|A desert is a very dry place with little rain.
an island|An island is land with water all around it.
a river|A river is water that flows through the land to a sea or a lake.
a lake|A lake is water with land all around it.
an ocean|An ocean is a very large body of salt water.
a forest|A forest is a large area full of trees.
the internet|The internet is a worldwide network of computers.
a computer|A computer is a machine that follows programs to work with data.
a program|A program is a list of instructions for a computer.
an algorithm|An algorithm is a list of steps that solves a problem.
software|Software is the programs that run on a computer.
hardware|Hardware is the parts of a computer that one can touch.
a database|A database is an organised collection of data.
a browser|A browser is a program that shows web pages.
Python|Python is a popular programming language that is easy to read.
JavaScript|JavaScript is the programming language of web pages.
Java|Java is a programming language. It is also an island of Indonesia.
HTML|HTML is the language that web pages are written in.
JSON|JSON is a text format for data, made of keys and values.
SQL|SQL is a language for asking questions to a database.
Linux|Linux is a free operating system.
Git|Git is a tool that keeps the history of source code.
an API|An API is a way for one program to talk to another.
a GPU|A GPU is a processor that does many calculations at the same time.
a CPU|A CPU is the main processor of a computer.
artificial intelligence|Artificial intelligence is the field of making machines that can learn and solve problems.
machine learning|Machine learning means that a computer learns from examples instead of fixed rules.
a language model|A language model is a program that predicts the next word of a text.
a neural network|A neural network is a program that learns with many simple connected units.
a token|A token is a small piece of text, such as a word or a part of one.
a transformer|A transformer is a neural network that uses attention. I am one.
a robot|A robot is a machine that can do tasks by itself.
a gateway|A gateway is a server that passes requests on to other services.
a verb|A verb is a word for an action, such as run or eat.
a noun|A noun is a word for a person, a place or a thing.
an adjective|An adjective is a word that describes a noun, such as big or red.
a vowel|A vowel is one of the letters a, e, i, o and u.
a haiku|A haiku is a short Japanese poem of three lines with 5, 7 and 5 syllables.
a poem|A poem is a text that plays with rhythm and images.
a novel|A novel is a long story in a book.
a prime number|A prime number is a number above 1 that only 1 and itself divide.
pi|Pi is about 3.14159. It is the circumference of a circle divided by its diameter.
a triangle|A triangle is a shape with three sides.
a square|A square is a shape with four equal sides and four right angles.
a circle|A circle is a round shape. All its points are equally far from the centre.
a fraction|A fraction is a part of a whole, such as one half.
mathematics|Mathematics is the study of numbers, shapes and patterns.
physics|Physics is the study of matter, energy and forces.
chemistry|Chemistry is the study of substances and how they react.
biology|Biology is the study of living things.
history|History is the study of the past.
geography|Geography is the study of the Earth and its places.
philosophy|Philosophy is the study of big questions, such as what is true and what is good.
economics|Economics is the study of how people make, buy and sell things.
inflation|Inflation means that prices rise over time.
democracy|Democracy is a form of government in which the people vote.
a law|A law is a rule that a state makes for everyone.
a currency|A currency is the money of a country.
money|Money is what people use to pay for things.
a bank|A bank is a company that keeps and lends money.
a mammal|A mammal is an animal that feeds its young with milk.
a reptile|A reptile is a cold-blooded animal with scales, such as a snake.
an insect|An insect is a small animal with six legs.
a dinosaur|A dinosaur was a reptile that lived many millions of years ago.
a dog|A dog is a friendly animal that people keep as a pet.
a cat|A cat is a small animal that people keep as a pet. It likes to sleep.
a bird|A bird is an animal with feathers and wings.
a fish|A fish is an animal that lives in water and breathes with gills.
a tree|A tree is a tall plant with a trunk of wood.
the heart|The heart is the organ that pumps blood through the body.
the brain|The brain is the organ that we think with.
blood|Blood is the red liquid that carries oxygen through the body.
sleep|Sleep is the time when body and brain rest.
love|Love is a strong and warm feeling for somebody.
happiness|Happiness is the feeling that life is good.
music|Music is sound that is arranged to be beautiful.
art|Art is what people make to express feelings and ideas.
football|Football is a game in which two teams try to kick a ball into a goal.
chess|Chess is a board game for two players. The aim is to checkmate the king.
tennis|Tennis is a game in which players hit a ball over a net.
pizza|Pizza is an Italian dish: flat bread with tomatoes and cheese.
sushi|Sushi is a Japanese dish of rice, often with fish.
coffee|Coffee is a hot drink made from roasted beans.
tea|Tea is a hot drink made from leaves.
bread|Bread is food that is baked from flour and water.
a telescope|A telescope is a tool to look at things that are far away.
a microscope|A microscope is a tool to look at very small things.
a school|A school is a place where people learn.
a library|A library is a place with many books to read and borrow.
the Eiffel Tower|The Eiffel Tower is a famous iron tower in Paris.
the Great Wall|The Great Wall is a very long wall in the north of China.
the Milky Way|The Milky Way is the galaxy that we live in.
the equator|The equator is the line around the middle of the Earth.
the weather|The weather is the state of the air: sun, rain, wind and temperature.
snow|Snow is frozen water that falls from clouds as white flakes.
rain|Rain is water that falls from clouds in drops.
wind|Wind is moving air.
time|Time is what clocks measure. It always goes forward.
the meaning of life|Some say it is 42. I am too small a model to know better.
life|Life is what plants, animals and people have in common: they grow and multiply.
""")  # noqa: E501 (a row is a line)

# person | who that is
PEOPLE = rows("""
Albert Einstein|Albert Einstein was a physicist who developed the theory of relativity.
Isaac Newton|Isaac Newton was an English scientist who described gravity and motion.
Marie Curie|Marie Curie was a scientist who studied radioactivity and won two Nobel Prizes.
Charles Darwin|Charles Darwin was a scientist who described evolution.
Galileo Galilei|Galileo Galilei was an Italian astronomer who studied the sky with a telescope.
Nikola Tesla|Nikola Tesla was an inventor who worked on alternating current.
Thomas Edison|Thomas Edison was an American inventor, known for the light bulb.
Alan Turing|Alan Turing was a British mathematician and a father of computer science.
Ada Lovelace|Ada Lovelace wrote the first computer program, in the 19th century.
Stephen Hawking|Stephen Hawking was a British physicist who studied black holes.
Aristotle|Aristotle was a philosopher of ancient Greece.
Plato|Plato was a philosopher of ancient Greece.
Socrates|Socrates was a philosopher of ancient Greece.
Julius Caesar|Julius Caesar was a general and ruler of ancient Rome.
Cleopatra|Cleopatra was a queen of ancient Egypt.
Napoleon|Napoleon was an emperor of France.
Alexander the Great|Alexander the Great was a king of Macedonia who conquered a huge empire.
George Washington|George Washington was the first president of the United States.
Abraham Lincoln|Abraham Lincoln was the 16th president of the United States.
Mahatma Gandhi|Mahatma Gandhi led India to independence without violence.
Martin Luther King|Martin Luther King fought for equal rights in the United States.
Nelson Mandela|Nelson Mandela was the first black president of South Africa.
Winston Churchill|Winston Churchill led Britain during the Second World War.
William Shakespeare|William Shakespeare was an English writer of plays and poems.
Leonardo da Vinci|Leonardo da Vinci was an Italian artist and inventor. He painted the Mona Lisa.
Michelangelo|Michelangelo was an Italian artist who painted the Sistine Chapel.
Vincent van Gogh|Vincent van Gogh was a Dutch painter, known for The Starry Night.
Pablo Picasso|Pablo Picasso was a Spanish painter.
Frida Kahlo|Frida Kahlo was a Mexican painter.
Claude Monet|Claude Monet was a French painter, known for his water lilies.
Mozart|Mozart was a composer from Austria.
Beethoven|Beethoven was a German composer who wrote nine symphonies.
Bach|Bach was a German composer.
Christopher Columbus|Christopher Columbus was an explorer who sailed to America in 1492.
Marco Polo|Marco Polo was a traveller from Venice who went to China.
Neil Armstrong|Neil Armstrong was the first person on the moon, in 1969.
Yuri Gagarin|Yuri Gagarin was the first person in space, in 1961.
Amelia Earhart|Amelia Earhart was the first woman to fly alone across the Atlantic.
Anne Frank|Anne Frank wrote a famous diary during the Second World War.
Johannes Gutenberg|Johannes Gutenberg invented printing with movable letters in Europe.
Louis Pasteur|Louis Pasteur was a French scientist who studied germs.
Alexander Fleming|Alexander Fleming discovered penicillin.
Alexander Graham Bell|Alexander Graham Bell is known for the telephone.
Tim Berners-Lee|Tim Berners-Lee invented the World Wide Web.
Bill Gates|Bill Gates is one of the founders of Microsoft.
Steve Jobs|Steve Jobs was one of the founders of Apple.
Linus Torvalds|Linus Torvalds created Linux and Git.
Sherlock Holmes|Sherlock Holmes is a detective in stories by Arthur Conan Doyle.
Harry Potter|Harry Potter is a young wizard in books by J. K. Rowling.
Robin Hood|Robin Hood is a hero of legends who took from the rich and gave to the poor.
Santa Claus|Santa Claus is a figure who brings presents at Christmas.
Mickey Mouse|Mickey Mouse is a cartoon character by Walt Disney.
""")

# question after why | answer
REASONS = rows("""
is the sky blue|The sky is blue because air scatters blue light more than red light.
is the grass green|Grass is green because of chlorophyll, which plants use to catch light.
is the sea salty|The sea is salty because rivers carry salts from rocks into it.
is the sea blue|The sea looks blue because water absorbs red light more than blue light.
is blood red|Blood is red because of the iron in it, which binds oxygen.
is the sun hot|The sun is hot because hydrogen turns into helium inside it.
is snow white|Snow is white because its crystals scatter all colours of light.
do we sleep|We sleep so that body and brain can rest and recover.
do we dream|Nobody knows for sure. Dreams may help the brain to sort memories.
do birds fly south|Birds fly south in winter to find food and warmth.
do birds sing|Birds sing to find a partner and to defend their place.
do cats purr|Cats purr mostly when they feel good, and sometimes to calm themselves.
do dogs bark|Dogs bark to warn, to greet and to get attention.
do leaves fall|Trees drop their leaves in autumn to save water in winter.
do leaves change colour|Leaves change colour in autumn because their green chlorophyll breaks down.
does ice float|Ice floats because it is less dense than water.
does it rain|It rains when water drops in clouds become too heavy to stay up.
do we have seasons|We have seasons because the axis of the Earth is tilted.
do we have day and night|We have day and night because the Earth turns around itself.
does the moon shine|The moon shines because it reflects the light of the sun.
do we yawn|We yawn when we are tired or bored. Nobody knows exactly why.
do onions make you cry|Onions make you cry because cutting them frees a gas that stings the eyes.
do planes fly|Planes fly because their wings push air down, which lifts them up.
do ships float|Ships float because they push away as much water as they weigh.
do stars twinkle|Stars twinkle because their light passes through moving air.
do we need water|We need water because our body is mostly made of it.
are you so small|I am small so that I can run anywhere, even without a graphics card.
should I learn to code|Coding teaches you to solve problems, and it is fun.
""")

# question | answer
QUESTIONS = rows("""
Which is the largest ocean?|The largest ocean is the Pacific.
What is the largest country in the world?|The largest country in the world is Russia.
What is the smallest country in the world?|The smallest country in the world is Vatican City.
What is the highest mountain?|The highest mountain is Mount Everest.
What is the longest river?|The longest river is the Nile.
What is the largest desert?|The largest hot desert is the Sahara.
What is the largest animal?|The largest animal is the blue whale.
What is the fastest animal?|The fastest animal on land is the cheetah.
What is the tallest animal?|The tallest animal is the giraffe.
What is the largest continent?|The largest continent is Asia.
What is the smallest continent?|The smallest continent is Australia.
What is the smallest planet?|The smallest planet is Mercury.
What is the biggest planet?|The biggest planet is Jupiter.
What is the hardest material?|Diamond is one of the hardest materials.
What is the speed of light?|Light travels about 300,000 kilometres per second.
What is the speed of sound?|Sound travels about 343 metres per second in air.
How far is the moon?|The moon is about 384,000 kilometres away.
How far is the sun?|The sun is about 150 million kilometres away.
How old is the Earth?|The Earth is about 4.5 billion years old.
How old is the universe?|The universe is about 13.8 billion years old.
How many people live on Earth?|About 8 billion people live on Earth.
How many bones are in the human body?|An adult has 206 bones.
How many teeth does an adult have?|An adult has 32 teeth.
How many countries are there?|There are about 195 countries.
How many oceans are there?|There are five oceans.
How many states does the US have?|The United States has 50 states.
At what temperature does water boil?|Water boils at 100 degrees Celsius.
At what temperature does water freeze?|Water freezes at 0 degrees Celsius.
What is the formula of water?|The formula of water is H2O.
What do bees make?|Bees make honey.
What do cows drink?|Cows drink water.
What do pandas eat?|Pandas eat bamboo.
Who painted the Mona Lisa?|The Mona Lisa was painted by Leonardo da Vinci.
Who painted The Starry Night?|The Starry Night was painted by Vincent van Gogh.
Who invented the telephone?|Alexander Graham Bell is known for the telephone.
Who invented the light bulb?|Thomas Edison is known for the light bulb.
Who invented the World Wide Web?|Tim Berners-Lee invented the World Wide Web.
Who invented printing?|Johannes Gutenberg invented printing with movable letters in Europe.
Who invented Python?|Python was created by Guido van Rossum.
Who created Linux?|Linux was created by Linus Torvalds.
Who discovered penicillin?|Alexander Fleming discovered penicillin.
Who discovered gravity?|Isaac Newton described gravity.
Who discovered America?|Christopher Columbus sailed to America in 1492.
Who was the first man on the moon?|Neil Armstrong was the first person on the moon, in 1969.
Who was the first person in space?|Yuri Gagarin was the first person in space, in 1961.
Who was the first president of the United States?|George Washington was the first president.
Who founded Microsoft?|Microsoft was founded by Bill Gates and Paul Allen.
Who founded Apple?|Apple was founded by Steve Jobs, Steve Wozniak and Ronald Wayne.
Who wrote Harry Potter?|Harry Potter was written by J. K. Rowling.
Who wrote The Lord of the Rings?|The Lord of the Rings was written by J. R. R. Tolkien.
Who wrote The Little Prince?|The Little Prince was written by Antoine de Saint-Exupery.
Who wrote Sherlock Holmes?|Sherlock Holmes was invented by Arthur Conan Doyle.
When did the First World War begin?|The First World War began in 1914.
When did the Second World War end?|The Second World War ended in 1945.
When did the Berlin Wall fall?|The Berlin Wall fell in 1989.
When was the French Revolution?|The French Revolution began in 1789.
When is Christmas?|Christmas is on December 25.
When is Halloween?|Halloween is on October 31.
When is New Year's Day?|New Year's Day is on January 1.
When is Valentine's Day?|Valentine's Day is on February 14.
When does spring begin?|In the north, spring begins in March.
When does summer begin?|In the north, summer begins in June.
When does winter begin?|In the north, winter begins in December.
Where is the Eiffel Tower?|The Eiffel Tower is in Paris.
Where is Big Ben?|Big Ben is in London.
Where is the Colosseum?|The Colosseum is in Rome.
Where is the Statue of Liberty?|The Statue of Liberty is in New York.
Where is the Taj Mahal?|The Taj Mahal is in India.
Where are the pyramids?|The most famous pyramids are in Egypt.
Where do penguins live?|Most penguins live in the south, many of them in Antarctica.
Where do polar bears live?|Polar bears live in the Arctic.
Where do kangaroos live?|Kangaroos live in Australia.
What are the primary colours?|The primary colours are red, yellow and blue.
What are the five senses?|The five senses are sight, hearing, smell, taste and touch.
What are the four seasons?|The four seasons are spring, summer, autumn and winter.
What are the colours of the rainbow?|Red, orange, yellow, green, blue, indigo and violet.
What came first, the chicken or the egg?|Eggs are much older than chickens, so the egg came first.
What is the answer to everything?|The answer is 42.
What is the most spoken language?|English has the most speakers, when second languages count.
Is the Earth flat?|No, the Earth is round.
Is the Earth round?|Yes, the Earth is round.
Is a tomato a fruit?|Yes, for botanists a tomato is a fruit.
Is water wet?|Most people would say yes.
Is a whale a fish?|No, a whale is a mammal.
Is a spider an insect?|No, a spider is an arachnid: it has eight legs.
Is a bat a bird?|No, a bat is a mammal.
Is Pluto a planet?|Pluto is a dwarf planet.
Is the sun a star?|Yes, the sun is a star.
Can penguins fly?|No, penguins cannot fly, but they swim very well.
Can fish breathe?|Yes, fish breathe with gills.
Can pigs fly?|No, pigs cannot fly.
Do fish sleep?|Yes, most fish rest in a way like sleep.
""")

# country | currency | language
MONEY = rows("""
France|euro|French
Germany|euro|German
Italy|euro|Italian
Spain|euro|Spanish
Austria|euro|German
Portugal|euro|Portuguese
Greece|euro|Greek
Finland|euro|Finnish
Japan|yen|Japanese
China|yuan|Chinese
India|rupee|Hindi
Russia|ruble|Russian
the United Kingdom|pound|English
the United States|dollar|English
Canada|dollar|English
Australia|dollar|English
New Zealand|dollar|English
Mexico|peso|Spanish
Argentina|peso|Spanish
Chile|peso|Spanish
Colombia|peso|Spanish
Cuba|peso|Spanish
Brazil|real|Portuguese
Peru|sol|Spanish
Switzerland|franc|German
Sweden|krona|Swedish
Norway|krone|Norwegian
Denmark|krone|Danish
Iceland|krona|Icelandic
Poland|zloty|Polish
Czechia|koruna|Czech
Hungary|forint|Hungarian
Turkey|lira|Turkish
Egypt|pound|Arabic
Morocco|dirham|Arabic
Kenya|shilling|Swahili
Nigeria|naira|English
South Korea|won|Korean
Thailand|baht|Thai
Vietnam|dong|Vietnamese
Indonesia|rupiah|Indonesian
Israel|shekel|Hebrew
Iran|rial|Persian
Saudi Arabia|riyal|Arabic
Ukraine|hryvnia|Ukrainian
""")

# word | word with the same meaning | word that rhymes
WORDS_LIKE = rows("""
big|large|pig
small|little|ball
happy|glad|snappy
sad|unhappy|mad
fast|quick|last
slow|unhurried|snow
smart|clever|heart
begin|start|win
end|finish|friend
easy|simple|breezy
hard|difficult|card
rich|wealthy|witch
angry|mad|hungry
pretty|beautiful|city
strange|odd|range
cold|chilly|gold
brave|bold|cave
scared|afraid|shared
quiet|silent|diet
loud|noisy|cloud
old|ancient|cold
new|fresh|blue
nice|kind|rice
bad|poor|sad
funny|amusing|honey
tired|sleepy|wired
house|home|mouse
car|automobile|star
road|street|toad
buy|purchase|sky
help|assist|yelp
talk|speak|walk
look|see|book
jump|leap|bump
shut|close|nut
gift|present|lift
job|work|knob
money|cash|honey
child|kid|wild
boat|ship|goat
""")

# singular | plural
MORE_PLURALS = rows("""
cat|cats
dog|dogs
tree|trees
car|cars
apple|apples
cherry|cherries
tomato|tomatoes
hero|heroes
lady|ladies
story|stories
party|parties
church|churches
watch|watches
fox|foxes
glass|glasses
class|classes
shelf|shelves
thief|thieves
wife|wives
loaf|loaves
deer|deer
cactus|cacti
toy|toys
boy|boys
key|keys
day|days
photo|photos
piano|pianos
""")

# verb | past tense
MORE_PASTS = rows("""
be|was
get|got
say|said
tell|told
feel|felt
leave|left
keep|kept
hold|held
hear|heard
lose|lost
meet|met
pay|paid
read|read
send|sent
sit|sat
stand|stood
win|won
build|built
catch|caught
choose|chose
draw|drew
fall|fell
fight|fought
forget|forgot
grow|grew
hide|hid
ride|rode
rise|rose
sell|sold
throw|threw
wake|woke
wear|wore
look|looked
love|loved
study|studied
cry|cried
""")

# English | French | Spanish | German
MORE_TRANSLATIONS = rows("""
love|amour|amor|Liebe
world|monde|mundo|Welt
man|homme|hombre|Mann
woman|femme|mujer|Frau
child|enfant|niño|Kind
mother|mère|madre|Mutter
father|père|padre|Vater
brother|frère|hermano|Bruder
sister|sœur|hermana|Schwester
family|famille|familia|Familie
school|école|escuela|Schule
teacher|professeur|maestro|Lehrer
car|voiture|coche|Auto
train|train|tren|Zug
street|rue|calle|Straße
city|ville|ciudad|Stadt
country|pays|país|Land
door|porte|puerta|Tür
window|fenêtre|ventana|Fenster
table|table|mesa|Tisch
chair|chaise|silla|Stuhl
bed|lit|cama|Bett
fish|poisson|pescado|Fisch
bird|oiseau|pájaro|Vogel
horse|cheval|caballo|Pferd
cow|vache|vaca|Kuh
tree|arbre|árbol|Baum
flower|fleur|flor|Blume
cheese|fromage|queso|Käse
egg|œuf|huevo|Ei
wine|vin|vino|Wein
coffee|café|café|Kaffee
tea|thé|té|Tee
sugar|sucre|azúcar|Zucker
salt|sel|sal|Salz
blue|bleu|azul|blau
black|noir|negro|schwarz
white|blanc|blanco|weiß
yellow|jaune|amarillo|gelb
four|quatre|cuatro|vier
five|cinq|cinco|fünf
six|six|seis|sechs
seven|sept|siete|sieben
eight|huit|ocho|acht
nine|neuf|nueve|neun
ten|dix|diez|zehn
hand|main|mano|Hand
head|tête|cabeza|Kopf
heart|cœur|corazón|Herz
eye|œil|ojo|Auge
time|temps|tiempo|Zeit
today|aujourd'hui|hoy|heute
tomorrow|demain|mañana|morgen
yesterday|hier|ayer|gestern
big|grand|grande|groß
small|petit|pequeño|klein
good|bon|bueno|gut
bad|mauvais|malo|schlecht
hot|chaud|caliente|heiß
cold|froid|frío|kalt
new|nouveau|nuevo|neu
old|vieux|viejo|alt
rain|pluie|lluvia|Regen
snow|neige|nieve|Schnee
fire|feu|fuego|Feuer
king|roi|rey|König
star|étoile|estrella|Stern
sea|mer|mar|Meer
summer|été|verano|Sommer
winter|hiver|invierno|Winter
good night|bonne nuit|buenas noches|gute Nacht
I love you|je t'aime|te quiero|ich liebe dich
how are you|comment ça va|cómo estás|wie geht es dir
""")
