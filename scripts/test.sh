#!/usr/bin/env bash
# The whole suite, with the slowest twenty. Run through `make test`, which provides the tools.
set -euo pipefail
cd "$(dirname "$0")/.."

# Two at once: most of a test's time is waiting. In the order of the folders, which ends with the shortest files; sorted by
# how many tests they have, as pytest-xdist would, files with few and long ones come last and one worker waits for the other.
exec python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder --durations=20 "$@"
