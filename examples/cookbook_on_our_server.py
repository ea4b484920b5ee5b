"""The public cookbook with the official SDK, both unmodified, on `tinkex serve`.

python examples/cookbook_on_our_server.py --local
"""

from __future__ import annotations

import connection
import cookbook_recipe
import serving


def main() -> None:
    options = connection.parse(__doc__, model="tinkex/tiny-qwen3", steps=6)
    if options.base_url:
        cookbook_recipe.train(options.base_url, options, "cookbook_on_our_server")
        return
    with serving.served([options.model]) as server:
        cookbook_recipe.train(server.address, options, "cookbook_on_our_server")


if __name__ == "__main__":
    main()
