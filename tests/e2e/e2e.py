"""End to end on real Kafka and real S3, with the real binary: archive, compare every record, crash, query.

usage: e2e.py [--records N] [--only NAME,...] [--seed N]

Wants DLQ_ARCHIVER_BROKERS, LOCALSTACK_BUCKET and the AWS variables (`source localstack/.run/env`), DLQ_ARCHIVER_BIN and
PRODUCE_BIN (the example). Ends with 1 at the first thing that is wrong.
"""

import argparse
import atexit
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid

import archive_sql
import confluent_kafka
import confluent_kafka.admin
import proxy

os.environ["DLQ_ARCHIVER_LOG_FORMAT"] = "text"  # of the program: its lines are looked for
BROKERS = os.environ["DLQ_ARCHIVER_BROKERS"]
BUCKET = os.environ["LOCALSTACK_BUCKET"]
BIN = os.environ["DLQ_ARCHIVER_BIN"]
PRODUCE = os.environ["PRODUCE_BIN"]
HERE = os.path.dirname(os.path.abspath(__file__))
RUN = uuid.uuid4().hex[:8]


def say(text):
    print(f"e2e: {text}", flush=True)


def fail(text):
    sys.exit(f"e2e: FAILED: {text}")


def run(*command, expect=0):
    """Runs a command to its end; its standard output. Standard error is shown if it ends otherwise."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != expect:
        fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


STARTED = []


def start(command):
    """Starts a process that runs on; it does not outlive this one."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    STARTED.append(process)
    return process


@atexit.register
def end_started():
    for process in STARTED:
        if process.poll() is None:
            process.kill()


def archive_command(topic, archive, *more):
    return [BIN, "archive", "--once", "--brokers", BROKERS, "--topic", topic, "--archive", archive, "--quiet", *more]


def compare(topic, archive, expect, format="parquet"):
    out = run(
        sys.executable, f"{HERE}/compare.py", BROKERS, archive, topic, "--expect", str(expect), "--format", format
    )
    say(f"{archive}: {out.strip()}")


def archive_url(name):
    return f"s3://{BUCKET}/e2e-{RUN}/{name}"


def produce(name, partitions, count, *more):
    topic = f"test-{RUN}-{name}"  # a name that the layout need not escape
    run(PRODUCE, BROKERS, topic, str(partitions), str(count), *more)
    return topic


def archives_everything(args):
    """A plain glob finds every record once, each equal to what a plain consumer reads."""
    topic = produce("vast-dlq", 8, args.records)
    begin = time.monotonic()
    out = json.loads(run(*archive_command(topic, archive_url("plain"), "-o", "json")))
    took = time.monotonic() - begin
    say(f"archived {out['records']} records in {took:.1f} s: {out['cuts']} cuts, {out['objects']} objects")
    compare(topic, archive_url("plain"), args.records)
    again = json.loads(run(*archive_command(topic, archive_url("plain"), "-o", "json")))
    if again["records"] != 0:
        fail(f"a second run archived {again['records']} records again")
    return topic


def transactions(args):
    """Aborted records are not there, and the checkpoint reaches the log end behind the last marker."""
    count = max(3000, args.records // 20)
    topic = produce("txn-dlq", 3, count, "--transactions")
    run(*archive_command(topic, archive_url("txn")))
    compare(topic, archive_url("txn"), count)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": BROKERS, "group.id": "e2e"})
    for partition in range(3):
        _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, partition))
        checkpoint = max(m["to"] for m in manifests("txn", topic, partition))
        if checkpoint != end:
            fail(f"partition {partition}: the checkpoint is {checkpoint}, the log end {end}")
    consumer.close()
    say("transactions: every checkpoint is at its log end")


def manifests(name, topic, partition):
    """The manifests of a partition, as JSON, read through DuckDB."""
    db = archive_sql.connect()
    folder = f"{archive_url(name)}/ledger/{topic}/{partition}"
    texts = db.execute(f"SELECT content FROM read_text('{folder}/*.json') WHERE filename NOT SIMILAR TO '.*(intent|genesis).json'")
    return [json.loads(text) for (text,) in texts.fetchall()]


def jsonl_equals_parquet(args):
    """The same topic as JSON lines has the same rows in the same columns."""
    count = min(args.records, 20_000)
    topic = produce("formats-dlq", 2, count)
    run(*archive_command(topic, archive_url("formats-parquet")))
    db = archive_sql.connect()
    for compression in ("gzip", "zstd", "none"):
        name = f"formats-{compression}"
        run(*archive_command(topic, archive_url(name), "--format", "jsonl", "--compression", compression))
        columns = []
        for column in archive_sql.ORDER:
            if column == "archived_at":
                continue
            columns.append(f"encode({column}::VARCHAR)" if column == "kafka_headers" else column)
        raw = ", ".join(c for c in columns if not c.endswith("_bytes"))
        parquet = f"SELECT {raw} FROM {archive_sql.rows(archive_url('formats-parquet'))}"
        jsonl = f"SELECT {raw} FROM {archive_sql.rows(archive_url(name), 'jsonl')}"
        (differ,) = db.execute(f"SELECT count(*) FROM (({parquet} EXCEPT ALL {jsonl}) UNION ALL ({jsonl} EXCEPT ALL {parquet}))").fetchone()
        (rows,) = db.execute(f"SELECT count(*) FROM ({jsonl})").fetchone()
        if differ or rows != count:
            fail(f"JSONL ({compression}) has {rows} rows of {count}, {differ} of them differ from Parquet")
    compare(topic, archive_url("formats-gzip"), count, "jsonl")
    say(f"JSONL (gzip, zstd, none) and Parquet have the same {count} rows in all columns")


