#!/usr/bin/env bash
# The whole suite, with the slowest twenty. Run through `make test`, which provides the tools.
set -euo pipefail
cd "$(dirname "$0")/.."

# Three at once, on two cores too: much of the suite's time is waiting for processes. In the order of the folders, which
# ends with the shortest files; sorted by how many tests they have, as pytest-xdist would, files with few and long ones come last
# and the other workers wait for them.
exec python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=20 "$@"
