"""How an archiver that runs on behaves when little is to do: how soon a record is in S3, how soon it ends, what idling costs.

usage: idle.py [--only latency,shutdown,idle] [--runs N] [--seconds N] [--partitions N] [--json FILE]

Wants what tests/e2e/e2e.py wants, and Linux: `benches/run.sh idle`. Topics and archives are deleted at the end. It prints

- latency: from the broker's acknowledgement of one record, less the cut age, to its data object and its manifest being
  listed in S3. The record comes at a random moment; who asks for the list takes some milliseconds too.
- shutdown: from SIGTERM to the end of the process, with nothing open, and with an open batch of 50 MB in one partition or eight.
- idle: CPU time of a process whose partitions bring nothing, its requests to S3 (counted by a proxy) and to Kafka (of a
  second process like it, counted by strace where there is one), an hour. The first half minute is not counted.
"""

import argparse
import collections
import json
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

import measure  # first: it finds tests/e2e
import confluent_kafka
import e2e
import s3
import scaling

AGES = {"100ms": 0.1, "1s": 1.0, "5s": 5.0}
OPEN = 35_000  # of scaling's base case: 50 MB


class Archiver:
    """A process that runs on, and its metrics."""

    def __init__(self, topic, archive, *more):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = e2e.archive_command(topic, archive, "--listen", f"127.0.0.1:{self.port}", *more)
        command.remove("--once")
        self.process = e2e.start(command)

    def metric(self, name):
        """Its sum over all labels; 0 before there is any."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[ {{]", line))

    def has(self, name, value):
        e2e.wait_until(f"{name} {value}", 120, lambda: self.metric(name) >= value, pause=0.1)

    def stop(self):
        """Seconds from SIGTERM to its end."""
        begin = time.monotonic()
        self.process.terminate()
        if self.process.wait(300) != 0:
            e2e.fail(f"SIGTERM ended it with {self.process.returncode}")
        return time.monotonic() - begin

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mib(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def spread(values, unit):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f}) {unit}"


def until_listed(url, known, of):
    """When one more object is listed that counts, and all of them."""
    deadline = time.monotonic() + 60
    while True:
        now = {path for path in s3.sizes(url) if of(path)}
        if now - known:
            return time.monotonic(), now
        if time.monotonic() > deadline:
            e2e.fail(f"nothing new below {url}")
        time.sleep(0.005)


def manifest(path):
    return path.endswith(".json") and not path.endswith(("intent.json", "genesis.json")) and "/checkpoints/" not in path


def latency(args):
    topic, chance = f"test-{e2e.RUN}-latency-dlq", random.Random(1)
    scaling.create(topic, 1)
    letters = scaling.Letters(scaling.Case("", "", args.runs + 1))
    producer = confluent_kafka.Producer({"bootstrap.servers": e2e.BROKERS, "linger.ms": 0})
    try:
        for age, seconds in AGES.items():
            url = e2e.archive_url(f"latency-{age}")
            archiver = Archiver(topic, url, "--from", "latest", "--cut-age", age)
            archiver.has("dlq_archiver_partitions_assigned", 1)
            time.sleep(2)
            data, manifests, runs = set(), set(), []
            # The first one is not counted: it finds connections closed.
            for n in range(args.runs + 1):
                time.sleep(chance.random() * 0.5)
                key, value, headers = letters.record(n)
                producer.produce(topic, value, key, headers=headers)
                producer.flush()
                begin = time.monotonic() + seconds
                seen, data = until_listed(f"{url}/data/", data, lambda _: True)
                committed, manifests = until_listed(f"{url}/ledger/", manifests, manifest)
                runs.append((seen - begin, committed - begin))
            archiver.stop()
            s3.delete(f"{url}/")
            for what, at in (("data object", 0), ("manifest", 1)):
                values = [run[at] for run in runs[1:]]
                yield {"what": f"--cut-age {age}: record to {what}, less the age", "told": spread(values, "s"), "values": values}
    finally:
        scaling.delete(topic)


def shutdown(args):
    for partitions, records in ((8, 0), (1, OPEN), (8, OPEN)):
        topic, url = f"test-{e2e.RUN}-shutdown-dlq", e2e.archive_url("shutdown")
        try:
            scaling.fill(topic, scaling.Case("", "", records, partitions=partitions))
            values = []
            for _ in range(max(1, args.runs // 3)):
                # The default of 20 s is enough for an idle machine, and this is to find out by how much.
                archiver = Archiver(topic, url, "--grace", "5m")
                archiver.has("dlq_archiver_partitions_assigned", partitions)
                archiver.has("dlq_archiver_records_read_total", records)
                time.sleep(1)
                if e2e.archived_rows(url):
                    e2e.fail("the batch was not open")
                values.append(archiver.stop())
                if (rows := e2e.archived_rows(url)) != records:
                    e2e.fail(f"{rows} of {records} records archived")
                s3.delete(f"{url}/")
        finally:
            scaling.delete(topic)
            s3.delete(f"{url}/")
        name = f"{records * 1.43 / 1000:.0f} MB open in {partitions} partitions" if records else "nothing open"
        yield {"what": f"SIGTERM to the end, {name}", "told": spread(values, "s"), "values": values}


class KafkaRequests:
    """Requests to Kafka that a process sends, by strace: each is one message that begins with size, API key and version."""

    NAMES = {1: "Fetch", 2: "ListOffsets", 3: "Metadata", 8: "OffsetCommit", 9: "OffsetFetch", 10: "FindCoordinator", 11: "JoinGroup", 12: "Heartbeat", 14: "SyncGroup", 18: "ApiVersions", 32: "DescribeConfigs"}
    # "dlq-archiver", the client's name, stands at a fixed place.
    SENT = re.compile(r'iov_base="(?:\\x..){4}\\x(..)\\x(..)(?:\\x..){6}\\x00\\x0c\\x64\\x6c\\x71')

    def __init__(self, pid):
        self.counts = collections.Counter()
        self.strace = subprocess.Popen(
            ["strace", "-f", "-p", str(pid), "-e", "trace=sendmsg", "-xx", "-s", "24"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.strace.stderr:
            if sent := self.SENT.search(line):
                key = int(sent.group(1) + sent.group(2), 16)
                self.counts[self.NAMES.get(key, f"API {key}")] += 1

    def stop(self):
        self.strace.terminate()
        self.strace.wait()
        self.reader.join()
        return self.counts


def idle(args):
    topic, urls = f"test-{e2e.RUN}-idle-dlq", [e2e.archive_url("idle"), e2e.archive_url("idle-kafka")]
    try:
        scaling.fill(topic, scaling.Case("", "", args.partitions, partitions=args.partitions))
        for url in urls:
            e2e.run(*e2e.archive_command(topic, url))
        counted, through = measure.counter(urls[0])
        archiver = Archiver(topic, urls[0], *through)
        traced = Archiver(topic, urls[1])
        for each in (archiver, traced):
            each.has("dlq_archiver_archived_offset", args.partitions)  # each has loaded its ledger
        time.sleep(30)
        counted.taken()
        sent = KafkaRequests(traced.process.pid) if shutil.which("strace") else None
        begin, cpu = time.monotonic(), archiver.cpu_seconds()
        time.sleep(args.seconds)
        hours = (time.monotonic() - begin) / 3600
        cpu, (requests, size), asked = archiver.cpu_seconds() - cpu, counted.taken(), sent.stop() if sent else {}
        resident = archiver.resident_mib()
        archiver.stop(), traced.stop()
    finally:
        scaling.delete(topic)
    for url in urls:
        s3.delete(f"{url}/")
    per_hour = lambda counts: ", ".join(f"{name.strip()} {count / hours:,.0f}" for name, count in sorted(counts.items(), key=lambda c: -c[1]))
    of = f"idle, {args.partitions} partitions, an hour"
    yield {"what": f"{of}: CPU", "told": f"{cpu / hours:.1f} s ({100 * cpu / hours / 3600:.2f} % of a core)", "values": [cpu / hours]}
    yield {"what": f"{of}: requests to S3", "told": f"{sum(requests.values()) / hours:,.0f}: {per_hour(requests)}", "values": requests, "bytes": size}
    yield {"what": f"{of}: requests to Kafka", "told": f"{sum(asked.values()) / hours:,.0f}: {per_hour(asked)}", "values": asked}
    yield {"what": f"idle, {args.partitions} partitions: resident memory", "told": f"{resident:.0f} MiB", "values": [resident]}


PARTS = [latency, shutdown, idle]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="of latency, shutdown, idle")
    parser.add_argument("--runs", type=measure.at_least_1, default=12, help="of each cut age; a third of it for shutdown")
    parser.add_argument("--seconds", type=measure.at_least_1, default=180, help="that idling is watched")
    parser.add_argument("--partitions", type=measure.at_least_1, default=100, help="that are idle")
    parser.add_argument("--json", type=measure.to_file, metavar="FILE")
    args = parser.parse_args()
    rows, only = [], measure.only(args.only, [part.__name__ for part in PARTS])
    with measure.cleaning():
        for part in PARTS:
            if part.__name__ in only:
                for row in part(args):
                    e2e.say(f"{row['what']}: {row['told']}")
                    rows.append(row)
        print("| what | median (range) |\n|---|---|")
        for row in rows:
            print(f"| {row['what']} | {row['told']} |")
        if args.json:
            with open(args.json, "w") as file:
                json.dump(rows, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