def killed(args):
    """kill -9 at random moments, then a last run: nothing lost, nothing twice."""
    topic = produce("kill-dlq", 8, args.records)
    archive = archive_url("kill")
    # Small cuts, so that every kill finds some in every state.
    command = archive_command(topic, archive, "--cut-records", str(max(500, args.records // 100)))
    chance = random.Random(args.seed)
    say(f"killing with seed {args.seed}")
    kills = 0
    while kills < args.kills:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.4 + chance.random() * args.records / 400_000)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    out = json.loads(run(*command, "-o", "json"))
    say(f"killed {kills} times; the last run archived {out['records']} of {args.records}")
    if kills < min(3, args.kills):
        fail(f"the archive was complete after {kills} kills: more --records are needed")
    compare(topic, archive, args.records)


def wait_until(what, seconds, condition, pause=0.5):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            fail(f"not within {seconds} s: {what}")
        time.sleep(pause)
    return value


def archived_rows(archive):
    """Rows that manifests vouch for."""
    out = subprocess.run([BIN, "summary", "--archive", archive, "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(out.stdout)["records"] if out.returncode == 0 else 0


def members(group):
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": BROKERS})
    return sorted(m.member_id for m in admin.describe_consumer_groups([group])[group].result().members)


def follows(args):
    """In a group: two archivers share a topic, one is stopped, the other goes on; SIGTERM archives what was read."""
    count = 6000
    topic = f"test-{RUN}-follow-dlq"
    run(PRODUCE, BROKERS, topic, "4", str(count))
    archive, group = archive_url("follow"), f"g-{RUN}"
    command = archive_command(topic, archive, "--group", group, "--cut-age", "2s")
    command.remove("--once")
    first, second = start(command), start(command)
    wait_until("two members in the group", 60, lambda: len(members(group)) == 2)
    wait_until(f"{count} rows", 120, lambda: archived_rows(archive) == count)
    begin = time.monotonic()
    first.terminate()
    if first.wait(30) != 0:
        fail(f"SIGTERM ended it with {first.returncode}")
    say(f"SIGTERM to exit: {time.monotonic() - begin:.1f} s")
    wait_until("one member left", 30, lambda: len(members(group)) == 1)
    # What comes after the last cut is archived by the shutdown, long before its age.
    second.terminate()
    second.wait(30)
    wait_until("an empty group", 30, lambda: not members(group))
    command = archive_command(topic, archive, "--group", group)
    command.remove("--once")
    run(PRODUCE, BROKERS, topic, "4", "500", "--append")
    third = start(command)
    time.sleep(8)
    third.terminate()
    if third.wait(30) != 0:
        fail(f"SIGTERM ended it with {third.returncode}")
    compare(topic, archive, count + 500)


def rebalances(args):
    """Members come and go while a backlog is read and open batches are dropped: nobody reads past what nobody has seen."""
    count = 20_000
    topic, archive, group = produce("rebalance-dlq", 8, count), archive_url("rebalance"), f"rebalance-{RUN}"
    command = archive_command(topic, archive, "--group", group, "--cut-age", "4s")
    command.remove("--once")
    command += ["-X", "session.timeout.ms=6000"]  # the brokers wait so long for who was killed
    members_now = []
    for _ in range(4):
        members_now.append(start(command))
        time.sleep(2.5)  # less than a cut's age: batches are open
        if len(members_now) == 3:
            members_now.pop(0).send_signal(signal.SIGKILL)
    wait_until(f"{count} rows", 90, lambda: archived_rows(archive) == count)
    for member in members_now:
        member.terminate()
    for member in members_now:
        if member.wait(30) != 0:
            fail(f"SIGTERM ended it with {member.returncode}")
    compare(topic, archive, count)


def slow_store(args):
    """The store stalls for longer than max.poll.interval.ms and the session: the archiver stays in its group."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    host, port = endpoint.split("://")[1].split(":")
    through = proxy.Proxy(host, int(port))
    topic, count = f"test-{RUN}-slow-dlq", 5000
    run(PRODUCE, BROKERS, topic, "2", "100")
    archive, group = archive_url("slow"), f"slow-{RUN}"
    command = archive_command(topic, archive, "--group", group, "--cut-age", "1s")
    command.remove("--once")
    command += ["--endpoint-url", f"http://127.0.0.1:{through.port}"]
    command += ["-X", "session.timeout.ms=6000", "-X", "max.poll.interval.ms=6500", "--memory", "8MiB"]
    process = start(command)
    wait_until("100 rows", 60, lambda: archived_rows(archive) == 100)
    (member,) = members(group)
    through.stall()
    run(PRODUCE, BROKERS, topic, "2", str(count), "--append")
    for _ in range(25):
        time.sleep(1)
        if members(group) != [member]:
            fail("it lost its place in the group")
    through.flow()
    wait_until(f"{count + 100} rows", 120, lambda: archived_rows(archive) == count + 100)
    if members(group) != [member]:
        fail("it lost its place in the group")
    process.terminate()
    process.wait(30)
    compare(topic, archive, count + 100)


def once_while_producing(args):
    """`--once` again and again while records keep coming: what came behind its end is left for the next run, not lost."""
    count, topic, archive = 60_000, f"test-{RUN}-once-dlq", archive_url("once")
    create_topic(topic, 4)
    producer = subprocess.Popen([PRODUCE, BROKERS, topic, "4", str(count), "--append", "--slowly"])
    runs, behind = 0, 0
    while True:
        done = producer.poll() is not None
        begin = log_size(topic)
        run(*archive_command(topic, archive))
        runs, behind = runs + 1, behind + (log_size(topic) > begin)
        if done:
            break
    if producer.returncode != 0 or behind < 2:
        fail(f"the producer ended with {producer.returncode}; records came during {behind} runs only")
    say(f"{runs} runs, records came during {behind} of them")
    compare(topic, archive, count)


def restores(args):
    """`restore --error-code 503` by transaction, killed half-way and run again: each record once, byte for byte."""
    topic = produce("restore-dlq", 8, args.records)
    archive, target = archive_url("restore"), f"test-{RUN}-restored"
    run(*archive_command(topic, archive))
    db = archive_sql.connect()
    rows = db.execute(
        f"""SELECT event_id, kafka_timestamp_ms, coalesce(encode(kafka_key_text), kafka_key_bytes),
                   coalesce(encode(kafka_value_text), kafka_value_bytes), list_transform(kafka_headers, h -> h.name),
                   list_transform(kafka_headers, h -> coalesce(encode(h.value_text), h.value_bytes))
            FROM {archive_sql.rows(archive)} WHERE error_code = 503"""
    ).fetchall()
    expected = {}
    for event_id, timestamp, key, value, names, values in rows:
        headers = [(n, v) for n, v in zip(names, values) if not n.startswith("ce_knativeerror")]
        expected[event_id] = (timestamp, key, value, headers)
    create_topic(target, 8)
    command = [BIN, "restore", "--archive", archive, "--brokers", BROKERS, "--error-code", "503", "--to", target, "--no-restore-headers", "--yes"]
    command += ["--delivery", "transactional", "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until("a third of the records", 120, lambda: log_size(target) > len(expected) // 3, pause=0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    say(f"killed with {log_size(target)} of {len(expected)} records in the log")
    run(*command)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": BROKERS, "group.id": "e2e", "isolation.level": "read_committed", "enable.partition.eof": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(target, p, 0) for p in range(8)])
    ended, seen = 0, 0
    while ended < 8:
        for message in consumer.consume(5000, 1.0):
            if message.error():
                ended += 1
                continue
            seen += 1
            headers = message.headers()
            event_id = dict(headers)["ce_id"].decode()
            theirs = (message.timestamp()[1], message.key(), message.value(), headers)
            ours = expected.pop(event_id, None)
            if ours != theirs:
                fail(f"event {event_id}: restored {theirs}, archived {ours} (None: twice, or not asked for)")
    consumer.close()
    if expected:
        fail(f"{len(expected)} records were not restored")
    again = json.loads(run(*command, "-o", "json"))
    if again["to_restore"] != 0:
        fail(f"a third run would restore again: {again}")
    say(f"{seen} records restored once, byte for byte but for ce_knativeerror*")


def create_topic(name, partitions):
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": BROKERS})
    new = confluent_kafka.admin.NewTopic(name, partitions, 1, config={"retention.ms": "-1"})
    admin.create_topics([new])[name].result()


def log_size(topic):
    """Offsets in a topic, open and aborted transactions included."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": BROKERS, "group.id": "e2e", "isolation.level": "read_uncommitted"}
    )
    parts = consumer.list_topics(topic, 10).topics[topic].partitions
    try:
        return sum(consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, p))[1] for p in parts)
    except confluent_kafka.KafkaException:
        return 0  # a topic that was made a moment ago has no leader yet
    finally:
        consumer.close()


TESTS = [archives_everything, once_while_producing, transactions, jsonl_equals_parquet, killed, follows, rebalances, slow_store, restores]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    chosen = [t for t in TESTS if not args.only or t.__name__ in args.only.split(",")]
    if not chosen:
        sys.exit(f"--only takes {', '.join(t.__name__ for t in TESTS)}")
    for test in chosen:
        begin = time.monotonic()
        say(f"{test.__name__}: {test.__doc__}")
        test(args)
        say(f"{test.__name__}: passed in {time.monotonic() - begin:.0f} s")
    print(f"{len(chosen)} passed, 0 failed")


if __name__ == "__main__":
    main()
