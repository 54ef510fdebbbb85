"""Real programs dead-letter into a real Kafka; dlq-archiver archives it; each column must be what the program failed on.

usage: run.py [--capture FOLDER] [NAME...]

A producer is a folder with expected.toml: how it is started, the records that it gets, the dead letters that must come of
them (README.md has the format). Wants what run.sh sets: DLQ_ARCHIVER_BIN, the variables of localstack's env, a Kafka that
has none of the topics. Ends with 1 if anything is otherwise.
"""

import argparse
import base64
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import archive_sql
import confluent_kafka as kafka
import expect
from confluent_kafka import admin

BIN = os.environ["DLQ_ARCHIVER_BIN"]
BROKERS = os.environ["DLQ_ARCHIVER_BROKERS"]
BUILD = Path(os.environ["PRODUCERS_BUILD"])
TABLES = HERE.parent.parent / "schemas/dialects"
PATIENCE = 120  # seconds for a program to dead-letter what it should


def say(text):
    print(f"producers: {text}", flush=True)


class Failed(Exception):
    pass


def of_position(records):
    """Records by topic, partition and offset: `orders/0/2`."""
    counts, out = {}, {}
    for i, record in enumerate(records):
        at = f"{record['topic']}/{record.get('partition', 0)}"
        out[f"{at}/{counts.get(at, 0)}"] = expect.Source(record, i)
        counts[at] = counts.get(at, 0) + 1
    return out


def create_topics(topics):
    """Whatever their records' time, they stay."""
    keep = {"retention.ms": "-1"}
    new = [admin.NewTopic(t["name"], t.get("partitions", 1), 1, config=keep | t.get("config", {})) for t in topics]
    client = admin.AdminClient({"bootstrap.servers": BROKERS, "log_level": 4})  # its answers end with it
    for done in client.create_topics(new).values():
        done.result()


def produce(sources):
    producer = kafka.Producer({"bootstrap.servers": BROKERS, "acks": "all"})
    for position, source in sources.items():
        producer.produce(
            source.topic, source.value, source.key, source.partition, headers=source.headers, timestamp=source.timestamp
        )
        if producer.flush(30):
            raise Failed(f"the source record {position} was not taken")


def consume(topic, partitions):
    """All records of a topic, by a plain consumer."""
    consumer = kafka.Consumer({"bootstrap.servers": BROKERS, "group.id": "producers-check", "enable.auto.commit": False})
    out = []
    try:
        for partition in partitions:
            at = kafka.TopicPartition(topic, partition, 0)
            _, end = consumer.get_watermark_offsets(at, 10)
            consumer.assign([at])
            for _ in range(end):  # no transactions here: each offset is a record
                message = consumer.poll(10)
                if message is None or message.error():
                    raise Failed(f"{topic}/{partition} could not be read: {message and message.error()}")
                out.append(message)
    finally:
        consumer.close()
    return out


def log_end(consumer, topic, partition):
    try:
        return consumer.get_watermark_offsets(kafka.TopicPartition(topic, partition), 10)[1]
    except kafka.KafkaException:  # a topic this new may have no leader yet
        return 0


def wait_for(wanted, process):
    """Until each partition has as many dead letters as are expected."""
    consumer = kafka.Consumer({"bootstrap.servers": BROKERS, "group.id": "producers-check"})
    end = time.monotonic() + PATIENCE
    try:
        while True:
            have = {at: log_end(consumer, *at) for at in wanted}
            if all(have[at] >= count for at, count in wanted.items()):
                return
            if process.poll() is not None:
                raise Failed(f"the program ended with {process.returncode}")
            if time.monotonic() > end:
                raise Failed(f"after {PATIENCE} s there are {have}, not {wanted}")
            time.sleep(0.1)
    finally:
        consumer.close()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(name, program, folder):
    """Starts a producer's program; its files and its command have places for what is known only now."""
    places = {
        "BROKERS": BROKERS,
        "DIR": str(folder),
        "PORT": str(free_port()),
        "BUILD": str(BUILD / name),
        "KAFKA": os.environ["LOCALSTACK_KAFKA_CLASSPATH"],
        "LOG4J": str(HERE.parent.parent / "localstack/kafka/log4j2.properties"),
    }

    def fill(text):
        for place, value in places.items():
            text = text.replace(f"@{place}@", value)
        return text

    for file in program.get("files", []):
        (folder / file).write_text(fill((HERE / name / file).read_text()))
    with open(folder / "log", "w") as log:
        command = [fill(word) for word in program["command"]]
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder)


