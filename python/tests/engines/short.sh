#!/usr/bin/env bash
# The most important tests with engines, as the last part of .ci/run. They never make the run exceed its time, and fail
# only for errors in the code. Otherwise stderr says why they are left out, and the exit code is 77.
# usage: short.sh SECONDS_SINCE_THE_RUN_BEGAN
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
# On two idle cores the installation takes 5 minutes and the tests another 7; a busy machine takes longer.
limit_s=1200
# The run ends within 75 minutes, including these tests.
latest_start_s=$((4400 - limit_s))

left_out() { echo "The engines' tests are left out: $*." >&2; exit 77; }

(($1 <= latest_start_s)) ||
  left_out "the run began $(($1 / 60)) minutes ago, and they begin within $((latest_start_s / 60))"
code=0
timeout --kill-after=30 "$limit_s" ./run test engines --short || code=$?
case $code in
  77) left_out "the engines cannot be had here, or do not run without Cairn either" ;;
  124 | 137) left_out "they did not end within $((limit_s / 60)) minutes" ;;
esac
exit "$code"
