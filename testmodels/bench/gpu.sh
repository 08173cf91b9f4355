#!/usr/bin/env bash
# Measures XLA on an NVIDIA GPU beside PyTorch on the same card, in one run of less
# than ten minutes: decode of 1 and 32 sequences and prefill of 4,096 tokens of the
# synthetic 110M models in F16, what the cache keeps, and memory.
#
#     bash testmodels/bench/gpu.sh          on a GPU; needs Go, a C compiler, Python 3.11
#     bash testmodels/bench/gpu.sh --cpu    the same on XLA's CPU plugin, with small models
#
# FPA_PYTHON names the Python (default python3). PyTorch is measured where that Python
# has it. What is missing of gguf, XLA's plugin for CUDA 13 and the libraries that this
# needs is installed by pip into a virtual environment in a folder of the user's cache;
# with --no-install nothing is, and the plugin is looked for where fparun finds it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

device=cuda install=yes
for arg in "$@"; do
  case $arg in
    --cpu) device=cpu ;;
    --no-install) install=no ;;
    *) echo "gpu.sh: unknown argument $arg, expected --cpu or --no-install" >&2; exit 2 ;;
  esac
done

python=${FPA_PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ $install = yes ]; then
  venv=${XDG_CACHE_HOME:-$HOME/.cache}/fpa-bench-$device
  # What the Python has already, PyTorch above all, is used.
  [ -x "$venv/bin/python" ] || "$python" -m venv --system-site-packages "$venv"
  packages=(gguf numpy)
  [ $device = cpu ] || packages+=('jax-cuda13-plugin[with-cuda]')
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
  python=$venv/bin/python
  export VIRTUAL_ENV=$venv # where the plugin is found
fi

shape=() types=(q8_0 q4_0) rounds=5 prefill=4096 decode=128 depth=128 sequences=1,32
if [ $device = cpu ]; then
  shape=(--hidden 128 --blocks 1 --heads 4 --ffn 256 --vocab 512)
  types=(q4_0) rounds=1 prefill=64 decode=4 depth=0 sequences=1,4
fi
go build -o "$work" ./testmodels/bench ./testmodels/synthetic ./cmd/fpaconv
"$work/synthetic" --kind llama --gguf "$work/synthetic-llama.gguf" "${shape[@]}" >"$work/log"
"$work/synthetic" --kind level-off -o "$work/level-off" "${shape[@]}" >>"$work/log"
"$work/fpaconv" "$work/level-off" -o "$work/synthetic-level-off.gguf" --no-verify >>"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }

[ $device = cpu ] || nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
rival=none
if "$python" -c 'import torch, sys; sys.exit(sys.argv[1] == "cuda" and not torch.cuda.is_available())' $device 2>/dev/null; then
  rival=torch
else
  echo "PyTorch is not there, or not for this device: it is not measured"
fi
compare() {
  "$python" testmodels/bench/compare.py --engine "$work/bench" --backend xla:$device --rounds $rounds \
    --prefill $prefill --decode $decode --depth $depth --sequences $sequences "$@"
}
compare --model "$work/synthetic-llama.gguf" --cache off --rival $rival
echo
compare --model "$work/synthetic-level-off.gguf" --cache exact
# Whether weights that stay quantised on the device are faster there.
[ $device = cpu ] || prefill=512 rounds=3 sequences=1
for type in "${types[@]}"; do
  "$work/fpaconv" quantize "$work/synthetic-level-off.gguf" -o "$work/level-off-$type.gguf" --type $type >>"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
  echo
  compare --model "$work/level-off-$type.gguf" --cache exact --packed
done
