"""JPEGs of every kind, written coefficient by coefficient: what Pillow's encoder cannot make.

Nothing here, in jpegcoder.py and in jpegparts.py uses libjpeg, so that it can bear witness about what does.
"""

from __future__ import annotations

import base64
import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from helpers.corpus import XMP, exif
from helpers.jpegcoder import RESTART, Coder, Scan, Token, coded, codes, random_code

Coefficients = npt.NDArray[np.int64]  # [block rows, block columns, 64], in zigzag order

SAMPLINGS: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "grey": ((1, 1),),
    "grey 2x2": ((2, 2),),
    "4:4:4": ((1, 1), (1, 1), (1, 1)),
    "4:2:2": ((2, 1), (1, 1), (1, 1)),
    "4:2:0": ((2, 2), (1, 1), (1, 1)),
    "4:4:0": ((1, 2), (1, 1), (1, 1)),
    "4:1:1": ((4, 1), (1, 1), (1, 1)),
    "4x2": ((4, 2), (1, 1), (1, 1)),
    "1x4": ((1, 4), (1, 1), (1, 1)),
    "mixed": ((2, 2), (2, 1), (1, 2)),
    "chroma is larger": ((1, 1), (2, 2), (1, 1)),
    "only chroma is wide": ((1, 1), (2, 1), (2, 1)),
    "all twice": ((2, 1), (2, 1), (2, 1)),
    "4x1 and 2x1": ((4, 1), (2, 1), (1, 1)),
}

