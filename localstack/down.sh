#!/usr/bin/env bash
# Stops what up.sh started and deletes its data; --keep-data leaves the data for
# the next up.sh. Only processes that up.sh noted, by pid and start time, are
# ended, and only files that it wrote are deleted.
set -euo pipefail
# shellcheck source=SCRIPTDIR/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

KEEP=false
case ${1:-} in
  '') ;;
  --keep-data) KEEP=true ;;
  *) die "usage: down.sh [--keep-data]" ;;
esac

need_linux
lock
running=()
for name in kafka s3; do
  if service_pid "$name" >/dev/null; then running+=("$name"); fi
  stop_service "$name" &
done
wait
rm -f "$RUN/env" "$RUN/env.part"

if $KEEP; then
  kept=", data kept in $RUN"
else
  rm -rf "$RUN/kafka" "$RUN/s3" "$LOGS"
  rm -f "$RUN/ports"
  if [[ -d $RUN ]]; then rmdir --ignore-fail-on-non-empty "$RUN"; fi
  kept=''
fi
if ((${#running[@]} > 0)); then
  say "stopped: ${running[*]}$kept"
else
  say "nothing was running$kept"
fi