def stop(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def archive(name, topics):
    url = f"s3://{os.environ['LOCALSTACK_BUCKET']}/producers/{name}"
    flags = [flag for topic in topics for flag in ("--topic", topic)]
    command = [BIN, "archive", "--once", "--quiet", "--brokers", BROKERS, "--archive", url, *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    times = {c for c, type in archive_sql.COLUMNS.items() if type == "TIMESTAMPTZ"}
    columns = [f"epoch_us({c})" if c in times else c for c in archive_sql.ORDER]
    cursor = archive_sql.connect().execute(f"SELECT {', '.join(columns)} FROM {archive_sql.rows(url)}")
    return [dict(zip(archive_sql.ORDER, row)) for row in cursor.fetchall()]


def capture(file, messages):
    """In the format of tests/golden/fixtures."""

    def b64(data):
        return None if data is None else base64.b64encode(data).decode()

    with open(file, "w") as out:
        for m in messages:
            kind, timestamp = m.timestamp()
            line = {
                "topic": m.topic(), "partition": m.partition(), "offset": m.offset(), "timestamp": timestamp,
                "timestamp_type": {1: "CreateTime", 2: "LogAppendTime"}[kind], "key": b64(m.key()), "value": b64(m.value()),
                "headers": [[name, b64(value)] for name, value in m.headers() or []],
            }  # fmt: skip
            out.write(json.dumps(line, separators=(",", ":")) + "\n")


def check(name, into):
    """One producer, from its topics to its columns; what it comes to, in a line."""
    begin = time.monotonic()
    wanted = tomllib.loads((HERE / name / "expected.toml").read_text())
    say(f"{name} ...")
    sources = of_position(wanted["source"])
    records = {r["id"]: expect.merged(wanted["common"], r, sources, wanted.get("headers", {})) for r in wanted["record"]}
    partitions = {}
    for record in records:
        topic, partition, _ = record.rsplit("/", 2)
        partitions[topic, int(partition)] = partitions.get((topic, int(partition)), 0) + 1
    topics = sorted({topic for topic, _ in partitions})

    with tempfile.TemporaryDirectory(prefix="dlq-archiver-producer.") as folder:
        create_topics(wanted["topic"])
        produce(sources)
        process = start(name, wanted["program"], Path(folder))
        try:
            wait_for(partitions, process)
        except Failed as e:
            raise Failed(f"{e}\nthe end of its log:\n{(Path(folder) / 'log').read_text()[-6000:]}") from None
        finally:
            stop(process)

    messages = [m for topic in topics for m in consume(topic, range(max(p for t, p in partitions if t == topic) + 1))]
    if into:
        capture(Path(into) / f"{name}.jsonl", messages)
    rows = {row["record_id"]: row for row in archive(name, topics)}
    dialects = sorted({r["dialect"] for r in records.values()})
    missing = [d for d in dialects if d != "unknown" and not (TABLES / f"{d}.toml").exists()]
    wrong = [f"{id}: not in the archive" for id in records if id not in rows]
    wrong += [f"{id}: an unexpected dead letter" for id in rows if id not in records]
    wrong += expect.headers_as_consumed(messages, rows)
    for id in records.keys() & rows.keys():
        wrong += expect.differences(records[id], rows, sources, decoded=records[id]["dialect"] not in missing)
    if wrong:
        raise Failed("\n  ".join(["not as expected:", *sorted(wrong)]))
    took = f"{len(records)} dead letters as expected, in {time.monotonic() - begin:.0f} s"
    if missing:
        took += f"; decoded columns NOT CHECKED: there is no {', '.join(missing)}.toml in schemas/dialects"
    return took


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--capture", metavar="FOLDER", help="write each producer's dead letters there, as golden fixtures")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    known = sorted(f.parent.name for f in HERE.glob("*/expected.toml"))
    unknown = set(args.names) - set(known)
    if unknown:
        sys.exit(f"producers: there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    failed = []
    for name in args.names or known:
        try:
            say(f"{name}: {check(name, args.capture)}")
        except (Failed, kafka.KafkaException) as e:
            say(f"{name}: FAILED: {e}")
            failed.append(name)
    if failed:
        sys.exit(f"producers: FAILED: {', '.join(failed)}")


if __name__ == "__main__":
    main()
