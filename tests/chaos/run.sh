#!/usr/bin/env bash
# What `make chaos` does: builds the program, starts a Kafka and an S3 of its own (they are killed on the way), runs
# chaos.py with the arguments given, and stops them again. DLQ_ARCHIVER_BIN and PRODUCE_BIN: take these instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

export LOCALSTACK_DIR
LOCALSTACK_DIR=$(mktemp -d "${TMPDIR:-/tmp}/dlq-archiver-chaos.XXXXXX")
# shellcheck disable=SC2317 # the trap calls it
on_exit() {
  local code=$?
  trap - EXIT INT TERM HUP
  localstack/down.sh || true
  rm -rf "$LOCALSTACK_DIR"
  exit "$code"
}
trap on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

program=${DLQ_ARCHIVER_BIN:-} produce=${PRODUCE_BIN:-}
# A developer's own settings must not reach a test: --archive in the environment could be a real bucket.
for name in "${!DLQ_ARCHIVER_@}"; do unset "$name"; done
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_CA_BUNDLE

if [[ -z $program || -z $produce ]]; then
  cargo build --release --locked --bin dlq-archiver --example produce
  target=$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
  program=$target/release/dlq-archiver produce=$target/release/examples/produce
fi
tests/python/setup.sh
# Sessions of a second, so that a zombie is one after a second.
LOCALSTACK_KAFKA_EXTRA=group.min.session.timeout.ms=1000 localstack/up.sh
# shellcheck disable=SC1091
source "$LOCALSTACK_DIR/env"
export DLQ_ARCHIVER_BIN=$program PRODUCE_BIN=$produce
.venv/bin/python tests/chaos/chaos.py "$@"
