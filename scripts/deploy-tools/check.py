"""What no tool checks of deploy/: called by scripts/lint-deploy.sh. Ends with 1 at what is wrong.

usage: check.py same KUSTOMIZE.yaml HELM.yaml    both are the same but for what each adds by itself
       check.py typescript FILE.yaml...           custom resources, as TypeScript that only valid ones let compile
       check.py context                           the Docker context has all that the source includes
"""

import difflib
import json
import re
import sys
from pathlib import Path

# Helm's own, and what makes pods anew when the ConfigMap changes.
ADDED = ["helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "checksum/config"]
KINDS = {
    "ScaledObject": "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject",
    "ServiceMonitor": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor",
    "PrometheusRule": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PrometheusRule",
}


def documents(path):
    import yaml

    return [d for d in yaml.safe_load_all(Path(path).read_text()) if d]


def plain(value):
    """Without what is added, what is empty, and the hash in a generated ConfigMap's name."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        out = {k: plain(v) for k, v in value.items() if k not in ADDED and k != "namespace"}
        return {k: v for k, v in out.items() if not (k in ("annotations", "labels") and v == {})}
    if isinstance(value, str):
        return re.sub(r"^(dlq-archiver)-[0-9a-z]{10}$", r"\1", value)
    return value


def lines(path):
    found = {(d["kind"], plain(d["metadata"]["name"])): plain(d) for d in documents(path)}
    return [
        f"{kind} {name}: {line}"
        for (kind, name), d in sorted(found.items())
        for line in json.dumps(d, indent=1, sort_keys=True).splitlines()
    ]


def same(kustomize, helm):
    found = list(difflib.unified_diff(lines(kustomize), lines(helm), "kustomize", "helm", n=1, lineterm=""))
    return found


def typescript(*paths):
    names, used = [], {}
    for path in paths:
        for d in documents(path):
            if d["kind"] in KINDS:
                used[d["kind"]] = KINDS[d["kind"]]
                names.append(f"export const _{len(names)}: I{d['kind']} = {json.dumps(d)}; // {Path(path).name}")
            elif "." in d["apiVersion"].split("/")[0] and not d["apiVersion"].split("/")[0].endswith(".k8s.io"):
                return [f"{path}: no types are known of {d['kind']}: add them to KINDS in {__file__}"]
    for kind, module in used.items():
        print(f'import type {{ I{kind} }} from "{module}";')
    print("\n".join(names))
    return [] if names else ["no custom resource was found"]


def context():
    allowed = [line[1:] for line in Path(".dockerignore").read_text().splitlines() if line.startswith("!")]
    wrong = [f".dockerignore: {a} does not exist" for a in allowed if not Path(a).exists()]
    for source in Path("src").rglob("*.rs"):
        for name in re.findall(r'include_(?:str|bytes)!\(\s*"([^"]+)"', source.read_text()):
            file = (source.parent / name).resolve().relative_to(Path.cwd())
            if not any(file.is_relative_to(a) for a in allowed):
                wrong.append(f"{source} includes {file}, which .dockerignore keeps out of the image's build")
    return wrong


found = {"same": same, "typescript": typescript, "context": context}[sys.argv[1]](*sys.argv[2:])
if found:
    sys.exit("\n".join(found))
