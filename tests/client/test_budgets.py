"""Byte budgets: soft, in order, and never leaking what was taken."""

import asyncio

from tinkex.client.concurrency.budgets import ByteBudget


async def test_a_budget_admits_while_its_balance_is_not_negative() -> None:
    budget = ByteBudget(10)
    await budget.take(25)  # one oversize item always passes
    waiting = asyncio.create_task(budget.take(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    budget.give_back(25)
    await waiting
    assert budget.used == 1


async def test_a_budget_serves_in_order_and_forgets_who_left() -> None:
    budget = ByteBudget(1)
    order: list[int] = []

    async def use(number: int) -> None:
        async with budget.holding(5):
            order.append(number)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(use(i)) for i in range(5)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 3, 4]
    assert budget.used == 0
