#!/usr/bin/env bash
# Runs the package's tests with the standard library alone: as it is installed by pip where that works without a
# network (setuptools that can make a wheel), else from its sources.
# usage: package.sh CAIRN_SERVER; exit code 77: Python 3.10 or its venv is missing.
set -euo pipefail
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${CAIRN_PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { echo "skipped: no Python 3.10"; exit 77; }
"$python" -c 'import venv, ensurepip' 2>/dev/null || { echo "skipped: no venv"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if "$python" -c 'import setuptools, wheel' 2>/dev/null; then
  mkdir "$work/source"
  cp -r "$folder/src" "$folder/pyproject.toml" "$folder/README.md" "$work/source"
  "$python" -m venv "$work/venv"
  "$python" -m pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir "$work" "$work/source"
  "$work/venv/bin/python" -m pip install --quiet --no-index "$work"/cairn_kv-*.whl
  python=$work/venv/bin/python
  "$python" -c 'import cairn, pathlib; assert pathlib.Path(cairn.__file__).with_name("py.typed").exists()'
  echo "testing what pip installed"
else
  export PYTHONPATH=$folder/src
  echo "testing the sources: without setuptools and wheel no wheel is made"
fi
cd "$folder/tests"
CAIRN_SERVER_BINARY=$1 "$python" -B -m unittest discover --buffer
