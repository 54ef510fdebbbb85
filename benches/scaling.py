"""What `archive --once` costs by record size, partitions, pipelines, backlog and content: CPU per GB, and peak memory.

usage: scaling.py [--only start,a,b,c,d,e] [--memory SIZE,...] [--scale X] [--runs N] [--json FILE]

Wants what tests/e2e/e2e.py wants, and Linux: `benches/run.sh scaling`. One thing changes at a time, everything else stays at the base:
values of 1 KB, 8 partitions, 1 pipeline, about half a GB. Each case is a topic of its own, drained once for each memory
budget; topic and archive are deleted behind it.

Records are those of a Kafka Connect sink: a key, a JSON value that compresses to about half, and the context headers without
the stack trace, 0.45 KB. `100 B alone` has neither headers nor key. GB and MB are keys, values and headers, as Kafka has
them, in powers of ten. A pipeline is a connector: each once, then drawn at random; `summary` has to find as many as there are.
`over` is the peak less the budget. `start` is an archive of 10 records: what the program takes before anything. Values of `e` are
random bytes, 10 KB each, all in one partition: nothing gets smaller, and objects are as large as they can be.
"""

import argparse
import base64
import collections
import json
import random
import re
import statistics
import sys
import time

import measure  # first: it finds tests/e2e
import confluent_kafka
import confluent_kafka.admin
import e2e

FIRST_MS = 1_791_331_200_000  # 2026-10-07 (UTC); all records are of that day
DAY_MS = 86_400_000

# `flags` are those of `archive`.
Case = collections.namedtuple("Case", "part name records size partitions pipelines headers random flags", defaults=[1000, 8, 1, True, False, ()])


def cases(scale):
    """Records so that each case but those of `d` has about half a GB."""
    n = lambda records: max(8, int(records * scale))
    base = n(350_000)
    yield Case("start", "10 records", 10)
    yield Case("a", "100 B alone", n(3_000_000), 100, headers=False)
    yield Case("a", "100 B", n(900_000), 100)
    yield Case("a", "1 KB (base)", base)
    yield Case("a", "100 KB", n(5_000), 100_000)
    yield Case("a", "1 MB", n(500), 1_000_000)
    for partitions in (1, 8, 64, 500):
        yield Case("b", f"{partitions} partitions", base, partitions=partitions)
    for pipelines in (1, 100, 1000):
        yield Case("c", f"{pipelines} pipelines", base, pipelines=pipelines)
    for millions in (1, 2, 5):
        yield Case("d", f"{millions},000,000 records", n(millions * 1_000_000), 100)
    for name, flags in (("Parquet", ()), ("JSONL, plain", ("--format", "jsonl", "--compression", "none"))):
        yield Case("e", f"random bytes, {name}", n(50_000), 10_000, partitions=1, random=True, flags=flags)


