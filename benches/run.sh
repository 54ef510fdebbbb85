#!/usr/bin/env bash
# Brings services, Python and binaries up, then runs a measurement: `benches/run.sh [SCRIPT] ARGS...`, SCRIPT being one of
# this folder's without its .py (bench unless named). Services of `make up` are used if they run; else it starts its own in
# a temporary folder and stops them at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

script=bench
if (($# > 0)) && [[ $1 != -* ]]; then
  script=$1
  shift
fi
if [[ ! -f benches/$script.py ]]; then
  scripts=(benches/*.py)
  scripts=("${scripts[@]#benches/}")
  echo "benches/run.sh: no script $script; there are: ${scripts[*]%.py}" >&2
  exit 2
fi
for arg; do
  if [[ $arg == -h || $arg == --help ]]; then
    tests/python/setup.sh >&2
    export DLQ_ARCHIVER_BROKERS=127.0.0.1:9 AWS_ENDPOINT_URL=none LOCALSTACK_BUCKET=none
    export DLQ_ARCHIVER_BIN=none PRODUCE_BIN=none BARE_BIN=none
    exec .venv/bin/python "benches/$script.py" --help
  fi
done

OWN='' bin=''
# shellcheck disable=SC2317 # the trap calls it
on_exit() {
  local code=$?
  trap - EXIT INT TERM HUP
  if [[ -n $OWN ]]; then
    LOCALSTACK_DIR=$OWN localstack/down.sh || true
    rm -rf "$OWN"
  fi
  [[ -n $bin ]] && rm -rf "$bin"
  exit "$code"
}
trap on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# A developer's own settings must not change what is measured.
for name in "${!DLQ_ARCHIVER_@}"; do unset "$name"; done
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_CA_BUNDLE

features=()
if command -v cmake >/dev/null; then features=(--all-features); fi
cargo build --release --locked "${features[@]}" --bin dlq-archiver --examples
target=$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
# Copies: a build in the meantime does not change what is measured.
bin=$(mktemp -d "${TMPDIR:-/tmp}/dlq-archiver-bench.XXXXXX")
cp "$target/release/dlq-archiver" "$target/release/examples/produce" "$target/release/examples/bare" "$bin/"

tests/python/setup.sh
if localstack/status.sh >/dev/null 2>&1; then
  RUN=${LOCALSTACK_DIR:-localstack/.run}
else
  OWN=$(mktemp -d "${TMPDIR:-/tmp}/dlq-archiver-bench.XXXXXX")
  RUN=$OWN
  LOCALSTACK_DIR=$OWN localstack/up.sh
fi
# shellcheck disable=SC1091
source "$RUN/env"
export DLQ_ARCHIVER_BIN=$bin/dlq-archiver PRODUCE_BIN=$bin/produce BARE_BIN=$bin/bare
.venv/bin/python "benches/$script.py" "$@"
