#!/usr/bin/env bash
# Makes .venv in the root of the repository, with what requirements.txt pins.
# Does nothing if it is there already for this requirements.txt and this Python.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
VENV=$(cd "$HERE/../.." && pwd)/.venv
STAMP=$VENV/requirements.sha256

die() {
  printf 'tests/python: %s\n' "$*" >&2
  exit 1
}

command -v python3 >/dev/null ||
  die "Python is missing: install 3.10 or later (Debian: apt-get install python3 python3-venv)"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  die "$(python3 --version) is too old: install 3.10 or later"
python3 -c 'import venv, ensurepip' 2>/dev/null ||
  die "Python's venv is missing: install it (Debian: apt-get install python3-venv)"

# Not only the file: a .venv is of use only to the Python and at the place it was made for.
wanted=$({ cat "$HERE/requirements.txt" && python3 --version && printf '%s\n' "$VENV"; } | sha256sum)
if [[ -x $VENV/bin/python && -f $STAMP && $(<"$STAMP") == "$wanted" ]]; then
  exit 0
fi

python3 -m venv --clear "$VENV"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -r "$HERE/requirements.txt" ||
  die "pip could not install $HERE/requirements.txt"
printf '%s\n' "$wanted" >"$STAMP" # last: without it the next run starts over
printf 'tests/python: %s is ready\n' "$VENV"
