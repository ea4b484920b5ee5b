"""Pages of a model that also has states: a prefix is found as far as a snapshot of them."""

from __future__ import annotations

from collections.abc import Iterable

from tinkex.engine.sampling.cache.pages import PagePool
from tinkex.engine.sampling.cache.recurrent_states import SequenceStates
from tinkex.engine.sampling.request import Branch


class StatefulPagePool(PagePool):
    def __init__(self, total: int, size: int, states: SequenceStates) -> None:
        self._states = states
        super().__init__(total, size)

    def reset(self) -> None:
        self._states.drop_all()
        super().reset()

    def find(self, keys: Iterable[bytes]) -> list[int]:
        found = super().find(keys)
        while found and self._key_of[found[-1]] not in self._states:
            found.pop()
        return found

    def keep(self, branch: Branch, key: bytes) -> None:
        """Keep the branch's state under the key of the page that ends with it."""
        if key in self._page_of:
            self._states.keep(branch, key, self._held)

    def _held(self, key: bytes) -> bool:
        return self._page_of.get(key) in self._holders

    def forget_all(self) -> None:
        self._states.drop_all()
        super().forget_all()

    def _forget(self, page: int) -> bytes:
        key = super()._forget(page)
        self._states.drop(key)
        return key
