#!/usr/bin/env bash
# All tests: cargo's, then the scripts tests/e2e/e2e*, against a real Kafka and a real S3. Those of `make up` are used if
# they run; else it starts its own in a temporary folder and stops them at the end. Arguments go to `cargo test`; with
# any, tests/e2e is left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

OWN=''
say() { printf 'tests: %s\n' "$*"; }
# shellcheck disable=SC2317 # the trap calls it
on_exit() {
  local code=$?
  trap - EXIT INT TERM HUP
  if [[ -n $OWN ]]; then
    LOCALSTACK_DIR=$OWN localstack/down.sh || true
    rm -rf "$OWN"
  fi
  if ((code == 0)); then
    say "all passed, in $SECONDS s"
  else
    say "FAILED, after $SECONDS s" >&2
  fi
  exit "$code"
}
trap on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# A developer's own settings must not reach a test: --archive in the environment could be a real bucket.
for name in "${!DLQ_ARCHIVER_@}"; do unset "$name"; done
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_CA_BUNDLE

tests/python/setup.sh
if localstack/status.sh >/dev/null 2>&1; then
  RUN=${LOCALSTACK_DIR:-localstack/.run}
  say "using the Kafka and S3 that run ($RUN)"
else
  OWN=$(mktemp -d "${TMPDIR:-/tmp}/dlq-archiver-tests.XXXXXX")
  RUN=$OWN
  LOCALSTACK_DIR=$OWN localstack/up.sh
fi
# shellcheck disable=SC1091
source "$RUN/env"
export DLQ_ARCHIVER_REQUIRE_SERVICES=1

# A test that hangs is to be named in time: each program has so long.
limit=()
if timeout --version >/dev/null 2>&1; then limit=(timeout --foreground --verbose --signal=ABRT --kill-after=10 1200); fi
runner=$(printf '"%s", ' "${limit[@]:-env}")

# With all features, where there is what they need.
features=()
if command -v cmake >/dev/null; then features=(--all-features); fi

# Every failure is told, not only the first.
failed=0
cargo test --release "${features[@]}" --no-fail-fast --config "target.'cfg(all())'.runner = [${runner%, }]" "$@" || failed=1
if (($# == 0)); then
  target=$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
  export DLQ_ARCHIVER_BIN=$target/release/dlq-archiver PRODUCE_BIN=$target/release/examples/produce
  shopt -s nullglob
  for script in tests/e2e/e2e*.sh tests/e2e/e2e*.py; do
    say "$script"
    case $script in
      *.py) "${limit[@]}" .venv/bin/python "$script" ;;
      *) "${limit[@]}" bash "$script" ;;
    esac || {
      say "$script FAILED" >&2
      failed=1
    }
  done
fi
exit "$failed"
