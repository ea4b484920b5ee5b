"""This package's own version."""

import functools
from importlib import metadata


@functools.cache
def package_version() -> str:
    try:
        return metadata.version("tinkex")
    except metadata.PackageNotFoundError:
        return "0"
