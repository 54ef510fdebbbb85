"""The program against the bare loops, in turns, on one topic: CPU, time, peak memory, and ratios within the run.

usage: bench.py [--records N] [--runs N] [--only NAME,...] [--json FILE] [--save]

`benches/README.md` says how to read it. Wants what tests/e2e/e2e.py wants, BARE_BIN (the example) and Linux: `benches/run.sh`
sees to it. `--save`: the ratios are kept in benches/last.json, which each run is shown beside; of all steps, at least 3 rounds,
1,000,000 records and what is committed. It fails if a step did not do its work. Topics and archives are deleted at the end.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys

import measure  # first: it finds tests/e2e
import e2e

BARE = os.environ["BARE_BIN"]
LAST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "last.json")
DAY = ["--since", "2026-10-07", "--until", "2026-10-08"]
# What `--save` is of.
RECORDS, RUNS = 1_000_000, 3
# Columns that have a value in each record that `produce` makes, and that a loop has to look for.
FOUND = {
    "raw": ["kafka_value"],
    "all": ["kafka_value_text", "pipeline_name", "error_code", "error_message", "error_destination", "origin_topic", "origin_offset", "event_id", "event_source", "event_time"],
}


class Steps:
    """What is run, by name. Each leaves what the next ones need."""

    def __init__(self, records):
        self.records, self.archives, self.targets = records, [], []
        self.topic = e2e.produce("bench-dlq", 8, records)

    def all(self, records, what):
        if records != self.records:
            e2e.fail(f"{what}: {records} of {self.records} records")

    def bare(self, *args):
        done = measure.measured([BARE, args[0], e2e.BROKERS, self.topic, *args[1:]])
        out, name = json.loads(done.out), "_".join(args)
        self.all(out["records"], name)
        for column in FOUND.get(args[-1], []):
            self.all(out["found"][column], f"{name}, values of {column}")
        return done

    def consume(self):
        return self.bare("consume")

    def decode(self):
        return self.bare("decode")

    def encode_raw(self):
        return self.bare("encode", "raw")

    def encode_all(self):
        return self.bare("encode", "all")

    def archive(self, memory):
        self.archives.append(archive := e2e.archive_url(f"bench-{len(self.archives)}"))
        done = measure.measured(e2e.archive_command(self.topic, archive, "--memory", memory, "-o", "json"))
        out = json.loads(done.out)
        self.all(out["records"], f"archive --memory {memory}")
        return done._replace(note={"cuts": out["cuts"], "objects": out["objects"]})

    def archive_512(self):
        return self.archive("512MiB")

    def archive_192(self):
        return self.archive("192MiB")

    def reading(self, name, *args):
        return measure.measured([e2e.BIN, name, "--archive", self.archives[-1], "-o", "json", "--quiet", *args])

    def some(self, done, records, name):
        if not records:
            e2e.fail(f"{name} selected none of {self.records} records")
        return done._replace(note={"records": records})

    def list(self):
        done = self.reading("list", "--error-code", "503", *DAY)
        # Each is in a line of its own.
        return self.some(done, done.out.count(b"\n{"), "list")

    def summary(self):
        done = self.reading("summary")
        self.all(json.loads(done.out)["records"], "summary")
        return done

    def verify(self):
        done = self.reading("verify")
        self.all(json.loads(done.out)["totals"]["rows"], "verify")
        return done

    def target(self):
        self.targets.append(name := f"test-{e2e.RUN}-bench-target-{len(self.targets)}")
        e2e.create_topic(name, 8)
        return name

    def restore(self):
        done = self.reading("restore", "--brokers", e2e.BROKERS, "--to", self.target(), "--yes", "--delivery", "plain", *DAY)
        # Of nothing it prints a plan, which has no such number.
        return self.some(done, json.loads(done.out).get("restored"), "restore")

    def clean(self):
        """Between rounds: the disk is not to fill, and no round has more beside it than another."""
        for archive in self.archives:
            measure.delete(f"{archive}/")
        for target in self.targets:
            measure.delete_topic(target)
        self.archives.clear()
        self.targets.clear()


STEPS = ["consume", "encode_raw", "decode", "archive_512", "encode_all", "archive_192", "list", "summary", "verify", "restore"]


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def ratios(runs):
    """Of each step: CPU against the loop that encodes all columns, time against the one that only consumes. Each round
    against its own loops, then the median: what disturbs a round disturbs both."""
    found = {}
    for name in runs:
        by = {}
        for key, against in (("cpu", "encode_all"), ("wall", "consume")):
            pairs = zip(runs[name], runs.get(against, []))
            of = [own[key] / bare[key] for own, bare in pairs]
            if of:
                by[key] = round(statistics.median(of), 3)
                by[f"{key}_range"] = [round(min(of), 3), round(max(of), 3)]
        found[name] = by
    return found


def table(runs, last):
    now = ratios(runs)
    columns = ["step", "CPU s", "wall s", "peak MiB", "CPU / encode_all", "last", "wall / consume", "last"]
    rows = []
    for name, of in runs.items():
        row = [name, spread([r["cpu"] for r in of]), spread([r["wall"] for r in of])]
        row.append(f"{statistics.median(r['peak'] for r in of):.0f} (max {max(r['peak'] for r in of):.0f})")
        for key in ("cpu", "wall"):
            before = last.get(name, {}).get(key)
            spread_of = "{:.2f} ({:.2f}-{:.2f})"
            row.append(spread_of.format(now[name][key], *now[name][f"{key}_range"]) if key in now[name] else "")
            row.append("" if before is None else f"{before:.2f}")
        rows.append(row)
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    return now


def machine():
    with open("/proc/cpuinfo") as cpus:
        model = next((line.split(":")[1].strip() for line in cpus if line.startswith("model name")), platform.machine())
    return {"cores": os.cpu_count(), "model": model}


def commit():
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or None


def unfit(args, at):
    """Why `--save` is refused: later runs are compared with what it keeps."""
    if args.only:
        return "it keeps all steps: leave --only out"
    if args.runs < RUNS:
        return f"it keeps medians: --runs {RUNS} or more"
    if args.records != RECORDS:
        return f"runs are of {RECORDS:,} records: leave --records out"
    if at is None or at.endswith("-dirty"):
        return "what is measured has to be a commit's: commit or stash what git status shows"
    return None


def rounds(args, wanted):
    """Runs all; what each took, by step."""
    steps, runs = Steps(args.records), {name: [] for name in wanted}
    for n in range(args.runs):
        for name in wanted:
            done = getattr(steps, name)()
            run = {"cpu": done.cpu_seconds, "wall": done.seconds, "peak": done.peak_mib} | done.note
            runs[name].append(run)
            told = ", ".join(f"{value} {key}" for key, value in done.note.items())
            print(f"{n + 1}/{args.runs} {name:12} {done.cpu_seconds:6.2f} CPU s {done.seconds:6.2f} s {done.peak_mib:5.0f} MiB {told}", file=sys.stderr, flush=True)
        steps.clean()
    return runs


def report(args, at, runs):
    last = {}
    if os.path.exists(LAST):
        with open(LAST) as file:
            kept = json.load(file)
        told = f"last: {kept['date']}, {kept['commit']}, {kept['records']} records, {kept['machine']['cores']} cores of {kept['machine']['model']}"
        if kept["records"] == args.records:
            last = kept["ratios"]
        else:
            told += ": of another number of records, and not shown"
        print(f"{told}\n")
    now = table(runs, last)
    about = {"date": datetime.date.today().isoformat(), "commit": at, "records": args.records, "machine": machine()}
    if args.json:
        with open(args.json, "w") as file:
            json.dump(about | {"runs": runs, "ratios": now}, file, indent=1)
    if args.save:
        medians = {name: {key: round(statistics.median(r[key] for r in of), 2) for key in of[0]} for name, of in runs.items()}
        with open(LAST, "w") as file:
            json.dump(about | {"ratios": now, "medians": medians}, file, indent=1)
            file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=measure.at_least_1, default=RECORDS, help="of the topic; with fewer, fixed costs are most of a ratio")
    parser.add_argument("--runs", type=measure.at_least_1, default=5, help="rounds")
    parser.add_argument("--only", default="", help=f"of {','.join(STEPS)}; commands over an archive want an archive_ step")
    parser.add_argument("--json", type=measure.to_file, metavar="FILE", help="every run, and the ratios")
    parser.add_argument("--save", action="store_true", help="the ratios become those that later runs are shown beside")
    args = parser.parse_args()
    only = measure.only(args.only, STEPS)
    wanted = [name for name in STEPS if name in only]
    if {"list", "summary", "verify", "restore"} & set(wanted) and not {"archive_512", "archive_192"} & set(wanted):
        parser.error("commands over an archive want archive_512 or archive_192 before them")
    at = commit()
    if args.save and (why := unfit(args, at)):
        parser.error(f"--save: {why}")
    with measure.cleaning():
        report(args, at, rounds(args, wanted))


if __name__ == "__main__":
    sys.exit(main())
