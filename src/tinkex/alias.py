"""Make `import tinker` mean tinkex, for libraries that import the official package by name.

Call `install()` before anything imports `tinker`, or run a program under the alias:

    python -m tinkex.alias script.py arguments…
    python -m tinkex.alias -m package.module arguments…

Both names then lead to the same modules and the same classes, also in processes that the program
starts.
"""

import os
import runpy
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

OFFICIAL = "tinker"
OURS = "tinkex"


class AliasError(ImportError):
    """The official package is already loaded, so its name can no longer mean tinkex."""


def install() -> None:
    """From now on `tinker` and all its submodules are tinkex's. Calling it twice is harmless."""
    if is_installed():
        return
    if loaded := [name for name in sys.modules if name.split(".")[0] == OFFICIAL]:
        raise AliasError(
            f"the official package is already imported ({loaded[0]}): call tinkex.alias.install() "
            "before the first `import tinker`, or run `python -m tinkex.alias your_script.py`"
        )
    sys.meta_path.insert(0, _Finder())
    sys.modules[OFFICIAL] = import_module(OURS)


def is_installed() -> bool:
    """Whether `import tinker` means tinkex."""
    return sys.modules.get(OFFICIAL) is not None and sys.modules[OFFICIAL] is sys.modules.get(OURS)


class _Finder:
    """Answers `tinker.x` with the very module `tinkex.x`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{OFFICIAL}."):
            return None
        return ModuleSpec(fullname, cast("Loader", self))

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns what sys.modules holds after this call.
        sys.modules[module.__name__] = import_module(OURS + module.__name__[len(OFFICIAL) :])


def main(arguments: Sequence[str]) -> None:
    """Run a script or, after -m, a module, with the alias in place."""
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        raise SystemExit("usage: python -m tinkex.alias (script.py | -m module) [arguments…]")
    install()
    _tell_children()
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    if not os.path.isfile(arguments[0]):
        raise SystemExit(f"tinkex.alias: no such script: {arguments[0]}")
    sys.argv = list(arguments)
    sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
    runpy.run_path(arguments[0], run_name="__main__")


def _tell_children() -> None:
    """Let processes started from here find our stand-in when they import the official name."""
    folder = os.path.join(os.path.dirname(__file__), "stand_in")
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, inherited] if inherited else [folder])
    sys.path.insert(0, folder)  # what multiprocessing gives its children


if __name__ == "__main__":
    main(sys.argv[1:])
