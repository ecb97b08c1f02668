"""Laws of what objects do first in a forked process."""

from __future__ import annotations

import os

from packtrain._core.forks import call_in_forked


class Told:
    """Writes a letter to a pipe in each forked process."""

    def __init__(self, letter: bytes, descriptor: int) -> None:
        self.letter, self.descriptor = letter, descriptor
        call_in_forked(self.tell)

    def tell(self) -> None:
        os.write(self.descriptor, self.letter)


def test_it_is_called_in_each_forked_process_as_long_as_the_object_lives() -> None:
    ours, theirs = os.pipe()
    told, gone = Told(b"a", theirs), Told(b"b", theirs)
    del gone
    for _ in range(2):
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)
    os.close(theirs)
    assert os.read(ours, 10) == b"aa"
    os.close(ours)
    assert told.letter == b"a"
