# shellcheck shell=bash disable=SC2034
# Shared by up.sh, down.sh and status.sh: where things are, whose process a pid
# is, and whether a service answers. Starts and stops nothing except through
# stop_service, and that only what a pid file of ours names.

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
RUN=$(realpath -m "${LOCALSTACK_DIR:-$HERE/.run}")
CACHE=$(realpath -m "${LOCALSTACK_CACHE:-$HERE/.cache}")
LOGS=$RUN/logs
BUCKET=dlq
# Not secrets: they open nothing but a server on this machine's loopback.
ACCESS_KEY=localdev
SECRET_KEY=localdev-not-a-secret

say() { printf 'localstack: %s\n' "$*"; }
warn() { printf 'localstack: %s\n' "$*" >&2; }
die() {
  warn "$*"
  exit 1
}

need_linux() {
  [[ -r /proc/self/stat ]] ||
    die "needs Linux (/proc, setsid); elsewhere use: docker compose -f $HERE/docker-compose.yml up -d --wait"
}

# One up.sh or down.sh at a time. The lock is on this folder, so that nothing
# has to be left behind for it; children are started with descriptor 9 closed.
lock() {
  exec 9<"$HERE"
  flock -n 9 && return
  say "waiting for another up.sh or down.sh to end"
  flock 9
}

# ---- processes -------------------------------------------------------------

# When a process started, in ticks since boot, and which boot: with the pid
# this names one process for good, where a pid alone is used again.
identity() {
  local stat fields
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  read -r -a fields <<<"${stat##*) }" # the name before it may hold blanks and brackets
  [[ ${fields[0]} != Z ]] || return 1
  printf '%s %s' "${fields[19]}" "$(cat /proc/sys/kernel/random/boot_id)"
}

record_pid() { # NAME PID
  printf '%s %s\n' "$2" "$(identity "$2")" >"$RUN/$1.pid"
}

# The pid of a service, if the process that we started still runs.
service_pid() { # NAME
  local pid since
  [[ -f $RUN/$1.pid ]] || return 1
  read -r pid since <"$RUN/$1.pid" || return 1
  [[ -n $since && $(identity "$pid") == "$since" ]] || return 1
  printf '%s' "$pid"
}

stop_service() { # NAME
  local pid i
  if pid=$(service_pid "$1"); then
    kill -TERM "$pid" 2>/dev/null || true
    for ((i = 0; i < 200; i++)); do
      service_pid "$1" >/dev/null || break
      sleep 0.1
    done
    if pid=$(service_pid "$1"); then
      warn "$1 (pid $pid) did not end within 20 s: killing it"
      kill -KILL "$pid" 2>/dev/null || true
      while service_pid "$1" >/dev/null; do sleep 0.1; done
    fi
  fi
  if [[ $1 == s3 && -f $RUN/s3.pid ]]; then
    # Sockets that SeaweedFS opens beside its ports; where is not for us to say.
    local server
    load_ports
    for server in "master-grpc-$MASTER_GRPC" "volume-grpc-$VOLUME_GRPC" "filer-grpc-$FILER_GRPC" \
      "s3-grpc-$S3_GRPC" "admin-grpc-$ADMIN_GRPC" "filer-$FILER_PORT" "s3-$S3_PORT_NOW"; do
      rm -f "/tmp/seaweedfs-$server.sock"
    done
  fi
  rm -f "$RUN/$1.pid"
}

# ---- ports -----------------------------------------------------------------

port_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# What an instance keeps for its life, each a variable. *_NOW are those that clients use.
S3_INNER_PORTS=(MASTER_PORT MASTER_GRPC VOLUME_PORT VOLUME_GRPC FILER_PORT FILER_GRPC S3_GRPC ADMIN_PORT ADMIN_GRPC)
ALL_PORTS=(KAFKA_PORT_NOW CONTROLLER_PORT KAFKA_SASL_PORT KAFKA_MTLS_PORT S3_PORT_NOW "${S3_INNER_PORTS[@]}")

load_ports() {
  local name
  for name in "${ALL_PORTS[@]}"; do printf -v "$name" %s ''; done
  # shellcheck disable=SC1091
  if [[ -f $RUN/ports ]]; then source "$RUN/ports"; fi
}

# ---- do they answer? -------------------------------------------------------

# A DescribeCluster request (API 60, version 0) in bytes. True if broker 1 is in
# the answer: it lists registered brokers that are not fenced. A Kafka tool asks
# the same, but a JVM takes seconds to start and this takes milliseconds.
kafka_answers() { # PORT
  local answer
  # shellcheck disable=SC2016
  answer=$(timeout 5 bash -c '
    exec 3<>"/dev/tcp/127.0.0.1/$0" || exit 1
    printf "\x00\x00\x00\x0f\x00\x3c\x00\x00\x00\x00\x00\x01\x00\x02up\x00\x00\x00" >&3
    read -r a b c d < <(head -c 4 <&3 | od -An -tu1)
    head -c $(((a << 24) + (b << 16) + (c << 8) + d)) <&3 | od -An -v -tx1 | tr -d " \n"
  ' "$1" 2>/dev/null) || return 1
  # correlation id, tags, throttle, error 0, no message, cluster id, controller, [broker 1]
  [[ $answer =~ ^0000000100.{8}00000017.{44}.{8}0200000001 ]]
}

# The status code that a plain HTTP request is answered with.
http_status() { # METHOD PORT PATH BODY
  # shellcheck disable=SC2016
  timeout 5 bash -c '
    exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
    printf "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%s\r\nContent-Length: %s\r\nConnection: close\r\n\r\n%s" \
      "$0" "$2" "$1" "${#3}" "$3" >&3
    read -r _ code _ <&3 && printf %s "$code"
  ' "$1" "$2" "$3" "${4:-}" 2>/dev/null
}

# Unsigned, so S3 refuses it (403): it answers, that is all that is asked here.
s3_answers() { # PORT
  [[ $(http_status GET "$1" /) =~ ^[1-4][0-9][0-9]$ ]]
}

service_answers() { # NAME
  case $1 in
    kafka) [[ -n $KAFKA_PORT_NOW ]] && kafka_answers "$KAFKA_PORT_NOW" ;;
    s3) [[ -n $S3_PORT_NOW ]] && s3_answers "$S3_PORT_NOW" ;;
  esac
}

# up: runs and answers. mute: runs, does not answer. down: does not run.
service_state() { # NAME
  if ! service_pid "$1" >/dev/null; then
    echo down
  elif service_answers "$1"; then
    echo up
  else
    echo mute
  fi
}
