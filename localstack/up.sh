#!/usr/bin/env bash
# Starts Apache Kafka and an S3 server (SeaweedFS) on 127.0.0.1, without Docker,
# and returns when both answer. Run again, it starts only what does not run.
# On failure nothing that it started is left running. See README.md.
set -euo pipefail
# shellcheck source=SCRIPTDIR/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=SCRIPTDIR/tls.sh
source "$HERE/tls.sh"

TIMEOUT=${LOCALSTACK_TIMEOUT:-120} # seconds for a service to answer
KAFKA_KEY=$(sha256sum <"$HERE/kafka/pom.xml" | cut -c1-12)
WEED_KEY=$(cat "$HERE/seaweedfs/go.mod" "$HERE/seaweedfs/go.sum" | sha256sum | cut -c1-12)
KAFKA_LIB=$CACHE/kafka-$KAFKA_KEY
WEED=$CACHE/seaweedfs-$WEED_KEY/weed

# ---- failure ---------------------------------------------------------------

FETCHES=() # process groups of downloads and builds
STARTED=() # services that this run started
FRESH=false

on_exit() {
  local code=$? group name
  trap - EXIT INT TERM HUP
  ((code == 0)) && return
  for group in "${FETCHES[@]}"; do kill -TERM -- "-$group" 2>/dev/null || true; done
  for name in "${STARTED[@]}"; do stop_service "$name"; done
  rm -rf "$CACHE"/*.part.$$
  if $FRESH; then # the logs stay, to be read
    rm -rf "$RUN/kafka" "$RUN/s3" "$RUN/ports" "$RUN/env"
    rmdir "$LOGS" "$RUN" 2>/dev/null || true
  fi
  warn "failed, and stopped what it had started"
  exit "$code"
}

log_tail() { # FILE
  warn "the end of $1:"
  tail -n 15 "$1" | sed 's/^/    /' >&2
}

# ---- what must be there ----------------------------------------------------

require_tools() {
  local missing=() version
  if [[ -n ${JAVA_HOME:-} && -x $JAVA_HOME/bin/java ]]; then JAVA=$JAVA_HOME/bin/java; else JAVA=java; fi
  if ! command -v "$JAVA" >/dev/null; then
    missing+=("Java is missing: install a JRE or JDK, 17 or later (Debian: apt-get install openjdk-17-jdk-headless)")
  else
    version=$("$JAVA" -version 2>&1 | sed -n 's/.* version "\([^"]*\)".*/\1/p' | head -n 1) || version=''
    [[ $version =~ ^([0-9]+) ]] && ((BASH_REMATCH[1] >= 17)) ||
      missing+=("Java is too old (${version:-unknown}, at $JAVA): install 17 or later (Debian: apt-get install openjdk-17-jdk-headless)")
  fi
  command -v openssl >/dev/null ||
    missing+=("openssl is missing, it makes certificates for Kafka's TLS listeners: install it (Debian: apt-get install openssl)")
  if [[ ! -d $KAFKA_LIB ]] && ! command -v mvn >/dev/null; then
    missing+=("Maven is missing, it downloads Kafka's jars: install it (Debian: apt-get install maven)")
  fi
  if [[ ! -x $WEED ]]; then
    version=$(sed -n 's/^go //p' "$HERE/seaweedfs/go.mod")
    if ! command -v go >/dev/null; then
      missing+=("Go is missing, it builds SeaweedFS: install Go $version or later")
    elif ! (cd "$HERE/seaweedfs" && go list -m >/dev/null 2>&1); then
      missing+=("Go is too old ($(cd / && go env GOVERSION)): install Go $version or later")
    fi
  fi
  ((${#missing[@]} == 0)) && return
  local line
  for line in "${missing[@]}"; do warn "$line"; done
  exit 1
}

# ---- ports -----------------------------------------------------------------

TAKEN=' '

# Sets a variable to the first free port from a base on; keeps the port that the
# variable has, if it is free.
pick_port() { # VARIABLE BASE
  local port=${!1}
  if [[ -z $port || $TAKEN == *" $port "* ]] || port_taken "$port"; then
    port=$2
    while [[ $TAKEN == *" $port "* ]] || port_taken "$port"; do port=$((port + 1)); done
  fi
  TAKEN+="$port "
  printf -v "$1" %s "$port"
}

# The port that clients use: the one asked for, or the one of last time, or a free one.
pick_public_port() { # VARIABLE ASKED NAME-OF-ASKED BASE
  local port=${2:-${!1}}
  if [[ -n $port ]]; then
    if ! [[ $port =~ ^[1-9][0-9]{0,4}$ ]] || ((port > 65535)); then die "$3=$port is not a port"; fi
    [[ $TAKEN != *" $port "* ]] || die "$3=$port is asked for twice"
    if port_taken "$port"; then
      [[ -z $2 ]] || die "port $port is in use by another program: set $3 to a free one, or leave it unset"
      die "port $port, which this instance had, is now in use by another program: end that, or set $3 to a free port"
    fi
    TAKEN+="$port "
    printf -v "$1" %s "$port"
  else
    pick_port "$1" "$4"
  fi
}

# A running service keeps its ports, and a wish for another one is refused.
refuse_other_port() { # ASKED NOW NAME-OF-ASKED
  [[ -z $1 || $1 == "$2" ]] || die "already runs on port $2, but $3=$1: run $HERE/down.sh first"
}

choose_ports() {
  local name
  if [[ $KAFKA_STATE == up ]]; then
    refuse_other_port "${KAFKA_PORT:-}" "$KAFKA_PORT_NOW" KAFKA_PORT
    TAKEN+="$KAFKA_PORT_NOW $CONTROLLER_PORT $KAFKA_SASL_PORT $KAFKA_MTLS_PORT "
  fi
  if [[ $S3_STATE == up ]]; then
    refuse_other_port "${S3_PORT:-}" "$S3_PORT_NOW" S3_PORT
    TAKEN+="$S3_PORT_NOW "
    for name in "${S3_INNER_PORTS[@]}"; do TAKEN+="${!name} "; done
  fi
  if [[ $KAFKA_STATE != up ]]; then pick_public_port KAFKA_PORT_NOW "${KAFKA_PORT:-}" KAFKA_PORT 19092; fi
  if [[ $S3_STATE != up ]]; then pick_public_port S3_PORT_NOW "${S3_PORT:-}" S3_PORT 19000; fi
  if [[ $KAFKA_STATE != up ]]; then
    pick_port CONTROLLER_PORT 19192
    pick_port KAFKA_SASL_PORT 19392
    pick_port KAFKA_MTLS_PORT 19492
  fi
  if [[ $S3_STATE != up ]]; then
    for name in "${S3_INNER_PORTS[@]}"; do pick_port "$name" 19200; done
  fi
}

save_ports() {
  local name
  for name in "${ALL_PORTS[@]}"; do
    printf '%s=%s\n' "$name" "${!name}"
  done >"$RUN/ports"
}

# ---- downloads and builds --------------------------------------------------

# Both end with a rename, so that what has its final name is whole.
fetch_kafka() {
  mvn -q -B -f "$HERE/kafka/pom.xml" dependency:copy-dependencies -DoutputDirectory="$KAFKA_LIB.part.$$"
  mv "$KAFKA_LIB.part.$$" "$KAFKA_LIB"
}

# Built from a copy: -mod=mod may write to go.mod and go.sum.
build_weed() {
  local part=${WEED%/weed}.part.$$
  mkdir "$part"
  cp "$HERE/seaweedfs/"{go.mod,go.sum,tools.go} "$part/"
  (cd "$part" && go build -mod=mod -ldflags='-s -w' -o weed github.com/seaweedfs/seaweedfs/weed)
  mv "$part" "${WEED%/weed}"
}

# Runs a function in the background, in a process group of its own (set -m), to
# be ended as a whole.
fetch() { # FUNCTION LOG
  set -m
  ("$1") >"$2" 2>&1 </dev/null 9<&- &
  set +m
  FETCHES+=("$!")
}

fetch_all() {
  local names=() logs=() i left seconds=0
  mkdir -p "$CACHE"
  if [[ ! -d $KAFKA_LIB ]]; then
    say "downloading Kafka's jars"
    fetch fetch_kafka "$LOGS/kafka-download.log"
    names+=("download of Kafka's jars") logs+=("$LOGS/kafka-download.log")
  fi
  if [[ ! -x $WEED ]]; then
    say "building SeaweedFS, the first time takes some minutes"
    fetch build_weed "$LOGS/s3-build.log"
    names+=("build of SeaweedFS") logs+=("$LOGS/s3-build.log")
  fi
  left=${#FETCHES[@]}
  while ((left > 0)); do
    sleep 0.5
    seconds=$((seconds + 1))
    for i in "${!FETCHES[@]}"; do
      kill -0 "${FETCHES[i]}" 2>/dev/null && continue
      wait "${FETCHES[i]}" || {
        log_tail "${logs[i]}"
        die "the ${names[i]} failed"
      }
      unset "FETCHES[i]"
      left=$((left - 1))
      say "${names[i]}: done in $((SECONDS - START)) s"
    done
    ((left > 0 && seconds % 120 == 0)) && say "still at it, $((SECONDS - START)) s"
  done
  FETCHES=()
}

# ---- services --------------------------------------------------------------

# Starts a program that outlives this shell, and notes its pid.
launch() { # NAME FOLDER COMMAND...
  local name=$1 folder=$2 pid
  shift 2
  STARTED+=("$name")
  (cd "$folder" && exec setsid nohup "$@") >>"$LOGS/$name.log" 2>&1 </dev/null 9<&- &
  pid=$!
  record_pid "$name" "$pid" || true # gone already: wait_for says so
}

# Lines for server.properties from LOCALSTACK_KAFKA_EXTRA; those of last time if it is unset.
kafka_extra() {
  if [[ -n ${LOCALSTACK_KAFKA_EXTRA+set} ]]; then
    printf '%s\n' "$LOCALSTACK_KAFKA_EXTRA"
  elif [[ -f $RUN/kafka/extra.properties ]]; then
    cat "$RUN/kafka/extra.properties"
  fi
}

kafka_properties() {
  cat <<PROPERTIES
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:$KAFKA_PORT_NOW,CONTROLLER://127.0.0.1:$CONTROLLER_PORT,SASL_SSL://127.0.0.1:$KAFKA_SASL_PORT,MTLS://127.0.0.1:$KAFKA_MTLS_PORT
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:$CONTROLLER_PORT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,MTLS:SSL
log.dirs=$RUN/kafka/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
num.partitions=1
auto.create.topics.enable=false
message.max.bytes=10485760
# Retention acts within a second of its deadline, so that it can be tested.
log.retention.check.interval.ms=1000
PROPERTIES
  tls_properties
  kafka_extra # last, so that it overrides
}

start_kafka() {
  local id extra
  mkdir -p "$RUN/kafka"
  extra=$(kafka_extra)
  printf '%s\n' "$extra" >"$RUN/kafka/extra.properties"
  ensure_certificates
  kafka_properties >"$RUN/kafka/server.properties"
  if [[ ! -f $RUN/kafka/formatted ]]; then
    rm -rf "$RUN/kafka/data" # of a format that was cut short
    id=$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | cut -c1-22)
    id=${id/#-/A} # it is an argument, so it must not look like an option
    "$JAVA" -cp "$KAFKA_LIB/*" kafka.tools.StorageTool format -t "$id" -c "$RUN/kafka/server.properties" \
      --add-scram "$(scram SCRAM-SHA-512 "$KAFKA_USER")" --add-scram "$(scram SCRAM-SHA-256 "$KAFKA_USER")" \
      >"$LOGS/kafka-format.log" 2>&1 9<&- || {
      log_tail "$LOGS/kafka-format.log"
      die "Kafka's storage could not be formatted"
    }
    touch "$RUN/kafka/user" "$RUN/kafka/formatted"
  fi
  launch kafka "$RUN/kafka" "$JAVA" -Xmx1g -XX:+ExitOnOutOfMemoryError \
    "-Dlog4j2.configurationFile=$HERE/kafka/log4j2.properties" \
    -cp "$KAFKA_LIB/*" kafka.Kafka "$RUN/kafka/server.properties"
}

# weed mini, not weed server: one node that waits for no others, so it starts and
# stops in seconds, where the server takes ten and more. Every port is named:
# what is not would be opened on a default of its own. HOME: a configuration of
# the user's own SeaweedFS is not to be read; -u: it would take AWS keys that it
# finds in the environment for a second identity. Telemetry is on by default. One volume for a
# new bucket instead of seven, or many buckets would use them up.
start_s3() {
  mkdir -p "$RUN/s3/data"
  cat >"$RUN/s3/s3.json" <<JSON
{"identities": [{
  "name": "dev",
  "credentials": [{"accessKey": "$ACCESS_KEY", "secretKey": "$SECRET_KEY"}],
  "actions": ["Admin", "Read", "Write", "List", "Tagging"]
}]}
JSON
  launch s3 "$RUN/s3" env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY -u S3_BUCKET -u S3_TABLE_BUCKET -u S3_EXTERNAL_URL \
    "HOME=$RUN/s3" WEED_MASTER_VOLUME_GROWTH_COPY_1=1 \
    "$WEED" -logtostderr mini "-dir=$RUN/s3/data" -ip=127.0.0.1 -ip.bind=127.0.0.1 \
    "-master.port=$MASTER_PORT" "-master.port.grpc=$MASTER_GRPC" -master.telemetry=false \
    "-volume.port=$VOLUME_PORT" "-volume.port.grpc=$VOLUME_GRPC" -volume.max=500 -volume.preStopSeconds=0 \
    "-filer.port=$FILER_PORT" "-filer.port.grpc=$FILER_GRPC" \
    "-s3.port=$S3_PORT_NOW" "-s3.port.grpc=$S3_GRPC" "-s3.config=$RUN/s3/s3.json" \
    -s3.autoCreateBucket=false -s3.port.iceberg=0 -s3.port.lance=0 -webdav=false \
    -admin.ui=false "-admin.port=$ADMIN_PORT" "-admin.port.grpc=$ADMIN_GRPC" -admin.port.legacy=0
}

wait_for() { # NAME
  local end=$((SECONDS + TIMEOUT))
  until service_answers "$1"; do
    if ! service_pid "$1" >/dev/null; then
      log_tail "$LOGS/$1.log"
      die "$1 ended while starting"
    fi
    if ((SECONDS >= end)); then
      log_tail "$LOGS/$1.log"
      die "$1 did not answer within $TIMEOUT s (LOCALSTACK_TIMEOUT)"
    fi
    sleep 0.2
  done
  # Another's may have taken the port meanwhile: then it is that one that answers.
  sleep 0.2
  if ! service_pid "$1" >/dev/null; then
    log_tail "$LOGS/$1.log"
    die "$1 ended while starting, and something else answers at its port"
  fi
}

# The bucket lives in the filer as a folder, and asking for it there needs no signature.
ensure_bucket() {
  local end=$((SECONDS + TIMEOUT))
  until [[ $(http_status GET "$FILER_PORT" "/buckets/$BUCKET/") == 200 ]]; do
    echo "s3.bucket.create -name $BUCKET" |
      HOME=$RUN/s3 timeout 30 "$WEED" -logtostderr shell "-master=127.0.0.1:$MASTER_PORT.$MASTER_GRPC" \
        >"$LOGS/s3-bucket.log" 2>&1 9<&- || true
    ((SECONDS < end)) || {
      log_tail "$LOGS/s3-bucket.log"
      die "the bucket $BUCKET could not be created"
    }
  done
}

# A byte written through all of SeaweedFS: S3 answers before there is room to write to.
ensure_writable() {
  local end=$((SECONDS + TIMEOUT))
  until [[ $(http_status PUT "$FILER_PORT" /localstack-probe x) == 201 ]]; do
    ((SECONDS < end)) || die "the S3 server takes no data, see $LOGS/s3.log"
    sleep 0.2
  done
  http_status DELETE "$FILER_PORT" /localstack-probe >/dev/null || true
}

write_env() {
  local classpath
  printf -v classpath %q "$KAFKA_LIB/*"
  if [[ -n $KAFKA_SASL_PORT && -d $KAFKA_TLS ]]; then write_client_properties; fi
  cat - <(tls_env) >"$RUN/env.part" <<ENV
export DLQ_ARCHIVER_BROKERS=127.0.0.1:$KAFKA_PORT_NOW
export AWS_ENDPOINT_URL=http://127.0.0.1:$S3_PORT_NOW
export AWS_ACCESS_KEY_ID=$ACCESS_KEY
export AWS_SECRET_ACCESS_KEY=$SECRET_KEY
export AWS_REGION=us-east-1
export LOCALSTACK_BUCKET=$BUCKET
export LOCALSTACK_KAFKA_CLASSPATH=$classpath
ENV
  mv "$RUN/env.part" "$RUN/env"
}

summary() {
  cat <<SUMMARY

  Kafka   127.0.0.1:$KAFKA_PORT_NOW   (pid $(service_pid kafka))
          SASL_SSL ${KAFKA_SASL_PORT:-none}, mutual TLS ${KAFKA_MTLS_PORT:-none}, files for --kafka-config in $KAFKA_TLS
  S3      http://127.0.0.1:$S3_PORT_NOW   (pid $(service_pid s3))
          bucket $BUCKET, key $ACCESS_KEY, secret $SECRET_KEY, region us-east-1
  Logs    $LOGS

  $(printf 'source %q' "$RUN/env")    sets your shell for them
  $(printf '%q' "$HERE/down.sh")    stops both and deletes their data
SUMMARY
}

# ---- main ------------------------------------------------------------------

# A service that runs but does not answer is given a moment, then ended.
settle() { # NAME VARIABLE
  local state end=$((SECONDS + 10))
  while state=$(service_state "$1"); [[ $state == mute ]] && ((SECONDS < end)); do sleep 0.2; done
  if [[ $state == mute ]]; then
    warn "$1 (pid $(service_pid "$1")) runs but does not answer: starting it anew"
    stop_service "$1"
    state=down
  fi
  printf -v "$2" %s "$state"
}

need_linux
START=$SECONDS
lock
[[ -d $RUN/kafka || -d $RUN/s3 ]] || FRESH=true
load_ports
settle kafka KAFKA_STATE
settle s3 S3_STATE

if [[ $KAFKA_STATE == up ]] && [[ $(kafka_extra) != "$(cat "$RUN/kafka/extra.properties")" ]]; then
  die "Kafka already runs, with other settings than LOCALSTACK_KAFKA_EXTRA has: run $HERE/down.sh first"
fi
choose_ports

if [[ $KAFKA_STATE == up && $S3_STATE == up && (-z $KAFKA_SASL_PORT || -f $RUN/kafka/user) ]]; then
  ensure_bucket
  write_env
  say "already up"
  summary
  exit 0
fi

require_tools
trap on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
mkdir -p "$LOGS"
fetch_all
rm -f "$RUN/env"
save_ports
[[ $KAFKA_STATE == up ]] || start_kafka
[[ $S3_STATE == up ]] || start_s3
wait_for s3
ensure_writable
ensure_bucket
wait_for kafka
if [[ -n $KAFKA_SASL_PORT ]]; then ensure_scram_user; fi
write_env
trap - EXIT # they are up, whatever becomes of what is printed
say "up, after $((SECONDS - START)) s"
summary
