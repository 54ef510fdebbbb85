"""Figures that are not tests: peak memory with many partitions, and a ledger that has grown old on real S3.

usage: measure.py memory|old_ledger [--partitions N] [--cuts N] [--memory SIZE]

Wants what e2e.py wants, and Linux. Not run by `make test`: it takes minutes and gigabytes. What it makes is deleted at its end.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/e2e"))
import confluent_kafka
import confluent_kafka.admin
import e2e
import proxy
import s3

MIB = 1 << 20
ADMIN = confluent_kafka.admin.AdminClient({"bootstrap.servers": e2e.BROKERS})
KEEP = "leave the archive; of use with services of `make up`: others end with the run"

# What is printed is tables, for pipes.
e2e.say = lambda text: print(f"e2e: {text}", file=sys.stderr, flush=True)

# `finally` is run then, too.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def delete_topic(topic):
    """If it is there."""
    try:
        ADMIN.delete_topics([topic])[topic].result()
    except confluent_kafka.KafkaException as e:
        if e.args[0].code() != confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise


def delete(url):
    """As s3.delete, many at a time."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for _ in pool.map(lambda path: s3.request("DELETE", path), s3.sizes(url)):
            pass


@contextlib.contextmanager
def cleaning(keep=False):
    """Deletes what this run made, however it ends: its topics, and its archives unless they are to be kept."""
    try:
        yield
    finally:
        e2e.end_started()
        for process in e2e.STARTED:
            process.wait()
        if not keep:
            delete(f"s3://{e2e.BUCKET}/e2e-{e2e.RUN}/")
        for topic in ADMIN.list_topics(timeout=10).topics:
            if topic.startswith(f"test-{e2e.RUN}-"):
                delete_topic(topic)


def only(text, names):
    """The names that `--only` has, and nothing else; all for nothing."""
    wanted = [name for name in text.split(",") if name]
    if unknown := [name for name in wanted if name not in names]:
        sys.exit(f"--only: there is no {', '.join(unknown)}; there are {', '.join(names)}")
    return wanted or list(names)


def to_file(path):
    """Whether a file can be written, found out before an hour is spent on what goes into it."""
    if path:
        with open(path, "a"):
            pass
    return path


def at_least_1(text):
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def left_archive(url):
    """The address of an archive that such a script left. Restores of others are not for it to delete."""
    if not re.fullmatch(r"s3://[^/]+/e2e-[^/]+/[^/]+/?", url):
        raise argparse.ArgumentTypeError(f"{url} is not one that --keep left, which are below s3://BUCKET/e2e-")
    return url.rstrip("/")


Measured = collections.namedtuple("Measured", "out seconds cpu_seconds peak_mib note", defaults=[{}])


def measured(command):
    """Runs a command to its end."""
    begin, peak = time.monotonic(), 0
    process = subprocess.Popen(command, stdout=subprocess.PIPE)

    # The memory that wait4 tells is never less than this process has.
    def watch():
        nonlocal peak
        while process.returncode is None:
            try:
                with open(f"/proc/{process.pid}/status") as status:
                    peak = max([peak, *(int(line.split()[1]) for line in status if line.startswith("VmHWM"))])
            except OSError:
                pass
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()
    try:
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        # It does not outlive this process, whatever ends that.
        process.kill()
        process.wait()
    if process.returncode != 0:
        e2e.fail(f"{' '.join(command)} ended with {process.returncode}")
    return Measured(out, time.monotonic() - begin, usage.ru_utime + usage.ru_stime, peak / 1024)


def memory(args):
    """Partitions of records of 1 MiB each: peak memory of `archive --once`."""
    topic, archive, each = f"test-{e2e.RUN}-large-dlq", e2e.archive_url("memory"), 4
    config = {"max.message.bytes": str(2 * MIB), "retention.ms": "-1", "segment.bytes": str(16 * MIB)}
    ADMIN.create_topics([confluent_kafka.admin.NewTopic(topic, args.partitions, 1, config=config)])[topic].result()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": e2e.BROKERS, "message.max.bytes": 2 * MIB, "queue.buffering.max.kbytes": 64 * 1024, "topic.metadata.refresh.interval.ms": 5000}
    )
    noise = random.Random(1).randbytes(MIB)
    for n in range(args.partitions * each):
        while True:
            try:
                producer.produce(topic, n.to_bytes(8, "big") + noise[8:], partition=n % args.partitions)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(300):
        e2e.fail("not all was produced")
    small = f"test-{e2e.RUN}-small-dlq"
    e2e.run(e2e.PRODUCE, e2e.BROKERS, small, "1", "10")
    small = measured(e2e.archive_command(small, e2e.archive_url("memory-small"), "--memory", args.memory))
    large = measured(e2e.archive_command(topic, archive, "--memory", args.memory, "-o", "json"))
    out = json.loads(large.out)
    if out["records"] != args.partitions * each:
        e2e.fail(f"{out['records']} of {args.partitions * each} records")
    print(
        f"{args.partitions} partitions, {args.partitions * each} records of 1 MiB, --memory {args.memory}: peak {large.peak_mib:.0f} MiB "
        f"(10 small records: {small.peak_mib:.0f} MiB), {large.seconds:.1f} s, {out['cuts']} cuts, {out['objects']} objects"
    )


def counter(archive):
    """A counting proxy in front of the store, and the flags that lead through it."""
    host, port = os.environ["AWS_ENDPOINT_URL"].split("://")[1].split(":")
    counter = proxy.Counter(host, int(port), archive)
    return counter, ["--endpoint-url", f"http://127.0.0.1:{counter.port}"]


def old_ledger(args):
    """One partition with many cuts on S3: how a start, a list, a summary and a restore's plan do, and their requests."""
    topic, archive = f"test-{e2e.RUN}-old-dlq", e2e.archive_url("old")
    e2e.run(e2e.PRODUCE, e2e.BROKERS, topic, "1", str(args.cuts))
    counted, through = counter(archive)
    wrote = measured(e2e.archive_command(topic, archive, "--cut-records", "1", *through))
    counts, _ = counted.taken()
    print(f"{args.cuts} cuts of one record written in {wrote.seconds:.0f} s, requests: {counts}, {sum(counts.values()) / args.cuts:.2f} a cut")
    for name, command in [
        ("archive --once", e2e.archive_command(topic, archive, *through)),
        ("list --newest 20", [e2e.BIN, "list", "--archive", archive, "--newest", "20", "-o", "jsonl", *through]),
        ("summary", [e2e.BIN, "summary", "--archive", archive, "-o", "json", *through]),
        ("restore --dry-run of one record", [e2e.BIN, "restore", "--brokers", e2e.BROKERS, "--archive", archive, "--dry-run", "--record-id", f"{topic}/0/{args.cuts // 2}", "--to", topic, "--allow-dead-letter-target", "-o", "json", *through]),
        ("verify --quick", [e2e.BIN, "verify", "--quick", "--archive", archive, "-o", "json", *through]),
    ]:
        done = measured(command)
        print(f"{name}: {done.seconds:.1f} s, peak {done.peak_mib:.0f} MiB, requests {counted.taken()[0]}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["memory", "old_ledger"])
    parser.add_argument("--partitions", type=at_least_1, default=500)
    parser.add_argument("--cuts", type=at_least_1, default=50_000)
    parser.add_argument("--memory", default="256MiB")
    args = parser.parse_args()
    with cleaning():
        globals()[args.what](args)


if __name__ == "__main__":
    sys.exit(main())
