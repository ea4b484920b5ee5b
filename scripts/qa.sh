#!/usr/bin/env bash
# Every check a change must pass, quickest first. Run through `make qa`, which provides the tools.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$1"; shift; "$@"; }

step "format" ruff format --check .
step "lint" ruff check .
step "types" mypy
step "dependencies" python scripts/audit.py
step "docs" sphinx-build -W --keep-going -q -b html docs docs/_build/html
# Two at once, a file on one worker: tests own their folders, and most of their time is waiting.
step "tests" python -m pytest -n 2 --dist loadfile --durations=20
