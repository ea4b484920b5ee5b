"""Which exercise proves which method."""

from __future__ import annotations

from collections.abc import Callable

from compat.world import World

Exercise = Callable[[World], None]
EXERCISES: dict[str, Exercise] = {}


def proves(*methods: str) -> Callable[[Exercise], Exercise]:
    """Registers an exercise under the methods it proves."""

    def register(exercise: Exercise) -> Exercise:
        for method in methods:
            assert method not in EXERCISES, method
            EXERCISES[method] = exercise
        return exercise

    return register
