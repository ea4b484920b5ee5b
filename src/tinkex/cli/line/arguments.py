"""Splits a command line into global options, command words and the rest.

It reads only as far as the command: what follows belongs to the command's own parser. It imports
no parser library, so that help, version and mistakes print at once.
"""

from __future__ import annotations

VALUE_OPTIONS = {
    "-f": "format",
    "--format": "format",
    "--api-key": "api_key",
    "--base-url": "base_url",
    "--timeout": "timeout",
}
FLAG_OPTIONS = {"--json": "json", "--local": "local", "--verbose": "verbose"}
HELP_OPTIONS = ("-h", "--help")


class UsageMistake(Exception):
    """The command line is wrong before any command was reached."""


def no_such_option(word: str) -> UsageMistake:
    """The mistake of an option before the command that is none, with the nearest one that is."""
    from difflib import get_close_matches

    name = word.partition("=")[0]
    near = get_close_matches(name, [*VALUE_OPTIONS, *FLAG_OPTIONS, *HELP_OPTIONS, "--version"], n=1)
    meant = f" Did you mean '{near[0]}'?" if near else ""
    return UsageMistake(f"No such option '{name}'.{meant}")


class Tokens:
    """A command line being read from the left; global options met on the way are collected."""

    def __init__(self, argv: list[str]) -> None:
        self._rest = list(argv)
        self.options: dict[str, str | bool] = {}

    @property
    def rest(self) -> list[str]:
        """What has not been read."""
        return list(self._rest)

    def next_word(self) -> str | None:
        """Collects global options, then takes and returns the next token; None at the end."""
        while self._rest and self._take_global():
            pass
        return self._rest.pop(0) if self._rest else None

    def put_back(self, word: str) -> None:
        """Returns a token that `next_word` took."""
        self._rest.insert(0, word)

    def _take_global(self) -> bool:
        name, has_value, value = self._rest[0].partition("=")
        if name in FLAG_OPTIONS and not has_value:
            self.options[FLAG_OPTIONS[name]] = True
        elif name in VALUE_OPTIONS:
            self.options[VALUE_OPTIONS[name]] = value if has_value else self._value_of(name)
        elif name.startswith("-f") and not name.startswith("--") and len(name) > 2:
            self.options["format"] = self._rest[0][2:]
        else:
            return False
        self._rest.pop(0)
        return True

    def _value_of(self, name: str) -> str:
        if len(self._rest) < 2:
            raise UsageMistake(f"Option '{name}' requires an argument.")
        return self._rest.pop(1)


def wants_json(tokens: Tokens) -> bool:
    """Whether a line that cannot be read to its end asks for JSON anywhere."""
    if tokens.options.get("json") or tokens.options.get("format") == "json":
        return True
    rest = " ".join(tokens.rest)
    return "--json" in tokens.rest or any(
        f"{name}{between}json" in rest for name in ("-f", "--format") for between in (" ", "=", "")
    )
