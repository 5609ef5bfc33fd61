"""Draws pictures: digits, numbers, letters, words, coloured shapes and bar charts, in any font,
turned and sized and worn in many ways. What is drawn comes with them as a ``Scene``."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from engine.demo.vision.fonts import Font

COLOURS = {
    "red": (215, 35, 35),
    "green": (35, 160, 60),
    "blue": (40, 75, 215),
    "yellow": (245, 215, 45),
    "orange": (245, 140, 25),
    "purple": (135, 50, 170),
    "pink": (250, 140, 190),
    "brown": (125, 75, 35),
    "black": (15, 15, 15),
    "white": (250, 250, 250),
    "gray": (130, 130, 130),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "diamond", "ring")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WORDS = [
    "CAT",
    "DOG",
    "SUN",
    "MOON",
    "STAR",
    "TREE",
    "FISH",
    "BIRD",
    "BOOK",
    "DOOR",
    "HAND",
    "FOOT",
    "BALL",
    "CAKE",
    "MILK",
    "RAIN",
    "SNOW",
    "WIND",
    "FIRE",
    "ROCK",
    "LAKE",
    "SHIP",
    "ROAD",
    "BUS",
    "CAR",
    "BIKE",
    "TRAIN",
    "PLANE",
    "HOUSE",
    "RIVER",
    "BREAD",
    "APPLE",
    "PEAR",
    "LEMON",
    "GRAPE",
    "HORSE",
    "SHEEP",
    "MOUSE",
    "TIGER",
    "LION",
    "BEAR",
    "WOLF",
    "FOX",
    "OWL",
    "DUCK",
    "STOP",
    "EXIT",
    "OPEN",
    "HELLO",
    "YES",
    "NO",
    "UP",
    "DOWN",
    "LEFT",
    "RIGHT",
    "GO",
    "HOT",
    "COLD",
    "NEW",
    "OLD",
    "BIG",
    "PARIS",
    "ROME",
    "LIMA",
    "OSLO",
    "KIND",
    "HAPPY",
    "PAPER",
    "MUSIC",
    "DANCE",
    "WATER",
    "EARTH",
]

# Strokes of digits as a hand draws them: x to the right and y down, in hundredths of a side.
_HAND_LINES = {
    "0": "50,0 12,20 5,60 30,98 70,97 95,60 85,15 50,0",
    "1": "25,20 55,0 55,100",
    "2": "10,22 30,2 70,2 90,25 70,55 8,100 95,100",
    "3": "10,5 80,3 90,25 40,46 92,60 85,92 40,100 8,88",
    "4": "65,0 5,65 95,65; 70,30 70,100",
    "5": "90,0 20,0 15,45 60,38 92,62 80,93 40,100 8,88",
    "6": "75,0 30,25 8,65 30,98 75,96 92,70 65,48 15,62",
    "7": "8,2 92,2 40,100",
    "8": "50,45 15,25 35,2 70,3 85,24 50,45 8,72 30,98 72,98 92,72 50,45",
    "9": "88,30 50,52 12,30 35,2 75,5 88,30 80,70 50,100",
}
# Of seven segments, the ones that are lit; each as the ends of a stroke.
_SEGMENTS = {
    "a": ((0, 0), (1, 0)),
    "b": ((1, 0), (1, 0.5)),
    "c": ((1, 0.5), (1, 1)),
    "d": ((0, 1), (1, 1)),
    "e": ((0, 0.5), (0, 1)),
    "f": ((0, 0), (0, 0.5)),
    "g": ((0, 0.5), (1, 0.5)),
}
_LIT = dict(
    zip(
        "0123456789",
        ["abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg"],
        strict=True,
    )
)

Colour = tuple[int, int, int]
Line = list[tuple[float, float]]


def _hand_strokes(lines: str) -> list[Line]:
    pairs = [[at.split(",") for at in line.split()] for line in lines.split(";")]
    return [[(int(x) / 100, int(y) / 100) for x, y in line] for line in pairs]


_HAND = {digit: _hand_strokes(lines) for digit, lines in _HAND_LINES.items()}


@dataclass(frozen=True)
class Thing:
    shape: str
    colour: str


@dataclass(frozen=True)
class Bar:
    name: str
    colour: str
    value: int


@dataclass(frozen=True)
class Scene:
    """What a picture shows."""

    kind: str
    """``digit``, ``number``, ``letter``, ``word``, ``shape``, ``pair``, ``count`` or ``chart``."""
    text: str = ""
    things: tuple[Thing, ...] = ()
    """Of ``pair``, from left to right."""
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True)
class Split:
    """Where the pictures of training and of the held-out set differ. The bands are disjoint."""

    families: Sequence[Sequence[Font]]
    angles: tuple[tuple[float, float], ...]
    """Bands of degrees, in both directions."""
    sizes: tuple[tuple[float, float], ...]
    """Bands of the height of a digit, as a share of the picture's."""
    has_hand: bool = True
    """Whether digits are drawn by strokes, too."""

    def angle(self, random: Random) -> float:
        return random.choice((-1, 1)) * random.uniform(*random.choice(self.angles))

    def size(self, random: Random) -> float:
        return random.uniform(*random.choice(self.sizes))

    def font(self, random: Random) -> Font:
        return random.choice(random.choice(self.families))


