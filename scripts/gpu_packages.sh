#!/usr/bin/env bash
# A folder of what the server and both clients need beside torch, for a GPU machine that installs nothing:
#
#   scripts/gpu_packages.sh build/gpu-packages [3.12]
#
# Copy it there with the repository and put it on PYTHONPATH behind src and benchmarks. About 55 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:?a folder to make}
python=${2:-3.12}

platforms=()
for glibc in 2014 _2_17 _2_28 _2_31; do platforms+=(--platform "manylinux${glibc}_x86_64"); done
python -m pip install --quiet --target "$target" --python-version "$python" "${platforms[@]}" \
  --only-binary=:all: --no-deps --no-compile -c constraints.txt \
  annotated-types anyio certifi click distro gguf h11 h2 hpack httpcore httptools httpx hyperframe idna jinja2 \
  llguidance markdown-it-py markupsafe mdurl orjson prometheus-client protobuf pydantic pydantic-core pygments pyqwest \
  pyrage rich sniffio starlette tinker typing-extensions typing-inspection uvicorn zstandard

# Symbols that only a debugger reads, and a second binding of zstandard, are half of it.
rm -rf "$target/bin" "$target"/zstandard/_cffi*.so
find "$target" -name '*.so' -size +1M -exec strip {} + 2>/dev/null || true
du -sh "$target"
