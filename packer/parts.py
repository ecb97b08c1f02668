"""Parts: which shards of a plan are one machine's, if several pack it. Nobody coordinates them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Self

from packtrain._core.arguments import instance, unexpected, whole
from packtrain._core.errors import UsageError

_EXPECTED: Final = "I/N with I from 1 to N, such as 3/16; auto, or auto/N, in a Slurm array"
_VARIABLES: Final = ("ID", "MIN", "MAX", "STEP", "COUNT")


@dataclass(frozen=True)
class Part:
    """One of several parts of a dataset: shards I-1, I-1 + N, I-1 + 2N and so on, counted from 0.

    Every shard is in exactly one part of N, for any N. So N may differ from run to run.

    Attributes:
        number: The part, from 1.
        parts: Number of parts.
        origin: Where these were read, for people; empty if they were given.

    Raises:
        UsageError: There is no such part.
    """

    number: int
    parts: int
    origin: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        parts = whole("parts", self.parts, 1)
        number = whole("number", self.number)
        if not 1 <= number <= parts:
            hint = ". In a Slurm array whose tasks are counted from 0, --part auto finds the part" * (number == 0)
            raise UsageError(
                f"part {number}/{parts}: parts are counted from 1, so there are 1/{parts} to {parts}/{parts}{hint}"
            )
        for name, value in (("number", number), ("parts", parts)):
            # The only way to set a field of a frozen dataclass.
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] | None = None) -> Self:
        """Makes a part of ``3/16``, or of what Slurm says about a task of an array.

        With ``auto``, the tasks of an array are its parts, in order: of ``--array=0-9:3``, task 3 is part 2/4. With
        ``auto/N``, the number of a task is that of its part, whatever the other tasks are.

        Args:
            text: ``I/N``, ``auto`` or ``auto/N``.
            environment: Where Slurm's variables are; None for those of this process.

        Raises:
            UsageError: It is something else; this is no task of an array; or the array is a list of tasks, such as
                ``1,5,7``, of which a task knows only the first and the last.
        """
        if found := re.fullmatch(r"\s*([0-9]{1,9})/([0-9]{1,9})\s*", text):
            return cls(int(found[1]), int(found[2]))
        if found := re.fullmatch(r"\s*auto(?:/([0-9]{1,9}))?\s*", text):
            task = _ArrayTask.read(os.environ if environment is None else environment)
            if found[1]:
                return cls(task.id, int(found[1]), f"the number of {task}")
            return cls(task.rank, task.count, str(task))
        raise unexpected("part", text, _EXPECTED)

    @classmethod
    def of(cls, part: Part | str | None) -> Part | None:
        """Return a part that is given as an argument.

        Raises:
            UsageError: The text is no part.
        """
        if part is None:
            return None
        part = cls.parse(part) if isinstance(part, str) else part
        instance("part", part, Part)
        return part

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"

    def shards(self, count: int) -> range:
        """The numbers of the shards, of so many, that are in this part."""
        return range(self.number - 1, count, self.parts)


@dataclass(frozen=True)
class _ArrayTask:
    """A task of a Slurm array, as its environment describes it."""

    id: int
    first: int
    last: int
    step: int
    count: int

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Self:
        values = []
        for name in _VARIABLES:
            text = environment.get(f"SLURM_ARRAY_TASK_{name}", "not set")
            if not text.isdecimal():
                raise UsageError(
                    f"SLURM_ARRAY_TASK_{name} is {text}, but --part auto reads the part from it, in a task of a Slurm "
                    "array. Give the part itself, such as --part 3/16"
                )
            values.append(int(text))
        return cls(*values)

    def __str__(self) -> str:
        by = f" by {self.step}" if self.step > 1 else ""
        which = f" from {self.first} to {self.last}{by}" if self.count > 1 else ""
        return f"task {self.id} of a Slurm array of {self.count} task(s){which}"

    @property
    def rank(self) -> int:
        """The place of the task among those of the array, from 1."""
        even = range(self.first, self.last + 1, max(1, self.step))
        if len(even) != self.count or self.id not in even:
            raise UsageError(
                f"this is {self}, which is a list with gaps: Slurm does not say where in the list a task is. Say how "
                "many parts there are, as in --part auto/64: then the number of each task is that of its part"
            )
        return even.index(self.id) + 1


def array_list(numbers: list[int]) -> str:
    """Ascending numbers in the form of Slurm's ``--array``.

    >>> array_list([1, 2, 3, 5, 9, 10])
    '1-3,5,9-10'
    """
    texts = []
    for _, run in groupby(enumerate(numbers), lambda item: item[1] - item[0]):
        (_, first), *others = run
        texts.append(f"{first}-{others[-1][1]}" if others else str(first))
    return ",".join(texts)
