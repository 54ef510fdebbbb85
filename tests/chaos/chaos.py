"""Real faults on real Kafka and real S3: every outage is waited out, nothing is lost, nothing is there twice.

usage: chaos.py [--only NAME,...] [--seed N] [--jobs N] [--kills N] [--zombies N] [--list]

A scenario: an archiver follows a topic that grows all the time, a fault comes, lasts, and goes; then the whole archive
is compared with a plain consumer. A fault that never fired fails its scenario. One table at the end; exit code 1 if
anything failed. Run it by `make chaos`: it needs services of its own (LOCALSTACK_DIR), as it kills them.
"""

import argparse
import concurrent.futures
import os
import random
import sys
import time
import traceback

import rig
from rig import e2e
import hammer
import kafka_faults
import once
import store_faults
import truncation

SCENARIOS = {**store_faults.SCENARIOS, **once.SCENARIOS, **kafka_faults.SCENARIOS, **truncation.SCENARIOS, **hammer.SCENARIOS}
# These stop services or want the machine for themselves.
ALONE = {*kafka_faults.ALONE, *truncation.SCENARIOS, *hammer.SCENARIOS}


def attempt(name, args):
    begin = time.monotonic()
    row = {"name": name, "result": "ok"}
    e2e.say(f"{name}: {(SCENARIOS[name].__doc__ or '').strip().splitlines()[0]}")
    try:
        SCENARIOS[name](row, args)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the others are run all the same
        row["result"] = "FAILED"
        row["why"] = str(error)
        if not isinstance(error, rig.Failed):
            row["why"] += "\n" + traceback.format_exc()
    row["took"] = time.monotonic() - begin
    e2e.say(f"{name}: {row['result']} in {row['took']:.0f} s {row.get('why', '')}")
    return row


COLUMNS = {
    "name": "scenario", "fired": "fault fired", "first": "first line of the outage", "alive": "process", "group": "group",
    "resumed": "s until it went on", "records": "records equal", "note": "note", "result": "result",
}  # fmt: skip


def table(rows):
    used = [c for c in COLUMNS if any(c in row for row in rows)]
    lines = ["| " + " | ".join(COLUMNS[c] for c in used) + " |", "|" + "---|" * len(used)]
    for row in rows:
        cells = [str(row.get(c, "")) for c in used]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--jobs", type=int, default=4, help="scenarios at a time, of those that can share services")
    parser.add_argument("--seconds", type=int, default=15, help="how long a fault lasts")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--zombies", type=int, default=5)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        for name, scenario in SCENARIOS.items():
            print(f"{name:24} {(scenario.__doc__ or '').strip().splitlines()[0]}")
        return
    chosen = [name for name in SCENARIOS if not args.only or name in args.only.split(",")]
    if not chosen:
        sys.exit(f"--only takes {', '.join(SCENARIOS)}")
    e2e.say(f"seed {args.seed}, {len(chosen)} scenarios")
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        together = {name: pool.submit(attempt, name, args) for name in chosen if name not in ALONE}
        rows = {name: future.result() for name, future in together.items()}
    for name in chosen:
        if name in ALONE:
            rows[name] = attempt(name, args)
    gaps = [row for row in rows.values() if row["result"] == "known gap"]
    failed = [row for row in rows.values() if row["result"] == "FAILED"]
    print(table([rows[name] for name in chosen]))
    for row in failed:
        print(f"\n{row['name']}: {row['why']}")
    print(f"\n{len(rows) - len(failed)} passed ({len(gaps)} with a known gap), {len(failed)} failed, seed {args.seed}; logs in {rig.LOGS}", flush=True)
    e2e.end_started()
    os._exit(1 if failed else 0)  # no thread of a failed scenario keeps it


if __name__ == "__main__":
    main()
