"""A magic's line as words: split as a shell does but for brackets; `{expr}` and `$name` expanded in each."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from IPython.core.error import UsageError

_DOLLAR = re.compile(r"\$([^\W\d]\w*(?:\.[^\W\d]\w*)*)")
_OPEN, _CLOSE = "([{", ")]}"


def split(line: str) -> list[str]:
    """Split a line into arguments as a shell does, but keep brackets together with all that is in them.

    ``-a cfg={"lr": 0.1} 'two words'  # a comment`` gives ``-a``, ``cfg={"lr": 0.1}``, ``two words``.

    Raises
    ------
    UsageError
        When a quote is not closed.
    """
    try:
        return _split(line, brackets=True)
    except _Unclosed as bracket:
        try:
            return _split(line, brackets=False)
        except _Unclosed as quote:
            raise UsageError(f"{quote} is not closed in: {line.strip()}") from bracket


class _Unclosed(Exception):
    pass


def _split(line: str, *, brackets: bool) -> list[str]:
    words: list[str] = []
    word: str | None = None
    depth, at = 0, 0
    while at < len(line):
        char = line[at]
        if char == "#" and word is None and not depth:
            break
        if char in "'\"":
            python = depth > 0 or _in_source(words, word)
            end = at + 1
            while end < len(line) and line[end] != char:
                end += 2 if line[end] == "\\" and (char == '"' or python) else 1
            if end >= len(line):
                raise _Unclosed(f"the quote {char}")
            inner = line[at + 1 : end]
            if python:
                inner = char + inner + char
            elif char == '"':
                inner = re.sub(r'\\(["\\])', r"\1", inner)
            word, at = (word or "") + inner, end + 1
            continue
        if char == "\\" and not depth and line[at + 1 : at + 2] in tuple(" '\"\\"):
            word, at = (word or "") + line[at + 1], at + 2
            continue
        if brackets and char in _OPEN:
            depth += 1
        elif brackets and char in _CLOSE:
            depth = max(0, depth - 1)
        if char.isspace() and not depth:
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + char
        at += 1
    if depth:
        raise _Unclosed("a bracket")
    return words if word is None else [*words, word]


def _in_source(words: list[str], word: str | None) -> bool:
    """Whether a quote here is Python's, not the line's: after the sign of ``-a name='text'``."""
    if word is None or "=" not in word.removeprefix("--arg="):
        return False
    return word.startswith("--arg=") or (bool(words) and words[-1] in ("-a", "--arg"))


def expand_all(words: list[str], evaluate: Callable[[str], Any]) -> list[str]:
    """Expand each argument; what follows `-a` is Python source."""
    out: list[str] = []
    for word in words:
        code = word.startswith("--arg=") or (bool(out) and out[-1] in ("-a", "--arg"))
        out.append(expand(word, evaluate, code=code))
    return out


def expand(word: str, evaluate: Callable[[str], Any], *, code: bool = False) -> str:
    """Expand ``{expr}``, ``$name`` and ``$name.attr`` in one argument; ``{{`` and ``$$`` are plain.

    Braces that hold a dict, a set or JSON are left as they are.

    Parameters
    ----------
    word : str
        The argument.
    evaluate : callable
        Source text -> value, in the notebook's namespace.
    code : bool
        The argument is Python source: put the expression in, not its text.

    Raises
    ------
    UsageError
        When a name is undefined, an expression fails, or braces hold neither.
    """
    return "".join(_pieces(word, evaluate, code))


def _pieces(word: str, evaluate: Callable[[str], Any], code: bool) -> Iterator[str]:
    def value(text: str, spec: str = "") -> str:
        try:
            result = format(evaluate(text), spec) if spec else str(evaluate(text))
        except Exception as error:
            raise UsageError(f"{word}: cannot expand {text!r}: {type(error).__name__}: {error}") from error
        return f"({text})" if code else result

    at = 0
    while at < len(word):
        if code and word[at] in "'\"":  # a text of Python's own, where an f-string has its braces
            after = _text_end(word, at)
            yield word[at:after]
            at = after
        elif word.startswith("$$", at):
            yield "$"
            at += 2
        elif name := _DOLLAR.match(word, at):
            yield value(name[1])
            at = name.end()
        elif word[at] == "{":
            end = _closing(word, at)
            if end is None:
                raise UsageError(
                    f"{word}: the brace at character {at + 1} is not closed; write {{{{ for a plain one"
                )
            inner = word[at + 1 : end]
            if inner.startswith("{") and inner.endswith("}") and not code:
                yield inner
            elif (parts := _expression(inner, code)) is not None:
                yield value(*parts)
            elif _is_literal(word[at : end + 1]):
                yield word[at : end + 1]
            else:
                raise UsageError(
                    f"{word}: {{{inner}}} is no expression; write {{{{{inner}}}}} for plain braces"
                )
            at = end + 1
        else:
            yield word[at]
            at += 1


def _text_end(text: str, start: int) -> int:
    at = start + 1
    while at < len(text) and text[at] != text[start]:
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _closing(text: str, start: int) -> int | None:
    depth, quote = 0, ""
    at = start
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return None


def _expression(inner: str, code: bool) -> tuple[str, str] | None:
    """Return an expression to expand and its format spec; None when the braces are a display."""
    try:
        node = ast.parse(inner.strip(), mode="eval").body
    except SyntaxError:
        head, colon, spec = inner.rpartition(":")
        if colon and not code and re.fullmatch(r"[^\s\"'{}:]+", spec) and head.isidentifier():
            return head, spec
        return None
    return None if isinstance(node, (ast.Constant, ast.Tuple)) else (inner.strip(), "")


def _is_literal(text: str) -> bool:
    try:
        return isinstance(ast.parse(text, mode="eval").body, (ast.Dict, ast.Set, ast.DictComp, ast.SetComp))
    except SyntaxError:
        try:
            json.loads(text)
        except ValueError:
            return False
        return True
