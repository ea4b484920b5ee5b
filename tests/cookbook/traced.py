"""Let the cookbook wrap the clients for its traces; print what it missed, as JSON.

Run under `python -m tinkex.alias`. The cookbook's own test of the same holds its list against the
methods that an SDK has.
"""

import inspect
import json

import tinker
from tinker_cookbook.utils import trace


def missed() -> list[str]:
    trace._instrument_sdk_clients()
    return [
        f"{cls.__name__}.{name}"
        for cls in (tinker.TrainingClient, tinker.SamplingClient)
        for name, method in inspect.getmembers(cls, inspect.iscoroutinefunction)
        if not name.startswith("_") and not getattr(method, "_scope_instrumented", False)
    ]


if __name__ == "__main__":
    print(json.dumps({"sdk": tinker.__name__, "missed": missed()}))
