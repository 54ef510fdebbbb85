#!/usr/bin/env bash
# Says whether Kafka and S3 run and answer. Exit code 0 only if both do.
set -euo pipefail
# shellcheck source=SCRIPTDIR/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_linux
load_ports
code=0
for name in kafka s3; do
  state=$(service_state "$name")
  case $name in
    kafka) where=127.0.0.1:$KAFKA_PORT_NOW ;;
    s3) where=http://127.0.0.1:$S3_PORT_NOW ;;
  esac
  case $state in
    up) printf '%-6s up     %s (pid %s)\n' "$name" "$where" "$(service_pid "$name")" ;;
    mute) printf '%-6s mute   %s (pid %s) runs but does not answer, see %s\n' \
      "$name" "$where" "$(service_pid "$name")" "$LOGS/$name.log" ;;
    down) printf '%-6s down\n' "$name" ;;
  esac
  [[ $state == up ]] || code=1
done
if ((code == 0)); then printf 'source %q\n' "$RUN/env"; fi
exit "$code"
