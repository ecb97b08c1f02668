"""Laws of sheets, and of how terminals are sent images."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers.support import picture
from PIL import Image, ImageFont

from packtrain._extras.looking import sheet as sheets
from packtrain._extras.looking.sheet import evenly, sheet
from packtrain._extras.looking.terminal import protocol_of, shown
from packtrain._readers.dataset.pictures import Picture


def test_rows_are_spread_evenly_from_the_first_on() -> None:
    assert evenly(range(100), 4) == [0, 25, 50, 75]
    assert evenly(range(3), 64) == [0, 1, 2]
    assert evenly(range(10**12), 2) == [0, 5 * 10**11]


def test_pictures_stand_in_their_order_in_the_middle_of_their_tiles() -> None:
    images = [picture(number, 40, 30) for number in range(5)]
    made = np.asarray(sheet([(row, Picture(image, {})) for row, image in enumerate(images)], 50, columns=2))
    for number, image in enumerate(images):
        left, top = 8 + number % 2 * 58 + 5, 8 + number // 2 * (50 + 16 + 8) + 10
        assert (made[top : top + 30, left : left + 40] == np.asarray(image)).all()


def test_a_problem_stands_in_the_place_of_its_picture() -> None:
    sound, damaged = Picture(picture(1, 50, 50), {}), Picture(picture(1, 50, 50), {}, "row 7 is damaged")
    made = [np.asarray(sheet([(7, each)], 50)) for each in (sound, damaged)]
    assert (made[0][8:58, 8:58] == np.asarray(sound.image)).all()
    assert made[1][8, 8].tolist() == [201, 42, 42]
    assert (made[0] != made[1]).any(2)[12:50, 12:50].mean() > 0.9


@pytest.mark.parametrize("font", ["the system's", "Pillow's", "the one of an old Pillow"])
def test_every_letter_can_be_written(font: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sheets._font.cache_clear()
    if font != "the system's":
        monkeypatch.setattr(sheets, "_FONTS", ("no such font",))
    if font == "the one of an old Pillow":
        monkeypatch.setattr(ImageFont, "load_default", ImageFont.load_default_imagefont)
    try:
        texts = {"label": "図書館 🐈 \ud800 אבג", "caption": "Ж" * 5000, "other": "\n\0\u202e"}
        assert sheet([(0, Picture(None, texts))], 50).size == (66, 50 + 3 * 16 + 16)
    finally:
        sheets._font.cache_clear()


@pytest.mark.parametrize(
    ("environment", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm2"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "iterm2"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM": "xterm-256color"}, None),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/tmux"}, None),
        ({"TERM": "screen-256color", "LC_TERMINAL": "iTerm2"}, None),
        ({}, None),
    ],
)
def test_a_protocol_is_known_by_the_environment(environment: dict[str, str], protocol: str | None) -> None:
    assert protocol_of(environment) == protocol


def from_kitty(text: str) -> Image.Image:
    pieces = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", text)
    assert "".join(f"\x1b_G{head};{piece}\x1b\\" for head, piece in pieces) + "\n" == text
    assert pieces[0][0].startswith("a=T,f=100,")
    assert [head[-3:] for head, _ in pieces] == ["m=1"] * (len(pieces) - 1) + ["m=0"]
    assert all(len(piece) <= 4096 for _, piece in pieces)
    return Image.open(io.BytesIO(base64.b64decode("".join(piece for _, piece in pieces))))


def from_iterm2(text: str) -> Image.Image:
    found = re.fullmatch(r"\x1b\]1337;File=inline=1;size=(\d+):([^\a]*)\a\n", text)
    assert found is not None
    data = base64.b64decode(found[2])
    assert len(data) == int(found[1])
    return Image.open(io.BytesIO(data))


def from_sixel(text: str) -> npt.NDArray[np.float64]:
    """The image that a terminal draws, by the VT340's manual."""
    found = re.fullmatch(r'\x1bP0;1q"1;1;(\d+);(\d+)(.*)\x1b\\\n', text, re.DOTALL)
    assert found is not None
    made = np.zeros((int(found[2]), int(found[1]), 3))
    palette: dict[int, Any] = {}
    colour = across = down = 0
    for number, rgb, count, repeated, letter, move in re.findall(
        r"#(\d+)(;2;\d+;\d+;\d+)?|!(\d+)([?-~])|([?-~])|([$-])", found[3]
    ):
        if number:
            colour = int(number)
            if rgb:
                palette[colour] = [float(part) * 2.55 for part in rgb.split(";")[2:]]
        elif move:
            across, down = 0, down + 6 * (move == "-")
        else:
            bits, stop = ord(repeated or letter) - 63, across + int(count or 1)
            for bit in range(6):
                if bits >> bit & 1:
                    made[down + bit, across:stop] = palette[colour]
            across = stop
    return made


def test_a_terminal_gets_the_image() -> None:
    image = picture(3, 150, 101)
    assert (np.asarray(from_kitty(shown(image, "kitty"))) == np.asarray(image)).all()
    assert (np.asarray(from_iterm2(shown(image, "iterm2"))) == np.asarray(image)).all()
    # Sixels have 256 colours, whose parts are percents.
    image = Image.eval(image, lambda value: value // 51 * 51)
    assert abs(from_sixel(shown(image, "sixel")) - np.asarray(image)).max() < 1e-6
