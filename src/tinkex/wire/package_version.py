"""This package's own version, as client and server tell it."""

import functools


@functools.cache
def package_version() -> str:
    from importlib import metadata  # slow to load: when somebody asks

    try:
        return metadata.version("tinkex")
    except metadata.PackageNotFoundError:
        return "0"
