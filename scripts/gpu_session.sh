#!/usr/bin/env bash
# What has to be measured on a card, in an order that loses least when the machine is taken away:
#
#   scripts/gpu_session.sh FOLDER [PART ...]      stream, tenants, door, overload, kernels; all by default
#
# Each part has a limit of its own and writes FOLDER/PART.log; result pages are copied to FOLDER at the end. Needs 90 GB
# of memory for model folders in /dev/shm, and on PYTHONPATH what `scripts/gpu_packages.sh` collects, if it is not installed.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?a folder for logs and results}
shift
mkdir -p "$out"
export PYTHONPATH=$PWD/src:$PWD/benchmarks:${PYTHONPATH:-} PYTHONUNBUFFERED=1 TINKEX_ENGINE_LOG=INFO
begun=$SECONDS

run() {
  local part=$1 limit=$2 status=0
  shift 2
  echo "== $((SECONDS - begun)) s: $part"
  timeout "$limit" "$@" >"$out/$part.log" 2>&1 || status=$?
  echo "== $((SECONDS - begun)) s: $part ended with $status"
  grep -v -E 'INFO|it/s|Warning' "$out/$part.log" | tail -n 40
}

[ $# -gt 0 ] || set -- stream tenants door overload kernels
for part in "$@"; do
  case $part in
    stream) run stream 130 python3 benchmarks/engine_stream.py ;;
    tenants)
      run tenants 210 python3 benchmarks/front_door_families.py --place /dev/shm --forget --tenants 10 \
        --parts write,tenants qwen3.6-35b-a3b
      rm -rf /dev/shm/qwen3.6-35b-a3b
      ;;
    door) run door 245 python3 benchmarks/front_door_gpu.py --folder /dev/shm/8b --parts door,company,kill --rounds 3 ;;
    overload) run overload 120 python3 benchmarks/overload.py --folder /dev/shm/8b --seconds 6 ;;
    kernels) run kernels 300 python3 -m pytest -q -p no:benchmark -m "not slow" tests/engine -k "kernel or graphs" ;;
    *) echo "no part is called $part" >&2; exit 2 ;;
  esac
done
cp benchmarks/results/{engine_stream,front_door_gpu,front_door_families,overload}.md "$out" 2>/dev/null
true
