"""What it costs to look into an archive of very many small data objects: time, CPU, memory, and requests of the store.

usage: catalog.py [--objects N] [--json FILE] [--keep] [--archive URL]

Wants what tests/e2e/e2e.py wants, and Linux: `benches/run.sh catalog` sees to it. Not run by `make test`: 100,000 objects take about
ten minutes to make on two idle cores, and 2 GB of disk. `--keep` leaves the archive for `--archive`, which produces nothing; it
needs services of `make up`, as others end with the run. Restores in the archive are deleted first, what is made at the end.

The objects are what short cuts make: 16 partitions, 20 pipelines, 10 days, cuts of 60 records with an object for each
pipeline in them. Each command runs twice: by itself, which is timed, and through a proxy that counts its requests and bytes.
Bytes are those of requests and answers, headers included.
"""

import argparse
import concurrent.futures
import json
import sys
import time

import measure  # first: it finds tests/e2e
import e2e
import s3

PARTITIONS, CUT_RECORDS = 16, 60
# Of 60 records of 20 pipelines, 19 are not of the same one.
RECORDS_AN_OBJECT = 3.1
MINUTES = ["--since", "2026-10-05T12:00:00Z", "--until", "2026-10-05T12:10:00Z"]
HOUR = ["--since", "2026-10-05T12:00:00Z", "--until", "2026-10-05T13:00:00Z"]
AT_ONCE = 4


def fill(args):
    """An archive of about so many data objects."""
    archive, begin = e2e.archive_url("catalog"), time.monotonic()
    topic = e2e.produce("catalog-dlq", PARTITIONS, int(args.objects * RECORDS_AN_OBJECT), "--spring")
    e2e.say(f"produced in {time.monotonic() - begin:.0f} s")
    done = measure.measured(e2e.archive_command(topic, archive, "--cut-records", str(CUT_RECORDS), "-o", "json"))
    out = json.loads(done.out)
    measure.delete_topic(topic)
    e2e.say(
        f"{archive}: {out['records']} records, {out['cuts']} cuts, {out['objects']} objects in {done.seconds:.0f} s "
        f"({done.cpu_seconds:.0f} of a core), peak {done.peak_mib:.0f} MiB"
    )
    return archive


def command(name, archive, *more):
    return [e2e.BIN, name, "--archive", archive, "--quiet", *more]


def commands(archive, target):
    """By what they are called in the table. One of the records is looked up: in the middle, so its manifest is in a checkpoint."""
    found = e2e.run(*command("list", archive, "-o", "jsonl", *MINUTES)).splitlines()
    if not found:
        e2e.fail("no records in the ten minutes that are looked at")
    record = json.loads(found[len(found) // 2])
    # As a table: that looks for the reason.
    nothing = command("list", archive, "-o", "table", "--pipeline", "no-such-pipeline")
    restore = command("restore", archive, "--brokers", e2e.BROKERS, "--to", target, "--dry-run", "-o", "json")
    return {
        "list, 10 minutes": command("list", archive, "-o", "jsonl", *MINUTES),
        "list, 10 minutes of a pipeline": command("list", archive, "-o", "jsonl", *MINUTES, "--pipeline", record["pipeline_name"]),
        "list --newest 20": command("list", archive, "-o", "jsonl", "--newest", "20"),
        "list, nothing matches": nothing,
        "list --event-id": command("list", archive, "-o", "jsonl", "--event-id", record["event_id"]),
        "show ID": command("show", archive, "-o", "json", record["record_id"]),
        "summary": command("summary", archive, "-o", "json"),
        "restore --dry-run, one id": [*restore, "--record-id", record["record_id"]],
        "restore --dry-run, one hour": [*restore, *HOUR],
        "verify --quick": command("verify", archive, "-o", "json", "--quick"),
    }


def at_once(line):
    """Four of a command at the same time: until the last ends, CPU of all, the largest peak."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        all = list(pool.map(measure.measured, [line] * AT_ONCE))
    return measure.Measured(b"", time.monotonic() - begin, sum(done.cpu_seconds for done in all), max(done.peak_mib for done in all))


def row(name, run, line, archive, counted, through):
    """One command's figures. What a dry run keeps is deleted, as the next one would find it."""
    done = run(line)
    s3.delete(f"{archive}/restores/")
    counted.taken()
    run([*line, *through])
    requests, size = counted.taken()
    s3.delete(f"{archive}/restores/")
    timed = {"seconds": done.seconds, "cpu_seconds": done.cpu_seconds, "peak_mib": done.peak_mib}
    return {"command": name} | timed | {"requests": requests, "bytes": size}


def told(kinds):
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda kind: -kind[1]))


def table(rows):
    print("| command | s | CPU s | peak MiB | requests | of them | MiB ledger | MiB data |")
    print("|---|---|---|---|---|---|---|---|")
    for r in rows:
        of = {folder: sum(size for kind, size in r["bytes"].items() if kind.endswith(f" {folder}")) for folder in ("ledger", "data")}
        print(
            f"| {r['command']} | {r['seconds']:.2f} | {r['cpu_seconds']:.2f} | {r['peak_mib']:.0f} | {sum(r['requests'].values())} "
            f"| {told(r['requests'])} | {of['ledger'] / measure.MIB:.2f} | {of['data'] / measure.MIB:.2f} |"
        )


def look(args):
    archive = args.archive or fill(args)
    s3.delete(f"{archive}/restores/")
    result = {"archive": {}, "commands": []}
    for folder in ("data", "ledger"):
        sizes = list(s3.sizes(f"{archive}/{folder}/").values())
        result["archive"][folder] = {"objects": len(sizes), "bytes": sum(sizes)}
        print(f"{folder}/: {len(sizes)} objects, {sum(sizes) / measure.MIB:.1f} MiB", flush=True)
    target = f"test-{e2e.RUN}-target"
    e2e.create_topic(target, PARTITIONS)
    counted, through = measure.counter(archive)
    runs = [(name, measure.measured, line) for name, line in commands(archive, target).items()]
    name, _, line = runs[0]
    runs.append((f"{AT_ONCE} at once: {name}", at_once, line))
    for name, run, line in runs:
        result["commands"].append(row(name, run, line, archive, counted, through))
        print(json.dumps(result["commands"][-1]), file=sys.stderr, flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=measure.at_least_1, default=100_000, help="about so many; with fewer than 10,000, up to thrice")
    parser.add_argument("--json", type=measure.to_file, metavar="FILE")
    parser.add_argument("--keep", action="store_true", help=measure.KEEP)
    parser.add_argument("--archive", type=measure.left_archive, metavar="URL", help="one that was left")
    args = parser.parse_args()
    with measure.cleaning(args.keep):
        result = look(args)
        table(result["commands"])
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
