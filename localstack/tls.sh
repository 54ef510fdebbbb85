# shellcheck shell=bash disable=SC2154
# Sourced by up.sh: the certificates of Kafka's TLS listeners, and what its server.properties and the env file need of
# them. Keys lie in the instance's data folder and go with it. KAFKA_TLS has:
#   ca.pem              who signed the others; other-ca.pem signed none
#   server.pem          the broker's key and certificate, for 127.0.0.1 and nothing else
#   client.pem, client-key.pem   a client's
#   scram.properties, mtls.properties   for --kafka-config, and for kcat -F

KAFKA_TLS=$RUN/kafka/tls
# Not secrets: they open nothing but a server on this machine's loopback.
KAFKA_USER=localdev
KAFKA_PASSWORD=localdev-not-a-secret

tls_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

tls_ca() { # NAME
  tls_key "$1-key.pem"
  openssl req -x509 -new -key "$1-key.pem" -subj "/CN=localstack $1" -days 3650 -out "$1.pem"
}

tls_signed() { # NAME EXTENSION
  tls_key "$1-key.pem"
  openssl req -new -key "$1-key.pem" -subj "/CN=localstack-$1" -out "$1.csr"
  openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca-key.pem -set_serial "0x$(openssl rand -hex 8)" -days 3650 \
    -extfile <(printf '%s\n' "$2") -out "$1.pem"
  rm "$1.csr"
}

make_certificates() ( # in a folder of another name first, so that what has its final name is whole
  set -e
  umask 077
  rm -rf "$KAFKA_TLS.part"
  mkdir -p "$KAFKA_TLS.part"
  cd "$KAFKA_TLS.part"
  tls_ca ca
  tls_ca other-ca
  tls_signed server 'subjectAltName=IP:127.0.0.1'
  tls_signed client 'extendedKeyUsage=clientAuth'
  cat server-key.pem >>server.pem
  rm server-key.pem
  rm -rf "$KAFKA_TLS"
  mv "$KAFKA_TLS.part" "$KAFKA_TLS"
)

ensure_certificates() {
  [[ ! -d $KAFKA_TLS ]] || return 0
  # In a condition `set -e` would not hold, so the code is taken.
  local code=0
  set +e
  (make_certificates) >"$LOGS/kafka-tls.log" 2>&1 9<&-
  code=$?
  set -e
  if ((code != 0)); then
    log_tail "$LOGS/kafka-tls.log"
    die "the certificates of Kafka's TLS listeners could not be made"
  fi
}

# Lines for server.properties. Sessions of SASL last 5 s, so that clients authenticate anew all the time.
tls_properties() {
  local module=org.apache.kafka.common.security sasl=listener.name.sasl_ssl
  cat <<PROPERTIES
ssl.keystore.type=PEM
ssl.keystore.location=$KAFKA_TLS/server.pem
ssl.truststore.type=PEM
ssl.truststore.location=$KAFKA_TLS/ca.pem
listener.name.mtls.ssl.client.auth=required
$sasl.sasl.enabled.mechanisms=SCRAM-SHA-512,SCRAM-SHA-256,PLAIN,OAUTHBEARER
$sasl.scram-sha-512.sasl.jaas.config=$module.scram.ScramLoginModule required;
$sasl.scram-sha-256.sasl.jaas.config=$module.scram.ScramLoginModule required;
$sasl.plain.sasl.jaas.config=$module.plain.PlainLoginModule required user_$KAFKA_USER="$KAFKA_PASSWORD";
$sasl.oauthbearer.sasl.jaas.config=$module.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";
$sasl.connections.max.reauth.ms=5000
# ACLs hold for those who log in, on what has any.
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
PROPERTIES
}

# What kafka-storage format and kafka-configs take.
scram() { # MECHANISM NAME?
  printf '%s=[%spassword=%s]' "$1" "${2:+name=$2,}" "$KAFKA_PASSWORD"
}

# Data that an older up.sh formatted has no user.
ensure_scram_user() {
  [[ ! -f $RUN/kafka/user ]] || return 0
  local mechanism
  say "making Kafka's user $KAFKA_USER"
  for mechanism in SCRAM-SHA-512 SCRAM-SHA-256; do # two in one request are refused
    "$JAVA" -cp "$KAFKA_LIB/*" org.apache.kafka.tools.ConfigCommand --bootstrap-server "127.0.0.1:$KAFKA_PORT_NOW" \
      --alter --entity-type users --entity-name "$KAFKA_USER" --add-config "$(scram "$mechanism")" \
      >"$LOGS/kafka-user.log" 2>&1 9<&- || {
      log_tail "$LOGS/kafka-user.log"
      die "Kafka's user $KAFKA_USER could not be made"
    }
  done
  touch "$RUN/kafka/user"
}

# Files for --kafka-config, anew at each start as ports may be.
write_client_properties() {
  cat >"$KAFKA_TLS/scram.properties" <<PROPERTIES
bootstrap.servers=127.0.0.1:$KAFKA_SASL_PORT
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.username=$KAFKA_USER
sasl.password=$KAFKA_PASSWORD
ssl.ca.location=$KAFKA_TLS/ca.pem
PROPERTIES
  cat >"$KAFKA_TLS/mtls.properties" <<PROPERTIES
bootstrap.servers=127.0.0.1:$KAFKA_MTLS_PORT
security.protocol=SSL
ssl.ca.location=$KAFKA_TLS/ca.pem
ssl.certificate.location=$KAFKA_TLS/client.pem
ssl.key.location=$KAFKA_TLS/client-key.pem
PROPERTIES
}

# Lines for the env file. A Kafka that an older up.sh started has no such listeners.
tls_env() {
  [[ -n $KAFKA_SASL_PORT && -d $KAFKA_TLS ]] || return 0
  local folder
  printf -v folder %q "$KAFKA_TLS"
  cat <<ENV
export LOCALSTACK_KAFKA_SASL_SSL=127.0.0.1:$KAFKA_SASL_PORT
export LOCALSTACK_KAFKA_MTLS=127.0.0.1:$KAFKA_MTLS_PORT
export LOCALSTACK_KAFKA_TLS_DIR=$folder
export LOCALSTACK_KAFKA_USER=$KAFKA_USER
export LOCALSTACK_KAFKA_PASSWORD=$KAFKA_PASSWORD
ENV
}
