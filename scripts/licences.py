#!/usr/bin/env python3
"""Checks the licence of every crate that is built against [licenses] allow in deny.toml; a stand-in for cargo-deny.

Needs Python 3.11 and cargo. Prints each crate that has none, or one that is not allowed, and ends with 1.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def allowed(expression, allow):
    """Whether an SPDX expression can be met with `allow`. AND binds closer than OR; old crates write / for OR."""
    words = re.findall(r"[()]|[^\s()/]+|/", expression.replace("/", " / "))

    def any_of():
        result = all_of()
        while words and words[0] in ("OR", "/"):
            words.pop(0)
            result = all_of() or result
        return result

    def all_of():
        result = one()
        while words and words[0] == "AND":
            words.pop(0)
            result = one() and result
        return result

    def one():
        word = words.pop(0)
        if word == "(":
            result = any_of()
            words.pop(0)
            return result
        if words and words[0] == "WITH":
            word = f"{word} {words.pop(0)} {words.pop(0)}"
        return word in allow

    return any_of() and not words


def main():
    allow = set(tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"])
    host = re.search(r"^host: (.*)$", run("rustc", "-vV"), re.M)[1]
    metadata = run("cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", host)
    # `packages` has crates of optional features too; `resolve` is what is built.
    built = {node["id"] for node in json.loads(metadata)["resolve"]["nodes"]}
    crates = [package for package in json.loads(metadata)["packages"] if package["id"] in built]
    wrong = [c for c in crates if not (c["license"] and allowed(c["license"], allow))]
    for crate in wrong:
        print(f"licences: {crate['name']} {crate['version']}: {crate['license'] or 'none told'}: not in deny.toml")
    print(f"licences: {len(crates) - len(wrong)} of {len(crates)} crates are allowed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
