#!/usr/bin/env bash
# Every check a change must pass, quickest first. Run through `make qa`, which provides the tools.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$1"; shift; "$@"; }
said=$(mktemp)
docs() { sphinx-build -W --keep-going -q -b html docs docs/_build/html >"$said" 2>&1; }
# All that tests import, compiled once and not by every worker at the same time.
compiled() { python -m pytest --collect-only -q >/dev/null 2>&1 || true; }
beside() { docs || return 1; compiled; }
built() { if wait "$building"; then cat "$said"; else cat "$said"; return 1; fi; }

step "format" ruff format --check .
step "lint" ruff check .
# The documents are built beside the types, then the tests compiled: the types take one core, and longer.
beside &
building=$!
trap 'kill "$building" 2>/dev/null || true; rm -f "$said"' EXIT
step "types" mypy
step "dependencies" python scripts/audit.py
step "docs" built
step "tests" scripts/test.sh
