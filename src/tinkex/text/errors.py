"""The error of this floor, a member of the SDK's tree."""

from tinkex.types.errors import TinkerError


class TokenizerError(TinkerError, RuntimeError):
    """A tokenizer could not be loaded; the message names it and says what was tried."""

    @property
    def is_user_error(self) -> bool:
        """True when repeating the same call cannot help: the caller must change something."""
        return True
