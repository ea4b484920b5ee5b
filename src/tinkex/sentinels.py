"""Marks for "nobody said": what `tinker._types` offers to code that tells it from None."""

from typing import Literal

NoneType = type(None)


class NotGiven:
    """The value of an argument that was left out. False in a condition."""

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN = NotGiven()


class Omit:
    """Asks for a default (such as a header) to be left out altogether. False in a condition."""

    def __bool__(self) -> Literal[False]:
        return False