NO_TRANSFORM: Final = (0xEE, b"Adobe" + struct.pack(">HHHB", 100, 0, 0, 0))
JFIF: Final = (0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
SEGMENTS: Final = (
    JFIF,
    (0xE1, exif(6)),
    (0xE1, XMP + b"<x/>"),
    (0xE2, b"ICC_PROFILE\0\1\2" + b"colours" * 50),
    (0xE2, b"ICC_PROFILE\0\2\2" + b"more of them"),
    (0xE2, b"FPXR\0and so on"),
    (0xE9, b"somebody else's"),
    (0xED, b"Photoshop 3.0\0" + b"8BIM" * 9),
    (0xEF, b""),
    (0xFE, b"\xff\xda hello \xff\xc0"),
)

# Made by libjpeg-turbo's cjpeg: arithmetic coding is a coder of its own.
ARITHMETIC: Final = {
    "4:2:0": base64.b85decode(
        "|JeWF01!$>Nk#wx0RR9200961|JwjV02B@n5)Ta&5)cv>6%-gAG9exu93DL^E+jHZKuk+VKt@GST61DhRc%&9Mr4R(ZFhTtf`Lw8jhBplm"
        "UDiAeE-`3Lje^R7akfOJ0T%Ed{ahKe0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0=}O01*fP6#yLr0U"
        "`hb5di}c0sqVZ3IGrg1pyEd1^?Or3<CiG0ucid06zfjAZlADjql`Q*c85(>Q8BuUM+I0N{1>}VktVqwbrqwV9Vn538Ykx3Ov&(s+)is_*+"
        "K|5igo$P)Qqc2Iufj8x4V7M*hf6fee<A*RF}>$+m=0ke-a%^I{^6m(cbuTK@p&`0jSU3eWeIlnLUdji_X|wdnl5RnnSvaJVUBQ#4dcxV35"
        "Xh#Qi^fZNB95ivmdg2BH{IPI0ekpx%kg#Xz"
    ),
    "progressive grey": base64.b85decode(
        "|JeWF01!$>Nk#wx0RR9200961|JwjV02B@n5)Ta&5)cv>6%-gAG9exu93DL^E+jHZKuk+VKt@GST61DhRc%&9Mr4R(ZFhTtf`Lw8jhBplm"
        "UDiAeE-S-3kU!W02KiN5di<p00aOK|Jncu0RaF200HyNRz}eO%m4%s1^?Or2mt{A0R;jMOEoeD>Z1PuTHYx%xG?|B00a;P|Jncu0RaF8KL"
        "S*PuQ@;y2LU+$%m4%s1^?Or2mt{A0Y4!)`f+x(_Cy3_>j_$&Xq5lj00;pA0000GEdR^^1P}%P+5iXv0RRC%5ak*g3aS`>lOy$uD^8M#C|2"
        "$*sCcy@fdAP"
    ),
    "progressive 4:2:2, restarting": base64.b85decode(
        "|JeWF01!$>Nk#wx0RR9200961|JwjV02B@n5)Ta&5)cv>6%-gAG9exu93DL^E+jHZKuk+VKt@GST61DhRc%&9Mr4R(ZFhTtf`Lw8jhBplm"
        "UDiAeE-`3Lje^R7akfOJ0T%Ed{ahKe0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0=}P01*fP2>=@d0U"
        "-ba5di}c0sqVZ1^^HN5dYl(1ONj6+5ij#0RRFJ0}ucJ0rg!UWFY_0(1J7s6eE6s|I7dc5C#9;00aO8|Jncu0RaF31p*FBQY^p6VyOSn9Eu"
        "DzJpar91Q7-Q-2emt0{_|o2mu2D0Y3pAS=GKH!V}%V|IjsycdMZP%m4%t1^?Or2mt~C0Y3pt9Z~T2qW8f6&=oTO%m4%s1^?Xu1ONp8+5iX"
        "v0RRR+0&P7k2j(M?|IqXQ%m4%s1^?Or2mt{A0Y4$JzO~xZ$8a0z2wM2!|Ii7G!2jI<1ONj6+5ij#0RRF30{{R35aEFT&;<X?00a>Q|Jncu"
        "0RsU6KM?PySiFG$&|47y%m4%t1^?Or2mt~C0Y4D%!#PEfZIIUg&>TSj%m4%s1^?Xu1ONp8+5iXv0RRC%5IIS=il$#ucT%w{@U|1<4*vj$f"
        "d9}>yc!%p|Je"
    ),
    "4:4:4, restarting": base64.b85decode(
        "|JeWF01!$>Nk#wx0RR9200961|JwjV02B@n5)Ta&5)cv>6%-gAG9exu93DL^E+jHZKuk+VKt@GST61DhRc%&9Mr4R(ZFhTtf`Lw8jhBplm"
        "UDiAeE-`3Lje^R7akfOJ0T%Ed{ahKe0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0=}O01*fP3jh-X0T"
        "BQK5di}c0sqVZ3IGrg1pyEd1^?Xu1ONj6+5ij#0RRFK0}%i}0Q+Wo@2`Au?nXWO9HcZBHFk{7&eCJ#dS?7ubR|$yDqa5ajLuf<iIm;XYU}"
        "l_1mYZpZ~ITX)li|)p#RYQzd-Cl`<0=3#L8jTRL8r3nY5kG{u8vlcfnPXZ*F-7SN`ercY`czpzueh(@E%$od41Oi_Pq^A3u;xC-+nOU<#a"
        "@IzVJj{!_WpJ^S>s#RAyeI4UU<u&oMwjQ`m"
    ),
}


@dataclass(frozen=True)
class Picture:
    """The content of a JPEG, however it is coded.

    Attributes:
        width: Pixels.
        height: Pixels.
        samplings: Of each component, across and down.
        coefficients: Of each component, with the blocks that only fill its last MCUs.
        quantisers: Of each component, in zigzag order.
    """

    width: int
    height: int
    samplings: tuple[tuple[int, int], ...]
    coefficients: tuple[Coefficients, ...]
    quantisers: tuple[tuple[int, ...], ...]

    @property
    def mcu(self) -> tuple[int, int]:
        """Pixels of an MCU, across and down."""
        if len(self.samplings) == 1:
            return 8, 8
        across, down = (max(side) for side in zip(*self.samplings, strict=True))
        return 8 * across, 8 * down

    @property
    def mcus(self) -> tuple[int, int]:
        """MCUs in a row, and rows."""
        return -(-self.width // self.mcu[0]), -(-self.height // self.mcu[1])

    def blocks(self, component: int) -> tuple[int, int]:
        """Blocks of a component without those that only fill MCUs: across and down."""
        most = tuple(max(side) for side in zip(*self.samplings, strict=True))
        across, down = self.samplings[component]
        return -(-self.width * across // (8 * most[0])), -(-self.height * down // (8 * most[1]))

    def seen(self) -> list[Coefficients]:
        """The coefficients that count."""
        sizes = map(self.blocks, range(len(self.samplings)))
        return [values[:down, :across] for values, (across, down) in zip(self.coefficients, sizes, strict=True)]


def picture(
    random: np.random.Generator,
    width: int,
    height: int,
    sampling: str = "4:2:0",
    *,
    density: float | None = None,
    wide_tables: bool = False,
) -> Picture:
    """A picture of independent blocks: each pixel differs, and every coefficient occurs."""
    samplings = SAMPLINGS[sampling]
    empty = Picture(width, height, samplings, (), ())
    columns, rows = empty.mcus
    density = float(random.choice([0, 0.03, 0.3, 1])) if density is None else density
    coefficients, quantisers = [], []
    for across, down in samplings if len(samplings) > 1 else ((1, 1),):
        shape = rows * down, columns * across, 64
        sizes = np.minimum(random.geometric(0.3, shape), 200) * random.choice([-1, 1], shape)
        values = np.where(random.random(shape) < density, sizes, 0)
        values[..., 0] = random.integers(-700, 700, shape[:2])
        coefficients.append(values)
        tables = random.integers(1, 5, 64)
        if wide_tables:
            tables[63] = 300 + random.integers(100)
            values[..., 63] = random.integers(-2, 3, shape[:2])
        quantisers.append(tuple(tables.tolist()))
    return Picture(width, height, samplings, tuple(coefficients), tuple(quantisers))


# --- writing ---


def _tokens(picture: Picture, scan: Scan, restart: int, progressive: bool) -> Iterator[Token]:
    coder = Coder(scan, progressive)
    blocks = [values.tolist() for values in picture.coefficients]
    for number, members in enumerate(mcus_of(picture, scan.components)):
        if restart and number and number % restart == 0:
            yield from coder.restart()
        for component, row, column in members:
            yield from coder.block(component, blocks[component][row][column])
    yield from coder.flush()


def mcus_of(picture: Picture, components: Sequence[int]) -> Iterator[list[tuple[int, int, int]]]:
    """(component, block row, block column) of each MCU of a scan."""
    if len(components) == 1:
        across, down = picture.blocks(components[0])
        for row, column in itertools.product(range(down), range(across)):
            yield [(components[0], row, column)]
        return
    columns, rows = picture.mcus
    for row, column in itertools.product(range(rows), range(columns)):
        yield [
            (component, row * down + y, column * across + x)
            for component in components
            for across, down in (picture.samplings[component],)
            for y, x in itertools.product(range(down), range(across))
        ]


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def _scan(
    picture: Picture, scan: Scan, restart: int, progressive: bool, random: np.random.Generator, names: Sequence[int]
) -> bytes:
    tokens = list(_tokens(picture, scan, restart, progressive))
    tables = sorted({token.table for token in tokens if token.table})
    words, out = {}, b""
    for table in tables:
        used = sorted({token.symbol for token in tokens if token.table == table})
        code = random_code(used, random)
        words[table] = codes(code)
        counts = bytes(sum(length == size for length, _ in code) for size in range(1, 17))
        out += segment(0xC4, bytes([table[0] << 4 | table[1]]) + counts + bytes(symbol for _, symbol in code))
    parts = b"".join(bytes([names[component], min(component, 1) * 0x11]) for component in scan.components)
    spectrum = bytes([scan.first, scan.last, scan.high << 4 | scan.low])
    out += segment(0xDA, bytes([len(scan.components)]) + parts + spectrum)
    pieces: list[list[str]] = [[]]
    for token in tokens:
        if token is RESTART:
            pieces.append([])
        else:
            pieces[-1].append((words[token.table][token.symbol] if token.table else "") + token.bits)
    for number, piece in enumerate(pieces):
        out += (bytes([0xFF, 0xD0 | (number - 1) % 8]) if number else b"") + coded("".join(piece))
    return out


def written(
    picture: Picture,
    random: np.random.Generator,
    *,
    scans: Sequence[Scan] | None = None,
    process: int = 0xC0,
    restart: int = 0,
    segments: Sequence[tuple[int, bytes]] = (JFIF,),
    names: Sequence[int] = (1, 2, 3, 4),
) -> bytes:
    """A JPEG file.

    Args:
        picture: What it says.
        random: Chooses the Huffman codes.
        scans: By default one, of all components.
        process: The frame's marker: 0xC0 baseline, 0xC1 extended, 0xC2 progressive.
        restart: MCUs between restart markers, or 0.
        segments: (marker, body) of segments to place in front.
        names: Identifiers of the components.
    """
    members = tuple(range(len(picture.samplings)))
    out = b"\xff\xd8" + b"".join(segment(*each) for each in segments)
    for number, table in enumerate(picture.quantisers):
        wide = max(table) > 255
        out += segment(0xDB, bytes([wide << 4 | number]) + struct.pack(f">64{'H' if wide else 'B'}", *table))
    frame = struct.pack(">BHHB", 8, picture.height, picture.width, len(members))
    for number, (across, down) in enumerate(picture.samplings):
        frame += bytes([names[number], across << 4 | down, number])
    out += segment(process, frame)
    out += segment(0xDD, restart.to_bytes(2)) if restart else b""
    for scan in scans or [Scan(members)]:
        out += _scan(picture, scan, restart, process == 0xC2, random, names)
    return out + b"\xff\xd9"


def scan_bomb(width: int, height: int, scans: int) -> bytes:
    """A grey progressive image of one colour, each of whose scans has a few bytes. It is complete with 190 scans."""
    blocks = -(-width // 8) * -(-height // 8)
    out = b"\xff\xd8" + segment(0xDB, bytes([0]) + bytes([1]) * 64)
    out += segment(0xC2, struct.pack(">BHHB", 8, height, width, 1) + bytes([1, 0x11, 0]))
    # One code of one bit each: no difference; and the end of as many blocks as 14 further bits say.
    out += segment(0xC4, bytes([0x00, 1]) + bytes(15) + bytes([0]))
    out += segment(0xC4, bytes([0x10, 1]) + bytes(15) + bytes([0xE0]))
    out += segment(0xDA, bytes([1, 1, 0, 0, 0, 0])) + bytes(-(-blocks // 8))
    bits = ("0" + "1" * 14) * -(-blocks // 32767)
    ended = int(bits + "1" * (-len(bits) % 8), 2).to_bytes(-(-len(bits) // 8)).replace(b"\xff", b"\xff\0")
    # Each frequency first without its lowest two bits, then these one by one.
    places = [(place, bit) for bit in ((0, 2), (2, 1), (1, 0)) for place in range(1, 64)]
    for place, (high, low) in [*places * (1 + scans // len(places))][: scans - 1]:
        out += segment(0xDA, bytes([1, 1, 0, place, place, high << 4 | low])) + ended
    return out + b"\xff\xd9"


def separate(picture: Picture) -> list[Scan]:
    """A scan for each component."""
    return [Scan((component,)) for component in range(len(picture.samplings))]


def progressive(picture: Picture) -> list[Scan]:
    """Scans that bring every coefficient, most of them in two steps."""
    members = tuple(range(len(picture.samplings)))
    scans = [Scan(members, 0, 0, 0, 1)]
    scans += [Scan((member,), 1, 5, 0, 2) for member in members]
    scans += [Scan((member,), 6, 63, 0, 1) for member in members]
    scans += [Scan((member,), 1, 5, 2, 1) for member in members]
    scans.append(Scan(members, 0, 0, 1, 0))
    scans += [Scan((member,), 1, 63, 1, 0) for member in members]
    return scans


def any_jpeg(random: np.random.Generator, most: int = 90) -> tuple[Picture, bytes]:
    """A JPEG of any kind that can be crop-ready, with no side longer than `most` pixels."""
    width, height = (int(random.integers(1, random.choice([1, 16, most]) + 1)) for _ in range(2))
    process = int(random.choice([0xC0, 0xC1, 0xC2]))
    pixels = picture(
        random, width, height, list(SAMPLINGS)[random.integers(len(SAMPLINGS))], wide_tables=process == 0xC1
    )
    segments = [SEGMENTS[place] for place in random.permutation(len(SEGMENTS))[: random.integers(len(SEGMENTS) + 1)]]
    names, colour = (1, 2, 3), random.integers(4)
    if colour < 2:
        # What tells libjpeg that a picture is stored as RGB.
        segments = [each for each in segments if each != JFIF]
        segments += [NO_TRANSFORM] if colour else []
        names = (1, 2, 3) if colour else (82, 71, 66)
    scans = {0xC2: progressive(pixels)}.get(process, separate(pixels) if random.random() < 0.3 else None)
    restart = int(random.integers(1, 9)) if random.random() < 0.5 else 0
    data = written(pixels, random, scans=scans, process=process, restart=restart, segments=segments, names=names)
    return pixels, data


def rectangles(random: np.random.Generator, width: int, height: int, count: int) -> Iterator[tuple[int, int, int, int]]:
    """The whole image, its corners' pixels, and random rectangles in it, many of which touch an edge."""
    yield 0, 0, width, height
    yield from itertools.product({0, width - 1}, {0, height - 1}, (1,), (1,))
    for _ in range(count):
        spans = []
        for side in (width, height):
            size = int(random.integers(1, min(side, [1, 2, 20, side][random.integers(4)]) + 1))
            start = [0, side - size, int(random.integers(side - size + 1))][random.integers(3)]
            spans.append((start, size))
        (left, across), (top, down) = spans
        yield left, top, across, down
