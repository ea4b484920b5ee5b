"""Joins the page's own modules into one file: one request instead of twenty, and a third smaller.

Small files compress badly on their own, and there is no build step in which a bundler could run.
Every module becomes a function's scope that hands on what it exports; libraries stay modules of
their own. Understands the few forms of import and export that the page uses, and refuses others:

    import { a, b as c } from "./x.js";    import * as a from "./x.js";    import a from "./x.js";
    export const a = …    export function a(…)    export async function a(…)    export class a
    export { a, b } from "./x.js";    export { a };

Indentation and lines that are comments stay behind; the sources have them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

_IMPORT = re.compile(r'import (?:(\* as \w+)|(\w+)|\{([^}]*)\}) from "([^"]+)";')
_HANDED_ON = re.compile(r'export \{([^}]*)\}(?: from "([^"]+)")?;')
_EXPORT = re.compile(r"export ((?:const|(?:async )?function|class) (\w+).*)")


class NotUnderstood(ValueError):
    """A module says something this does not know. The message has the line."""


class _Linker:
    def __init__(self, sources: Mapping[str, str], entry: str) -> None:
        self._sources = sources
        self._done: dict[str, str] = {}
        self.libraries: list[str] = []
        self.parts: list[str] = []
        self.add(entry)

    def add(self, path: str) -> str:
        """The name that stands for a module's exports; it is written before who needs it."""
        if path in self._done:
            return self._done[path]
        name = self._done[path] = f"m{len(self._done)}"
        if path.startswith("vendor/"):
            self.libraries.append(f'import * as {name} from "./{path}";')
        else:
            self._write(path, name)
        return name

    def _write(self, path: str, name: str) -> None:
        exported: list[str] = []
        lines = [self._line(line.strip(), path, exported) for line in _lines(self._sources[path])]
        body = "\n".join(line for line in lines if line)
        self.parts.append(f"const {name}=(()=>{{\n{body}\nreturn {{{','.join(exported)}}};\n}})();")

    def _line(self, line: str, path: str, exported: list[str]) -> str:
        if line.startswith("import "):
            return self._imported(line, path)
        if not line.startswith("export "):
            return line
        if found := _EXPORT.fullmatch(line):
            exported.append(found[2])
            return found[1]
        handed_on = _HANDED_ON.fullmatch(line)
        if handed_on is None:
            raise NotUnderstood(f"{path}: {line}")
        exported += [name.strip() for name in handed_on[1].split(",")]
        return self._take(handed_on[1], path, handed_on[2]) if handed_on[2] else ""

    def _imported(self, line: str, path: str) -> str:
        found = _IMPORT.fullmatch(line)
        if found is None:
            raise NotUnderstood(f"{path}: {line}")
        everything, default, names, source = found.groups()
        if everything:
            return f"const {everything[5:]}={self._module(path, source)};"
        return self._take(f"default as {default}" if default else names, path, source)

    def _take(self, names: str, path: str, source: str) -> str:
        return f"const {{{names.replace(' as ', ':')}}}={self._module(path, source)};"

    def _module(self, path: str, source: str) -> str:
        return self.add(posixpath.normpath(posixpath.join(posixpath.dirname(path), source)))


def link(sources: Mapping[str, str], entry: str) -> str:
    """One module that does what `entry` and all it imports do. `sources` are texts by path."""
    linker = _Linker(sources, entry)
    return "\n".join([*linker.libraries, *linker.parts, ""])


def _lines(source: str) -> list[str]:
    return [line for line in source.splitlines() if not line.lstrip().startswith("//")]