def train_split(families: Sequence[Sequence[Font]]) -> Split:
    return Split(families, ((0, 6), (9, 15)), ((0.22, 0.5), (0.58, 0.95)))


def held_out_split(families: Sequence[Sequence[Font]]) -> Split:
    return Split(families, ((6.5, 8.5),), ((0.51, 0.57),), has_hand=False)


def draw(
    kind: str, size: tuple[int, int], split: Split, random: Random
) -> tuple[Image.Image, Scene]:
    """A picture of this kind. size: its width and height."""
    paper = _paper(size, random)
    scene = _DRAWN[kind](paper, split, random)
    return _worn(paper.picture, random), scene


@dataclass
class Paper:
    picture: Image.Image
    background: Colour
    inks: list[Colour] = field(default_factory=list)
    """Colours that can be read on it."""

    @property
    def shorter(self) -> int:
        return min(self.picture.size)


def _paper(size: tuple[int, int], random: Random) -> Paper:
    """An empty picture of one colour, or of one that changes slowly."""
    background = _any_colour(random)
    if random.random() < 0.4:
        background = random.choice([(255, 255, 255), (0, 0, 0), (245, 240, 225), (235, 235, 235)])
    picture = Image.new("RGB", size, background)
    if random.random() < 0.25:
        other = tuple(min(255, max(0, c + random.randint(-40, 40))) for c in background)
        mask = Image.linear_gradient("L").rotate(random.choice((0, 90, 180, 270))).resize(size)
        picture = Image.composite(Image.new("RGB", size, other), picture, mask)
    return Paper(picture, background)


def _any_colour(random: Random) -> Colour:
    hue, light, full = random.random(), random.uniform(0.05, 0.97), random.uniform(0, 1)
    red, green, blue = (round(255 * c) for c in colorsys.hls_to_rgb(hue, light, full))
    return red, green, blue


def _lightness(colour: Colour) -> float:
    return 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2]


def _ink(paper: Paper, random: Random) -> Colour:
    """A colour that can be read on the paper."""
    for _ in range(20):
        colour = _any_colour(random)
        if abs(_lightness(colour) - _lightness(paper.background)) > 70:
            return colour
    return (0, 0, 0) if _lightness(paper.background) > 127 else (255, 255, 255)