class Letters:
    """Dead letters of a case: the same ones each time."""

    ERRORS = [b"java.lang.IllegalArgumentException", b"org.apache.kafka.common.errors.SerializationException", b"java.sql.SQLException", b"java.net.SocketTimeoutException"]
    STAGES = [b"VALUE_CONVERTER", b"TRANSFORMATION", b"TASK_PUT"]

    def __init__(self, case):
        self.case, self.chance = case, random.Random(1)
        noise = random.Random(2).randbytes(12 << 20)
        # Base64 has 6 bits in 8: with a third that repeats, half is left.
        self.noise = noise if case.random else base64.b64encode(noise)
        self.filler = b"The quick brown fox jumps over the lazy dog. " * (case.size // 3 // 45 + 1)

    def value(self, n):
        if self.case.random:
            at = self.chance.randrange(len(self.noise) - self.case.size)
            return self.noise[at : at + self.case.size]
        begin = b'{"id": %d, "data": "' % n
        left = max(0, self.case.size - len(begin) - 16)
        at = self.chance.randrange(len(self.noise) - left)
        return b'%s%s", "note": "%s"}' % (begin, self.noise[at : at + left * 2 // 3], self.filler[: left - left * 2 // 3])

    def record(self, n):
        """Key, value and headers."""
        value = self.value(n)
        if not self.case.headers:
            return None, value, None
        pipeline, error = self.chance.randrange(self.case.pipelines), self.ERRORS[n % 7 % 4]
        if n < self.case.pipelines:
            pipeline = n
        prefix = "__connect.errors."
        headers = [
            (prefix + "topic", b"orders"),
            (prefix + "partition", b"%d" % (n % 12)),
            (prefix + "offset", b"%d" % (n * 3)),
            (prefix + "connector.name", b"orders-sink-%04d" % pipeline),
            (prefix + "task.id", b"%d" % (n % 4)),
            (prefix + "stage", self.STAGES[n % 11 % 3]),
            (prefix + "class.name", b"io.confluent.connect.jdbc.JdbcSinkTask"),
            (prefix + "exception.class.name", error),
            (prefix + "exception.message", b"order %d of customer %d was refused" % (n, n % 5003)),
        ]
        return b"order-%d" % n, value, headers


def create(name, partitions):
    config = {"retention.ms": "-1", "max.message.bytes": str(2 << 20)}
    measure.ADMIN.create_topics([confluent_kafka.admin.NewTopic(name, partitions, 1, config=config)])[name].result()


def fill(topic, case):
    create(topic, case.partitions)
    config = {"bootstrap.servers": e2e.BROKERS, "linger.ms": 100, "batch.size": 1 << 20, "message.max.bytes": 2 << 20}
    refused = []
    told = lambda error, _: refused.append(error) if error else None
    producer = confluent_kafka.Producer(config | {"queue.buffering.max.kbytes": 256 << 10, "queue.buffering.max.messages": 500_000, "on_delivery": told})
    letters = Letters(case)
    for n in range(case.records):
        key, value, headers = letters.record(n)
        at = FIRST_MS + n * DAY_MS // case.records
        while True:
            try:
                producer.produce(topic, value, key, partition=n % case.partitions, timestamp=at, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
        if n % 1000 == 0:
            producer.poll(0)
    if producer.flush(300) or refused:
        e2e.fail(f"not all was produced: {refused[:1]}")


def archive(topic, case, memory):
    """One run on a fresh archive, which is deleted."""
    url = e2e.archive_url(f"scaling-{memory}")
    try:
        done = measure.measured(e2e.archive_command(topic, url, "--memory", memory, "-o", "json", *case.flags))
        out = json.loads(done.out)
        summary = json.loads(e2e.run(e2e.BIN, "summary", "--archive", url, "--by", "pipeline", "-o", "json", "--quiet"))
    finally:
        measure.delete(f"{url}/")
    if out["records"] != case.records:
        e2e.fail(f"{case.name}: {out['records']} of {case.records} records archived")
    found, wanted = len(summary["groups"]), min(case.pipelines, case.records)
    if found != wanted:
        e2e.fail(f"{case.name}: {found} pipelines of {wanted}")
    figures = {key: out[key] for key in ("records", "cuts", "objects", "bytes_read", "bytes_stored")}
    return figures | {"cpu": done.cpu_seconds, "wall": done.seconds, "peak_mib": done.peak_mib}


def budgets(text):
    sizes = text.split(",")
    if wrong := [size for size in sizes if not re.fullmatch(r"[1-9][0-9]*(MiB|GiB)", size)]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is no budget: whole MiB or GiB, such as 512MiB,1GiB")
    return sizes


def scale(text):
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError("above 0")
    return number


def mebibytes(size):
    units = {"MiB": 1, "GiB": 1024}
    return int(size[:-3]) * units[size[-3:]]


def row(case, memory, runs):
    of = lambda key: statistics.median(run[key] for run in runs)
    read = of("bytes_read")
    return {
        "part": case.part,
        "case": case.name,
        "memory": memory,
        "records": case.records,
        "mb": read / 1e6,
        "cuts": of("cuts"),
        "objects": of("objects"),
        "cpu": of("cpu"),
        "cpu_per_gb": of("cpu") / read * 1e9,
        "cpu_us_per_record": of("cpu") / case.records * 1e6,
        "wall": of("wall"),
        "peak_mib": max(run["peak_mib"] for run in runs),
        "over_mib": max(run["peak_mib"] for run in runs) - mebibytes(memory),
        "stored": of("bytes_stored") / read,
        "runs": runs,
    }


COLUMNS = {
    "part": "{}",
    "case": "{}",
    "memory": "{}",
    "records": "{:,}",
    "MB": "{:,.0f}",
    "cuts": "{:.0f}",
    "objects": "{:,.0f}",
    "CPU s": "{:.2f}",
    "CPU s/GB": "{:.2f}",
    "CPU us/record": "{:.1f}",
    "wall s": "{:.1f}",
    "peak MiB": "{:.0f}",
    "over MiB": "{:.0f}",
    "stored/raw": "{:.3f}",
}


def table(rows):
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    for row in rows:
        # `start` has nothing to divide by.
        per = {"cpu_per_gb", "cpu_us_per_record", "stored"} if row["part"] == "start" else set()
        cells = zip(COLUMNS.values(), row.items())
        print("| " + " | ".join("" if key in per else form.format(value) for form, (key, value) in cells) + " |", flush=True)


def measured(case, memories, runs):
    topic = f"test-{e2e.RUN}-scaling-dlq"
    begin = time.monotonic()
    try:
        fill(topic, case)
        e2e.say(f"{case.part} {case.name}: {case.records} records produced in {time.monotonic() - begin:.0f} s")
        return [row(case, memory, [archive(topic, case, memory) for _ in range(runs)]) for memory in memories]
    finally:
        delete(topic)


def delete(topic):
    measure.delete_topic(topic)
    # The next case has the same name.
    e2e.wait_until(f"{topic} is gone", 60, lambda: topic not in measure.ADMIN.list_topics(timeout=10).topics, pause=0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts: start, a (sizes), b (partitions), c (pipelines), d (backlogs), e (random bytes)")
    parser.add_argument("--memory", type=budgets, default="512MiB,192MiB", help="budgets")
    parser.add_argument("--scale", type=scale, default=1.0, help="records of each case, times this")
    parser.add_argument("--runs", type=measure.at_least_1, default=1, help="of each case and budget; medians, and the highest peak")
    parser.add_argument("--json", type=measure.to_file, metavar="FILE")
    args = parser.parse_args()
    (rows, seen), only = ([], {}), measure.only(args.only, ["start", "a", "b", "c", "d", "e"])
    with measure.cleaning():
        for case in cases(args.scale):
            if case.part not in only:
                continue
            same = case._replace(part="", name="")
            # The base is a case of three parts, and measured once.
            if same not in seen:
                seen[same] = measured(case, args.memory, args.runs)
                for found in seen[same]:
                    e2e.say("  " + ", ".join(f"{key} {found[key]:.2f}" for key in ("cpu", "cpu_per_gb", "wall", "peak_mib")) + f" ({found['memory']})")
            rows += [found | {"part": case.part, "case": case.name} for found in seen[same]]
        table(rows)
        if args.json:
            with open(args.json, "w") as file:
                json.dump(rows, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
