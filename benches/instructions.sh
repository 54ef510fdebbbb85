#!/usr/bin/env bash
# Instructions that one record takes to decode, encode and read, by callgrind: what else runs on the machine does not change
# them, so that a few percent between two builds are seen. `benches/instructions.sh [--optional] [FIXTURE...]`; ROWS=2000 are
# encoded. The CPU is valgrind's, which has AVX2 and not AVX-512, and time in memory is not in it: speed is what `make bench`
# says. As root it installs valgrind (Debian) where there is none; with `--optional` its absence is no failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SAMPLE=840 # as decode.rs has it
rows=${ROWS:-2000}
without=1
if [[ ${1-} == --optional ]]; then
  without=0
  shift
fi
fixtures=("$@")
if (($# == 0)); then fixtures=(vast connect streams share-group-copied spring-dlt); fi

if ! command -v valgrind >/dev/null && ((EUID == 0)) && command -v apt-get >/dev/null; then
  echo "instructions: installing Debian's package valgrind" >&2
  apt-get install -y -qq valgrind >/dev/null 2>&1 || true
fi
if ! command -v valgrind >/dev/null; then
  echo 'instructions: valgrind is not installed, nothing is counted' >&2
  exit "$without"
fi

# As `make bench` builds, so that nothing is built twice.
features=()
if command -v cmake >/dev/null; then features=(--all-features); fi
built=$(cargo bench --locked "${features[@]}" --no-run --quiet --bench decode --bench encode --message-format json)
binary() { # BENCH
  python3 -c '
import json, sys
for message in map(json.loads, sys.stdin):
    if message.get("executable") and message["target"]["name"] == sys.argv[1]:
        print(message["executable"])' "$1" <<<"$built"
}
decode=$(binary decode)
encode=$(binary encode)

count() { # RECORDS SAMPLE-SIZE BINARY BENCH
  local log instructions
  # One sample. What is done in `bench_work` counts, and nothing else: not the making of rows, not divan.
  if ! log=$(BENCH_ROWS=$rows valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
    --toggle-collect='*bench_work*' "$3" --bench --exact --sample-count 1 --sample-size "$2" "$4" 2>&1); then
    printf '%s\n' "$log" >&2
    exit 1
  fi
  instructions=$(sed -n 's/^==[0-9]*== Collected : //p' <<<"$log")
  if ((${instructions:-0} == 0)); then
    echo "instructions: nothing was counted of the bench $4: there is none of this name, or it does nothing in bench_work" >&2
    exit 1
  fi
  printf '%-44s %10d\n' "${4#*::}" "$((instructions / $1))"
}

printf '%-44s %10s\n' 'instructions a record' ''
for fixture in "${fixtures[@]}"; do
  for way in decode of_topic walk; do count "$SAMPLE" "$SAMPLE" "$decode" "decode::record::$fixture/$way"; done
done
for step in decode group intent; do count "$rows" 1 "$encode" "encode::$step"; done
for format in parquet jsonl jsonl.gz jsonl.zst; do
  for step in encode read::all read::no_payload; do count "$rows" 1 "$encode" "encode::$step::$format"; done
done