def _write(
    text: str, paper: Paper, split: Split, random: Random, *, height: float | None = None
) -> None:
    """Put a text anywhere on the paper, turned and slanted."""
    width, tall = paper.picture.size
    share = split.size(random) if height is None else height
    target = share * tall
    if split.has_hand and text.isdigit() and random.random() < 0.22:
        layer = _by_strokes(text, target, random)
    else:
        layer = _by_font(text, target, split.font(random), random)
    slant = random.uniform(-0.22, 0.22) if random.random() < 0.4 else 0
    if slant:
        wide = layer.width + round(abs(slant) * layer.height)
        shift = -slant * layer.height if slant > 0 else 0
        layer = layer.transform(
            (wide, layer.height),
            Image.Transform.AFFINE,
            (1, slant, shift, 0, 1, 0),
            Image.Resampling.BILINEAR,
        )
    layer = layer.rotate(split.angle(random), Image.Resampling.BILINEAR, expand=True)
    box = layer.getbbox()
    if box is not None:
        layer = layer.crop(box)
    scale = min(0.97 * width / layer.width, 0.97 * tall / layer.height, 1)
    if scale < 1:
        size = max(1, int(layer.width * scale)), max(1, int(layer.height * scale))
        layer = layer.resize(size, Image.Resampling.BILINEAR)
    at = random.randint(0, width - layer.width), random.randint(0, tall - layer.height)
    paper.picture.paste(Image.new("RGB", layer.size, _ink(paper, random)), at, layer)


def _by_font(text: str, target: float, font: Font, random: Random) -> Image.Image:
    """The text as a mask, about ``target`` pixels high."""
    face = font.at(max(8, round(target * 1.35 / 8) * 8))
    stroke = 0
    if random.random() < 0.15:
        stroke = max(1, round(target / random.uniform(25, 60)))
    left, top, right, bottom = face.getbbox(text, stroke_width=stroke)
    size = max(1, math.ceil(right - left) + 2), max(1, math.ceil(bottom - top) + 2)
    layer = Image.new("L", size)
    draw = ImageDraw.Draw(layer)
    at = (1 - left, 1 - top)
    draw.text(at, text, 255, face, stroke_width=stroke)
    if stroke and random.random() < 0.35 and target > 40:  # an outline
        draw.text(at, text, 0, face)
    wide = random.uniform(0.8, 1.25) if random.random() < 0.3 else 1
    scale = target / layer.height
    size = max(1, round(layer.width * scale * wide)), max(1, round(target))
    return layer.resize(size, Image.Resampling.BILINEAR)


def _by_strokes(text: str, target: float, random: Random) -> Image.Image:
    """Digits of seven segments, or as a hand draws them."""
    is_hand = random.random() < 0.7
    high = max(8.0, target)
    wide, pen = high * random.uniform(0.45, 0.75), max(2, round(high * random.uniform(0.05, 0.16)))
    step = wide + pen + high * random.uniform(0.12, 0.25)
    layer = Image.new("L", (math.ceil(step * len(text)) + pen, math.ceil(high) + 2 * pen))
    draw = ImageDraw.Draw(layer)
    for place, digit in enumerate(text):
        if is_hand:
            strokes = [
                [(x + random.gauss(0, 0.035), y + random.gauss(0, 0.03)) for x, y in line]
                for line in _HAND[digit]
            ]
        else:
            strokes = [list(_SEGMENTS[name]) for name in _LIT[digit]]
        for line in strokes:
            points = [(pen + place * step + x * wide, pen + y * high) for x, y in line]
            curve = _smooth(points) if is_hand and len(points) > 2 else points
            draw.line(curve, 255, pen, joint="curve")
            for x, y in (curve[0], curve[-1]):
                draw.ellipse((x - pen / 2, y - pen / 2, x + pen / 2, y + pen / 2), 255)
    return layer


