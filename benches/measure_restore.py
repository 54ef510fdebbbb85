"""How fast a hundredth of a large archive is restored, chosen by error class and day; against librdkafka alone.

usage: measure_restore.py [--records N] [--runs N] [--json FILE] [--keep] [--archive URL]

Wants what e2e.py wants, BARE_BIN (the example) and Linux. Not run by `make test`: 5,000,000 records take a quarter of an hour, and 6
GB of disk for a while. `--keep` leaves the archive for `--archive`, which produces nothing; it needs services of `make up`, as
others end with the run. Restores in the archive are deleted first, what is made at the end. It prints

- objects and bytes of the archive, and how many are read by which command: counted by a proxy, in a run of its own;
- the time from a restore's start to its first record that a reader of committed records gets;
- records a second from the first to the last, by the times at which the broker appended them. The bare producer sends the
  very records that the restore sent, in the same minute, by its own clock.
"""

import argparse
import json
import os
import statistics
import sys
import threading
import time

import measure  # first: it finds tests/e2e
import confluent_kafka
import confluent_kafka.admin
import e2e
import s3

BARE = os.environ["BARE_BIN"]
PARTITIONS = 8
BATCH = 5000  # of restore, by default
DAY = ["--since", "2026-10-05", "--until", "2026-10-06"]
# `produce --spring`: a tenth of all pipelines' records; and of one pipeline all that are of no common class.
SELECTIONS = {
    "class and day": ["--error-class", "SocketTimeoutException", *DAY],
    "class of one pipeline": ["--error-class", "com.example.function07.QuotaException"],
    "rare class": ["--error-class", "OutOfMemoryError"],
}


def create(topic, config):
    new = confluent_kafka.admin.NewTopic(topic, PARTITIONS, 1, config={"retention.ms": "-1"} | config)
    measure.ADMIN.create_topics([new])[topic].result()


