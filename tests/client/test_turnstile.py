"""Turns: operations go in the order of their numbers, whatever happens to one of them."""

import asyncio

import pytest

from tinkex.client.training.turnstile import Turnstile


async def test_turns_follow_the_numbers_not_the_arrivals() -> None:
    turns = Turnstile(1)
    numbers = [turns.draw(), turns.draw(3), turns.draw()]
    assert [list(n) for n in numbers] == [[1], [2, 3, 4], [5]]
    entered: list[int] = []

    async def enter(position: int) -> None:
        async with turns.turn(numbers[position]):
            entered.append(position)
            await asyncio.sleep(0)

    await asyncio.gather(enter(2), enter(1), enter(0))
    assert entered == [0, 1, 2]


async def test_whoever_fails_or_leaves_lets_the_next_one_in() -> None:
    turns = Turnstile(1)
    first, second, third = turns.draw(), turns.draw(), turns.draw()

    async def waits(numbers: range) -> str:
        async with turns.turn(numbers):
            return "in"

    cancelled = asyncio.create_task(waits(second))
    last = asyncio.create_task(waits(third))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(ZeroDivisionError):
        async with turns.turn(first):
            raise ZeroDivisionError
    assert await last == "in"
