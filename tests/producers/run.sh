#!/usr/bin/env bash
# What `make test-producers` does: builds the producers, starts a Kafka and an S3 of its own, runs run.py with the arguments
# given, and stops them again. DLQ_ARCHIVER_BIN: take this program instead of building it. What is missing on the machine is told
# as SKIPPED; with DLQ_ARCHIVER_REQUIRE_PRODUCERS=1 that is a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
HERE=$PWD/tests/producers

say() { printf 'producers: %s\n' "$*"; }

missing=()
java=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1) || java=''
((${java:-0} >= 17)) || missing+=("Java 17 or later (Debian: apt-get install openjdk-17-jdk-headless)")
command -v javac >/dev/null || missing+=("javac (Debian: apt-get install openjdk-17-jdk-headless)")
command -v mvn >/dev/null || missing+=("Maven (Debian: apt-get install maven)")
command -v go >/dev/null || missing+=("Go, see localstack/README.md")
command -v openssl >/dev/null || missing+=("openssl (Debian: apt-get install openssl)")
python3 -c 'import tomllib' 2>/dev/null || missing+=("Python 3.11 or later")
if ((${#missing[@]} > 0)); then
  if [[ ${DLQ_ARCHIVER_REQUIRE_PRODUCERS:-} == 1 ]]; then
    say "FAILED, install what is missing: $(IFS=';'; echo "${missing[*]}")" >&2
    exit 1
  fi
  say "SKIPPED, nothing was tested; missing: $(IFS=';'; echo "${missing[*]}")"
  exit 0
fi

export LOCALSTACK_DIR
LOCALSTACK_DIR=$(mktemp -d "${TMPDIR:-/tmp}/dlq-archiver-producers.XXXXXX")
# shellcheck disable=SC2317 # the trap calls it
on_exit() {
  local code=$?
  trap - EXIT INT TERM HUP
  localstack/down.sh || true
  rm -rf "$LOCALSTACK_DIR"
  if ((code == 0)); then say "all as expected, in $SECONDS s"; else say "FAILED, after $SECONDS s" >&2; fi
  exit "$code"
}
trap on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

program=${DLQ_ARCHIVER_BIN:-}
# A developer's own settings must not reach a test: --archive in the environment could be a real bucket.
for name in "${!DLQ_ARCHIVER_@}"; do unset "$name"; done
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_CA_BUNDLE

# Built anew when a source changed. The stamp is last: without it the next run starts over.
export PRODUCERS_BUILD=$HERE/.build
wanted=$(find "$HERE" -path "$PRODUCERS_BUILD" -prune -o \( -name pom.xml -o -path '*/src/*' -type f \) -print0 | sort -z |
  xargs -0 sha256sum | sha256sum)
if [[ $(cat "$PRODUCERS_BUILD/stamp" 2>/dev/null) != "$wanted" ]]; then
  rm -rf "$PRODUCERS_BUILD"
  mvn -q -B -f "$HERE/pom.xml" compile dependency:copy-dependencies
  printf '%s\n' "$wanted" >"$PRODUCERS_BUILD/stamp"
fi
(cd "$HERE/watermill" && go build -o "$PRODUCERS_BUILD/watermill/watermill" .)
say "the producers are built, after $SECONDS s"

if [[ -z $program ]]; then
  cargo build --release --locked --bin dlq-archiver
  target=$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
  program=$target/release/dlq-archiver
fi
tests/python/setup.sh
localstack/up.sh
# shellcheck disable=SC1091
source "$LOCALSTACK_DIR/env"
export DLQ_ARCHIVER_BIN=$program
.venv/bin/python "$HERE/run.py" "$@"
