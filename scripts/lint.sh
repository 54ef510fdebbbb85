#!/usr/bin/env bash
# What `make lint` does: format, clippy, licences, advisories, shell scripts, deploy/. Runs all of them, then ends with 1 if
# one failed. What is not installed is told and skipped, but for rustfmt, clippy and the licences.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

FAILED=()
step() { # NAME COMMAND...
  local name=$1
  shift
  printf 'lint: %s\n' "$name"
  "$@" || FAILED+=("$name")
}
skip() { printf 'lint: %s: SKIPPED, %s\n' "$1" "$2"; }

step rustfmt cargo fmt --check
features=()
if command -v cmake >/dev/null; then features=(--all-features); fi
step clippy cargo clippy --release --locked --quiet --all-targets "${features[@]}" -- -D warnings
if command -v cargo-deny >/dev/null; then
  step 'licences, bans, sources' cargo deny --log-level error check licenses bans sources
  if cargo deny --log-level off fetch db >/dev/null 2>&1; then
    step advisories cargo deny --offline --log-level error check advisories
  else
    skip advisories 'the advisory database cannot be had from here'
  fi
else
  step licences python3 scripts/licences.py
  skip advisories 'cargo-deny is not installed (cargo install --locked cargo-deny)'
fi
step 'broken variants of the simulation fit the source' python3 tests/sim/broken.py --check
if command -v shellcheck >/dev/null; then
  mapfile -t scripts < <(git ls-files '*.sh' .ci/run)
  step shellcheck shellcheck --external-sources "${scripts[@]}"
else
  skip shellcheck 'it is not installed'
fi
step deploy scripts/lint-deploy.sh

if ((${#FAILED[@]} > 0)); then
  printf 'lint: FAILED: %s\n' "$(IFS=,; echo "${FAILED[*]}")" >&2
  exit 1
fi
printf 'lint: all is well\n'