def _smooth(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """With its corners cut twice (Chaikin)."""
    for _ in range(2):
        cut = [points[0]]
        for (ax, ay), (bx, by) in pairwise(points):
            cut += [
                (0.75 * ax + 0.25 * bx, 0.75 * ay + 0.25 * by),
                (0.25 * ax + 0.75 * bx, 0.25 * ay + 0.75 * by),
            ]
        points = [*cut, points[-1]]
    return points


def _worn(picture: Image.Image, random: Random) -> Image.Image:
    """Blurred, noisy, faint or with specks, now and then."""
    if random.random() < 0.25:
        picture = picture.filter(
            ImageFilter.GaussianBlur(random.uniform(0.3, 0.011 * min(picture.size)))
        )
    if random.random() < 0.3:
        noise = np.random.default_rng(random.getrandbits(32))
        most = random.randint(3, 28)
        grain = noise.integers(-most, most + 1, (picture.height, picture.width, 1), np.int16)
        picture = Image.fromarray(np.clip(np.asarray(picture) + grain, 0, 255).astype(np.uint8))
    if random.random() < 0.12:
        picture = Image.blend(
            picture, Image.new("RGB", picture.size, _any_colour(random)), random.uniform(0, 0.25)
        )
    return picture


def _text_scene(kind: str, text: str, paper: Paper, split: Split, random: Random) -> Scene:
    _write(text, paper, split, random)
    return Scene(kind, text)


def _digit(paper: Paper, split: Split, random: Random) -> Scene:
    return _text_scene("digit", random.choice("0123456789"), paper, split, random)


def _number(paper: Paper, split: Split, random: Random) -> Scene:
    digits = random.choice((2, 2, 3, 3, 4))
    return _text_scene(
        "number", str(random.randint(10 ** (digits - 1), 10**digits - 1)), paper, split, random
    )


def _letter(paper: Paper, split: Split, random: Random) -> Scene:
    return _text_scene("letter", random.choice(LETTERS), paper, split, random)


def _word(paper: Paper, split: Split, random: Random) -> Scene:
    return _text_scene("word", random.choice(WORDS), paper, split, random)


def _contrasting(paper: Paper, random: Random, count: int) -> list[str]:
    """Names of different colours that the paper does not have."""
    far = [name for name, colour in COLOURS.items() if math.dist(colour, paper.background) > 130]
    random.shuffle(far)
    return far[:count]


def _shade(name: str, random: Random) -> Colour:
    red, green, blue = (min(255, max(0, c + random.randint(-14, 14))) for c in COLOURS[name])
    return red, green, blue


def _plain(paper: Paper, random: Random) -> None:
    """Make the paper gray, white, black or pale, so that colours have names beside it."""
    light = random.choice((255, 245, 230, 205, 60, 25, 0))
    tint = [min(255, max(0, light + random.randint(-12, 12))) for _ in range(3)]
    paper.background = (tint[0], tint[1], tint[2])
    paper.picture.paste(paper.background, (0, 0, *paper.picture.size))


def _put(
    thing: Thing, paper: Paper, box: tuple[float, float, float], split: Split, random: Random
) -> None:
    """box: centre and radius."""
    x, y, radius = box
    colour = _shade(thing.colour, random)
    draw = ImageDraw.Draw(paper.picture)
    turn = math.radians(split.angle(random))
    if thing.shape in ("circle", "ring"):
        round_box = (x - radius, y - radius, x + radius, y + radius)
        if thing.shape == "circle":
            draw.ellipse(round_box, colour)
        else:
            draw.ellipse(round_box, outline=colour, width=max(2, round(radius * 0.3)))
        return
    corners = _corners(thing.shape)
    turned = [
        (
            x + radius * (a * math.cos(turn) - b * math.sin(turn)),
            y + radius * (a * math.sin(turn) + b * math.cos(turn)),
        )
        for a, b in corners
    ]
    draw.polygon(turned, colour)


def _corners(shape: str) -> list[tuple[float, float]]:
    """Within the unit circle."""
    if shape == "square":
        return [(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)]
    if shape == "triangle":
        return [(0, -1), (0.88, 0.7), (-0.88, 0.7)]
    if shape == "diamond":
        return [(0, -1), (0.62, 0), (0, 1), (-0.62, 0)]
    if shape == "cross":
        t = 0.3
        return [
            (-t, -1),
            (t, -1),
            (t, -t),
            (1, -t),
            (1, t),
            (t, t),
            (t, 1),
            (-t, 1),
            (-t, t),
            (-1, t),
            (-1, -t),
            (-t, -t),
        ]
    assert shape == "star", shape
    return [
        (r * math.sin(math.pi * i / 5), -r * math.cos(math.pi * i / 5))
        for i, r in enumerate((1, 0.42) * 5)
    ]


def _shape(paper: Paper, split: Split, random: Random) -> Scene:
    _plain(paper, random)
    thing = Thing(random.choice(SHAPES), _contrasting(paper, random, 1)[0])
    width, height = paper.picture.size
    radius = paper.shorter * random.uniform(0.14, 0.46)
    x, y = random.uniform(radius, width - radius), random.uniform(radius, height - radius)
    _put(thing, paper, (x, y, radius), split, random)
    return Scene("shape", things=(thing,))


def _pair(paper: Paper, split: Split, random: Random) -> Scene:
    _plain(paper, random)
    shapes, colours = random.sample(SHAPES, 2), _contrasting(paper, random, 2)
    things = tuple(Thing(*both) for both in zip(shapes, colours, strict=True))
    width, height = paper.picture.size
    for place, thing in enumerate(things):
        radius = min(width / 2, height) * random.uniform(0.2, 0.44)
        half = width / 2
        x = place * half + random.uniform(radius, max(radius, half - radius))
        _put(thing, paper, (x, random.uniform(radius, height - radius), radius), split, random)
    return Scene("pair", things=things)


def _count(paper: Paper, split: Split, random: Random) -> Scene:
    """One to seven of one shape, in one colour."""
    _plain(paper, random)
    shape, colour = random.choice(SHAPES), _contrasting(paper, random, 1)[0]
    wanted = random.randint(1, 7)
    width, height = paper.picture.size
    columns = 3 if width >= height else 2 if width < 0.7 * height else 3
    rows = 3
    cells = random.sample(range(rows * columns), min(wanted, rows * columns))
    across, down = width / columns, height / rows
    things = []
    for cell in cells:
        radius = min(across, down) * random.uniform(0.28, 0.44)
        x = (cell % columns + 0.5) * across + random.uniform(-1, 1) * (across / 2 - radius)
        y = (cell // columns + 0.5) * down + random.uniform(-1, 1) * (down / 2 - radius)
        things.append(Thing(shape, colour))
        _put(things[-1], paper, (x, y, radius), split, random)
    return Scene("count", things=tuple(things))


def _chart(paper: Paper, split: Split, random: Random) -> Scene:
    """Two to five bars of different heights, with a letter below and a value above each."""
    _plain(paper, random)
    count = random.randint(2, 5)
    values = random.sample(range(1, 10), count)
    names = LETTERS[:count]
    same = random.random() < 0.3
    colours = _contrasting(paper, random, 1 if same else count)
    colours = colours * count if len(colours) < count else colours
    width, height = paper.picture.size
    draw, font = ImageDraw.Draw(paper.picture), split.font(random)
    label = max(9, round(height * random.uniform(0.12, 0.17)))
    ink = (0, 0, 0) if _lightness(paper.background) > 127 else (255, 255, 255)
    floor, unit = height - label * 1.25, (height - 2.6 * label) / 9
    step = width / count
    bars = []
    for place, (name, colour, value) in enumerate(zip(names, colours, values, strict=False)):
        bars.append(Bar(name, colour, value))
        left, right = (place + 0.18) * step, (place + 0.82) * step
        top = floor - value * unit
        draw.rectangle((left, top, right, floor), _shade(colour, random))
        middle = (left + right) / 2
        face = font.at(label)
        _centred(draw, (middle, floor + label * 0.65), name, ink, face)
        _centred(draw, (middle, top - label * 0.6), str(value), ink, face)
    draw.line((0, floor, width, floor), ink, max(1, round(height / 100)))
    return Scene("chart", bars=tuple(bars))


def _centred(
    draw: ImageDraw.ImageDraw,
    at: tuple[float, float],
    text: str,
    ink: Colour,
    face: ImageFont.FreeTypeFont,
) -> None:
    draw.text(at, text, ink, face, anchor="mm")


_DRAWN = {
    "digit": _digit,
    "number": _number,
    "letter": _letter,
    "word": _word,
    "shape": _shape,
    "pair": _pair,
    "count": _count,
    "chart": _chart,
}
KINDS = tuple(_DRAWN)
