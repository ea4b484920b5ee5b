"""The public cookbook on our SDK: it imports `tinker` itself, so one line makes that name ours.

The same without touching a script: `python -m tinkex.alias your_script.py …`

    python examples/cookbook_on_our_sdk.py --local
"""

from __future__ import annotations

import connection
import cookbook_recipe

import tinkex.alias


def main() -> None:
    options = connection.parse(__doc__, model="tinkex/tiny-qwen3", steps=6)
    tinkex.alias.install()  # before anything imports tinker
    address = "local" if options.local else options.base_url
    if address is None:
        raise SystemExit("say where to train: --local or --base-url URL")
    cookbook_recipe.train(address, options, "cookbook_on_our_sdk")


if __name__ == "__main__":
    main()
