"""Pages are counted exactly, found again by what they hold, and reused oldest first."""

from __future__ import annotations

import numpy as np
import pytest

from tinkex.engine.sampling.cache.pages import SCRATCH_PAGE, PageKeys, PagePool


def keys_of(tokens: list[int], version: int = 0, size: int = 2) -> list[bytes]:
    keys = PageKeys(version, size)
    keys.extend(np.asarray(tokens, np.int32))
    return keys.keys


def test_pages_are_held_until_their_last_holder_lets_go() -> None:
    pool = PagePool(3, 2)
    pages = pool.take(2)
    pool.hold(pages[:1])
    pool.release(pages)
    assert (pool.used, pool.available) == (1, 2)
    pool.release(pages[:1])
    pool.check_idle()


def test_the_scratch_page_is_never_handed_out() -> None:
    assert SCRATCH_PAGE not in PagePool(5, 2).take(5)


def test_more_than_there_is_cannot_be_taken() -> None:
    pool = PagePool(2, 2)
    with pytest.raises(MemoryError):
        pool.take(3)
    assert pool.available == 2


def test_filed_pages_are_found_by_prefix_and_weights_version() -> None:
    pool = PagePool(4, 2)
    pages = pool.take(2)
    for page, key in zip(pages, keys_of([1, 2, 3, 4]), strict=True):
        pool.file(page, key)
    pool.release(pages)
    assert pool.find(keys_of([1, 2, 3, 4, 5])) == pages
    assert pool.find(keys_of([1, 2, 9, 4])) == pages[:1]
    assert pool.find(keys_of([9, 2, 3, 4])) == []
    assert pool.find(keys_of([1, 2, 3, 4], version=1)) == []


def test_reusable_pages_give_way_oldest_first() -> None:
    pool = PagePool(2, 2)
    old, new = pool.take(1), pool.take(1)
    pool.file(old[0], keys_of([1, 1])[0])
    pool.file(new[0], keys_of([2, 2])[0])
    pool.release(old)
    pool.release(new)
    assert pool.take(1) == old
    assert pool.find(keys_of([1, 1])) == []
    assert pool.find(keys_of([2, 2])) == new


def test_an_idle_pool_with_a_page_missing_is_reported() -> None:
    pool = PagePool(2, 2)
    pool.take(1)
    with pytest.raises(RuntimeError, match="1 held"):
        pool.check_idle()
