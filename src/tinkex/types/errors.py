"""The root of the SDK's errors, so that floors below the client can raise members of its tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinkex.types.futures import RequestErrorCategory


class TinkerError(Exception):
    """Root of everything raised by this SDK on purpose."""

    request_id: str | None = None
    retry_after: float | None = None

    @property
    def is_user_error(self) -> bool:
        """True when repeating the same call cannot help: the caller must change something."""
        return False

    @property
    def category(self) -> RequestErrorCategory:
        """Whose fault it is, in the server's vocabulary: user, server or unknown."""
        from tinkex.types.futures import RequestErrorCategory

        return RequestErrorCategory.User if self.is_user_error else RequestErrorCategory.Unknown

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses take keyword arguments, which the default protocol would lose.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[TinkerError], args: tuple[Any, ...], state: dict[str, Any]) -> TinkerError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
