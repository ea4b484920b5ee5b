"""Sync methods made from async ones, and the other way round: the only place where that is done.

A public operation is written once. ``on_sdk_loop`` turns an async core into a method that can be
awaited from any loop; ``blocking``, ``future_of`` and ``awaitable_of`` derive its sync twins;
``async_twin`` derives the async twin of a method that returns a future at once. All of them are
plain functions, so they can be wrapped or replaced on the class like any other method.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from tinkex.client.concurrency.futures import AwaitableConcurrentFuture, ResultFuture
from tinkex.client.concurrency.running_loop import refuse_on_sdk_loop, warn_if_blocking


class RunsOnLoop(Protocol):
    """What an object needs for its cores to be bridged."""

    def _submit(self, work: Coroutine[Any, Any, Any]) -> ResultFuture[Any]: ...


S = TypeVar("S", bound=RunsOnLoop)
P = ParamSpec("P")
T = TypeVar("T")

_Async = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]


def on_sdk_loop(core: _Async[S, P, T]) -> _Async[S, P, T]:
    """An async method whose body always runs on the SDK's loop."""

    async def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self._submit(core(self, *args, **kwargs)))

    return functools.update_wrapper(method, core)


def future_of(method: _Async[S, P, T]) -> Callable[Concatenate[S, P], ResultFuture[T]]:
    """The sync twin that starts the work and returns a ``ResultFuture``."""
    core = inspect.unwrap(method)

    def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> ResultFuture[T]:
        return self._submit(_begun(core, twin, self, args, kwargs))

    return _named_after(method, twin, "ResultFuture[{}]")


def awaitable_of(
    method: _Async[S, P, T],
) -> Callable[Concatenate[S, P], AwaitableConcurrentFuture[T]]:
    """The sync twin that starts the work and returns an ``APIFuture``."""
    core = inspect.unwrap(method)

    def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> AwaitableConcurrentFuture[T]:
        return AwaitableConcurrentFuture(self._submit(_begun(core, twin, self, args, kwargs)))

    return _named_after(method, twin, "APIFuture[{}]")


def blocking(method: _Async[S, P, T]) -> Callable[Concatenate[S, P], T]:
    """The sync twin that waits for the value."""
    core = inspect.unwrap(method)

    def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        refuse_on_sdk_loop(twin.__name__)
        warn_if_blocking(twin.__name__, method.__name__)
        value: T = self._submit(_begun(core, twin, self, args, kwargs)).result_here()
        return value

    return _named_after(method, twin, "{}")


def async_twin(method: Callable[Concatenate[S, P], T]) -> _Async[S, P, T]:
    """The async twin of a method that returns without waiting: one await gives what it returns."""
    name = method.__name__

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # Through the attribute, so a subclass that overrides the sync method changes both.
        value: T = getattr(self, name)(*args, **kwargs)
        return value

    functools.update_wrapper(twin, method)
    twin.__name__ = f"{name}_async"
    twin.__qualname__ = f"{method.__qualname__}_async"
    return twin


F = TypeVar("F", bound=Callable[..., Any])


def _begun(
    core: Callable[..., Coroutine[Any, Any, T]],
    twin: Callable[..., Any],
    instance: RunsOnLoop,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Coroutine[Any, Any, T]:
    """The work, not started. A wrong argument is told of the method that was called."""
    try:
        return core(instance, *args, **kwargs)
    except TypeError as error:
        told = str(error).replace(f"{core.__qualname__}()", f"{twin.__qualname__}()")
        raise TypeError(told) from None


def _named_after(method: Callable[..., Any], twin: F, returns: str) -> F:
    """`twin` as `help` and an editor shall show it; `returns` is the form of what it returns."""
    owner, _, name = method.__qualname__.rpartition(".")
    twin.__name__ = name.removeprefix("_").removesuffix("_async")  # the core alone may be private
    twin.__qualname__ = f"{owner}.{twin.__name__}"
    twin.__module__ = method.__module__
    twin.__doc__ = method.__doc__
    signature = inspect.signature(inspect.unwrap(method))
    value = signature.return_annotation
    shown = returns.format(value if isinstance(value, str) else "Any")
    twin.__signature__ = signature.replace(return_annotation=shown)  # type: ignore[attr-defined]  # inspect reads it
    return twin
