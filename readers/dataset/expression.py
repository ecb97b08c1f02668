"""The text of a filter: taken apart, compared with what may stand there, and written anew for polars.

polars' SQL knows far more than a filter may do: aggregates, windows, casts, sub-queries, functions that read files. So
it never sees what was typed. It gets words of the lists below, numbers, texts, and quoted names of known columns;
whatever else stands there is refused. So a name cannot become a keyword, and nothing that is added to polars later is
let in. Does not import polars.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from packtrain._core.errors import UsageError
from packtrain._core.suggestions import did_you_mean

MOST_CHARACTERS: Final = 4096
MOST_OPERATORS: Final = 100
"""The time that polars takes for n of them grows with the cube of n, and its stack with n: 500 `in` end the process."""
DEEPEST: Final = 32
"""The most parentheses that may be open at a time."""
_OPERATORS: Final = frozenset({"and", "between", "case", "ilike", "in", "is", "like", "not", "or", "when"})
_KEYWORDS: Final = _OPERATORS | {"else", "end", "false", "null", "then", "true"}
FUNCTIONS: Final = frozenset(
    {"abs", "ceil", "ends_with", "floor", "length", "lower", "regexp_like", "round", "starts_with", "upper"}
)
"""Functions of one row's values."""
_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+)
    | (?P<text>'(?:[^']|'')*')
    | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?(?![\w.]))
    | (?P<quoted>"[^"]*")
    | (?P<name>[a-z_]\w*(?:\.[a-z_]\w*)*)
    | (?P<sign><=|>=|<>|!=|==?|[-<>+*/%(),])""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_SPELT: Final = {"==": "=", "length": "cast(length"}
"""Operators that polars spells otherwise."""
_SHOWN: Final = 200


class Token(NamedTuple):
    """A piece of the text: ``kind`` is a group of the pattern, or ``keyword``, ``function`` or ``column``."""

    kind: str
    text: str


def checked(text: str, columns: Mapping[str, str]) -> tuple[str, list[str]]:
    """Takes a filter apart and writes it anew. Returns what may be handed to polars, and the columns that it uses.

    Args:
        text: The filter.
        columns: The columns by name, each with the reason why only ``is null`` may follow, or "" if there is none.

    Raises:
        UsageError: It is too long or too deep, or something stands in it that may not.
    """
    if len(text) > MOST_CHARACTERS:
        raise wrong(text, f"it has {len(text):,} characters, and at most {MOST_CHARACTERS:,} are read: shorten it")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise wrong(
            text, "it holds bytes that are not UTF-8: type `_` for such a character in a text after `like`"
        ) from None
    found = [*_tokens(text), Token("", "")]
    tokens = [_known(text, token, following, columns) for token, following in pairwise(found)]
    if not tokens:
        raise wrong(text, "it is empty: type a condition, such as width >= 256")
    sql = " ".join(_written(text, tokens))
    for place, token in enumerate(tokens):
        if token.kind == "column" and (reason := columns[token.text]):
            after = [following.text for following in tokens[place + 1 : place + 4]]
            if after[:2] != ["is", "null"] and after != ["is", "not", "null"]:
                raise wrong(text, reason)
    names = dict.fromkeys(token.text for token in tokens if token.kind == "column")
    return sql, list(names)


def wrong(text: str, what: str) -> UsageError:
    """The error about a filter, which it shows."""
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return UsageError(f"where={shown!r}: {what}")


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise wrong(text, f"cannot read {text[at : at + 20]!r} at character {at + 1}{_advice(text[at])}")
        assert found.lastgroup is not None
        if found.lastgroup != "blank":
            yield Token(found.lastgroup, found[0])
        at = found.end()


def _advice(character: str) -> str:
    if character in "'\"":
        return f": the closing {character} is missing"
    return ". Texts stand in '...'; docs/querying.md lists what an expression may hold"


def _known(text: str, token: Token, following: Token, columns: Mapping[str, str]) -> Token:
    """The token as a keyword, function or column, unless it is no name."""
    kind, word = token
    if kind == "quoted":
        word = word[1:-1]
    elif kind != "name":
        return token
    elif word.lower() in _KEYWORDS:
        return Token("keyword", word.lower())
    elif following.text == "(":
        if word.lower() in FUNCTIONS:
            return Token("function", word.lower())
        raise wrong(text, f"there is no function {word!r}{_instead(word, sorted(FUNCTIONS))}")
    if word not in columns:
        what = " (a text stands in '...')" if kind == "quoted" else ""
        raise wrong(text, f"there is no column {word!r}{what}{_instead(word, columns)}")
    return Token("column", word)


def _instead(word: str, known: Iterable[str]) -> str:
    return did_you_mean(word, known) or f": take one of {', '.join(known)}"


def _spelt(token: Token) -> str:
    kind, word = token
    if kind == "number" and not word.isdigit():
        # polars would take 0.5 for a decimal, which has few digits and no result of a division by zero.
        return f"cast('{word}' as double)"
    return f'"{word}"' if kind == "column" else _SPELT.get(word, word) if kind in ("sign", "function") else word


def _written(text: str, tokens: list[Token]) -> Iterator[str]:
    """The tokens for polars; raises UsageError for parentheses that do not fit, and for too many of anything."""
    operators, closing, before = 0, list[str](), Token("", "")
    for token in tokens:
        kind, word = token
        if word == "(" and kind == "sign":
            # polars' lengths are of 32 bits without a sign, so that length(path) - 20 would never be negative.
            is_length = before == Token("function", "length")
            closing.append(") as bigint)" if is_length else ")")
            if len(closing) > DEEPEST:
                raise wrong(text, f"more than {DEEPEST} parentheses are open: write it with fewer")
            yield word
        elif word == ")" and kind == "sign":
            if not closing:
                raise wrong(text, "a ) has no (: leave it out, or add the (")
            yield closing.pop()
        else:
            operators += word in _OPERATORS if kind == "keyword" else kind == "sign" and word != ","
            yield _spelt(token)
        before = token
    if closing:
        raise wrong(text, "a ( is never closed: add the )")
    if operators > MOST_OPERATORS:
        advice = "take `in (...)` for many values, or one `where` after the other"
        raise wrong(text, f"it has {operators} operators, and at most {MOST_OPERATORS} are read: {advice}")
