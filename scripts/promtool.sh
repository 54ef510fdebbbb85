#!/usr/bin/env bash
# Checks and tests the alert rules with promtool; with a file, what /metrics said too (Prometheus' text format).
#   scripts/promtool.sh [SCRAPE]
# Takes promtool from the PATH, or as PROMTOOL; else unpacks Debian's package of Prometheus (19 MB) without installing it.
# Ends with 3, and says so, where promtool cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

unpacked=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/dlq-archiver/promtool
tool=${PROMTOOL:-$(command -v promtool || true)}
if [[ -z $tool && -x $unpacked ]]; then tool=$unpacked; fi
if [[ -z $tool ]]; then
  if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "promtool: not found, and this is no Debian: install Prometheus, or set PROMTOOL" >&2
    exit 3
  fi
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  fetch() { (cd "$folder" && apt-get download -qq prometheus >/dev/null 2>&1); }
  if ! fetch && ! { apt-get update -qq >/dev/null 2>&1 && fetch; }; then
    echo "promtool: the package prometheus cannot be downloaded: install it, or set PROMTOOL" >&2
    exit 3
  fi
  dpkg-deb --fsys-tarfile "$folder"/prometheus_*.deb | tar -x -C "$folder" ./usr/bin/promtool
  mkdir -p "$(dirname "$unpacked")"
  mv "$folder/usr/bin/promtool" "$unpacked"
  tool=$unpacked
fi

"$tool" check rules deploy/prometheus/alerts.yaml
"$tool" test rules deploy/prometheus/alerts_test.yaml
if [[ $# -gt 0 ]]; then
  "$tool" check metrics <"$1"
  echo "$1: the metrics' names, help and types are as they should be"
fi
