"""Import every cookbook module with the official package, then again under the alias, and say which
could not be, as JSON on standard output.

Run as a program: `python cookbook_imports.py`. In between both packages and the cookbook are
forgotten; the libraries that the cookbook uses, most of the time it takes, stay. Tests and scripts
that act on import are left out.
"""

import importlib
import json
import logging
import os
import sys
import warnings
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

OWN = ("tinker", "tinker_cookbook")


def module_names() -> list[str]:
    """Every file counts: the recipes are folders without an __init__."""
    import tinker_cookbook

    root = Path(tinker_cookbook.__path__[0])
    files = (path.relative_to(root.parent).with_suffix("") for path in root.rglob("*.py"))
    names = {".".join(file.parts).removesuffix(".__init__") for file in files}
    return sorted(name for name in names if not name.endswith(("_test", ".conftest", "__main__")))


def failures() -> dict[str, str]:
    failed = {}
    for name in module_names():
        try:
            importlib.import_module(name)
        except BaseException as error:
            failed[name] = f"{type(error).__name__}: {error}"[:200]
    return failed


def report() -> dict[str, object]:
    failed = failures()
    origin = getattr(sys.modules["tinker"], "__file__", "")
    return {"failed": failed, "tinker": origin, "count": len(module_names())}


def forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in OWN]:
        del sys.modules[name]


def main() -> None:
    logging.disable()
    warnings.simplefilter("ignore")
    output, sys.stdout = sys.stdout, sys.stderr
    official = report()
    forget()
    import tinkex.alias

    tinkex.alias.install()
    json.dump({"official": official, "ours": report()}, output)


if __name__ == "__main__":
    main()