def consumer(topic):
    config = {"bootstrap.servers": e2e.BROKERS, "group.id": "measure", "isolation.level": "read_committed"}
    consumer = confluent_kafka.Consumer(config | {"enable.partition.eof": True, "fetch.wait.max.ms": 10, "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    return consumer


class Target:
    """A fresh topic whose records have the time at which the broker appended them."""

    made = 0

    def __init__(self):
        Target.made += 1
        self.name, self.first = f"test-{e2e.RUN}-target-{Target.made}", None
        create(self.name, {"message.timestamp.type": "LogAppendTime"})
        e2e.wait_until("leaders", 30, lambda: self.has_leaders(), pause=0.1)
        self.reader = consumer(self.name)
        for _ in range(PARTITIONS):  # connected, and at the end of each
            self.reader.poll(10)
        threading.Thread(target=self.watch, daemon=True).start()

    def has_leaders(self):
        topic = measure.ADMIN.list_topics(self.name, 10).topics[self.name]
        return len(topic.partitions) == PARTITIONS and all(p.leader >= 0 for p in topic.partitions.values())

    def watch(self):
        while (message := self.reader.poll(600)) is not None:
            if not message.error():
                self.first = time.monotonic()
                break
        self.reader.close()

    def rate(self, records):
        """Records a second; there must be so many."""
        reader, times, ended = consumer(self.name), [], set()
        while len(ended) < PARTITIONS:
            for message in reader.consume(10_000, 1.0):
                if not message.error():
                    times.append(message.timestamp()[1])
                elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    e2e.say(f"{self.name}: {message.error()}")
        reader.close()
        if len(times) != records:
            e2e.fail(f"{self.name} has {len(times)} of {records} records (offsets: {e2e.log_size(self.name)})")
        return 1000 * len(times) / max(1, max(times) - min(times))

    def delete(self):
        measure.delete_topic(self.name)


def command(name, archive, *more):
    return [e2e.BIN, name, "--archive", archive, "-o", "json", *more]


def restore(archive, to, *more):
    return command("restore", archive, "--brokers", e2e.BROKERS, "--to", to, "--yes", "--quiet", *more)


def fill(args):
    """An archive of that many dead letters, and nothing else on the disk."""
    topic, archive = f"test-{e2e.RUN}-large-dlq", e2e.archive_url("large")
    begin = time.monotonic()
    # The brokers compress it: 2 GB instead of 8.
    create(topic, {"compression.type": "zstd"})
    e2e.run(e2e.PRODUCE, e2e.BROKERS, topic, str(PARTITIONS), str(args.records), "--spring", "--append")
    e2e.say(f"{args.records} records produced in {time.monotonic() - begin:.0f} s")
    done = measure.measured(e2e.archive_command(topic, archive, "-o", "json"))
    out = json.loads(done.out)
    if out["records"] != args.records:
        e2e.fail(f"{out['records']} of {args.records} records archived")
    measure.delete_topic(topic)
    e2e.say(f"{archive}: {out['cuts']} cuts, {out['objects']} objects in {done.seconds:.0f} s ({done.cpu_seconds:.0f} of a core), peak {done.peak_mib:.0f} MiB")
    return archive


def mib(count):
    return f"{count / measure.MIB:.2f} MiB"


def timed(done):
    return {"seconds": done.seconds, "cpu_seconds": done.cpu_seconds, "peak_mib": done.peak_mib}


def told(done):
    return f"{done.seconds:6.2f} s ({done.cpu_seconds:.2f} of a core), peak {done.peak_mib:.0f} MiB"


def reading(archive, result):
    """What each command asks of the store, and how long it takes without a proxy in its way."""
    counted, through = measure.counter(archive)
    target = Target()
    for name, selection in SELECTIONS.items():
        commands = {"restore --dry-run": restore(archive, target.name, "--dry-run", *selection)}
        if name == "class and day":
            commands["restore"] = restore(archive, target.name, *selection)
            commands["list"] = command("list", archive, *selection)
            commands["summary"] = command("summary", archive, *selection)
            commands["discard --dry-run"] = command("discard", archive, "--dry-run", *selection)
        for what, line in commands.items():
            done = measure.measured(line)
            if what == "restore --dry-run":
                result["records"][name] = json.loads(done.out)["selected"]
            if what == "restore":  # once more, of the same
                s3.delete(f"{archive}/restores/")
                target.delete()
                target = Target()
                line = restore(archive, target.name, *selection)
            counted.taken()
            measure.measured([*line, *through])
            requests, size = counted.taken()
            s3.delete(f"{archive}/restores/")
            result["reading"].append({"selection": name, "command": what, "requests": requests, "bytes": size} | timed(done))
            read = sum(count for kind, count in size.items() if kind.endswith(" data"))
            print(
                f"{name:22} {what:18} {told(done)}; of data/ {requests.get('GET data', 0)} GETs, {mib(read)} "
                f"({100 * read / result['archive']['data'][1]:.2f} %); requests {requests}",
                flush=True,
            )
    return target


def once(args, archive, source, delivery, result):
    """One restore and one bare producer."""
    selected = result["records"]["class and day"]
    target, begin = Target(), time.monotonic()
    done = measure.measured(restore(archive, target.name, "--delivery", delivery, *SELECTIONS["class and day"]))
    e2e.wait_until("the first record", 10, lambda: target.first, pause=0.01)
    bare, transactions = Target(), ["--transactions", str(BATCH)] if delivery == "transactional" else []
    alone = float(e2e.run(BARE, "produce", e2e.BROKERS, source, bare.name, str(selected), *transactions))
    bare.rate(selected)  # all are there
    run = {"delivery": delivery, "first_seconds": target.first - begin, "rate": target.rate(selected), "bare_rate": alone} | timed(done)
    result["runs"].append(run)
    print(
        f"{delivery:13} {told(done)}, first record after {run['first_seconds']:5.2f} s, {run['rate']:7.0f} records/s; "
        f"bare {alone:7.0f}: {run['rate'] / alone:.3f}",
        flush=True,
    )
    for topic in (target, bare):
        topic.delete()
    s3.delete(f"{archive}/restores/")


def measured(args):
    archive = args.archive or fill(args)
    s3.delete(f"{archive}/restores/")
    sizes = {folder: list(s3.sizes(f"{archive}/{folder}/").values()) for folder in ("data", "ledger")}
    result = {"archive": {folder: (len(all), sum(all)) for folder, all in sizes.items()}, "records": {}, "reading": [], "runs": []}
    for folder, (objects, size) in result["archive"].items():
        print(f"{folder}/: {objects} objects, {mib(size)}")
    source = reading(archive, result)
    for _ in range(args.runs):
        for delivery in ("plain", "transactional"):
            once(args, archive, source.name, delivery, result)
    for delivery in ("plain", "transactional"):
        runs = [run for run in result["runs"] if run["delivery"] == delivery]
        median = {key: statistics.median(run[key] for run in runs) for key in ("first_seconds", "seconds", "cpu_seconds", "rate", "bare_rate", "peak_mib")}
        result[delivery] = median | {"ratio": statistics.median(run["rate"] / run["bare_rate"] for run in runs)}
        print(f"{delivery}: median {json.dumps({key: round(value, 3) for key, value in result[delivery].items()})}")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=measure.at_least_1, default=5_000_000)
    parser.add_argument("--runs", type=measure.at_least_1, default=3)
    parser.add_argument("--json", type=measure.to_file, metavar="FILE")
    parser.add_argument("--keep", action="store_true", help=measure.KEEP)
    parser.add_argument("--archive", type=measure.left_archive, metavar="URL", help="one that was left")
    args = parser.parse_args()
    with measure.cleaning(args.keep):
        result = measured(args)
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
