"""What the installed official client offers, read from the package itself."""

from __future__ import annotations

import inspect

import tinker
from tinker.lib.public_interfaces import APIFuture

CLASSES = (
    tinker.ServiceClient,
    tinker.TrainingClient,
    tinker.SamplingClient,
    tinker.RestClient,
    tinker.AdminClient,
    APIFuture,
)


def public_methods() -> list[str]:
    """Every public method and property of the official clients, as Class.method."""
    return [
        f"{each.__name__}.{name}"
        for each in CLASSES
        for name, member in inspect.getmembers(each)
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    ]
