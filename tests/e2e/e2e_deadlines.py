"""Deadlines on real Kafka: what is near expiry is archived early and read first, and a forecast says what will be lost.

usage: e2e_deadlines.py [--only NAME,...]

Wants what e2e.py wants, and a broker that looks for expired segments each second, as that of localstack does. The last
scenario takes five minutes, and is run only when it is named.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import confluent_kafka
import confluent_kafka.admin
import e2e

HOUR = 3_600_000


def create(name, partitions=1, **config):
    topic = f"test-{e2e.RUN}-{name}"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": e2e.BROKERS})
    config = {key.replace("_", "."): str(value) for key, value in config.items()}
    admin.create_topics([confluent_kafka.admin.NewTopic(topic, partitions, 1, config=config)])[topic].result()
    return topic


def alter(topic, **config):
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": e2e.BROKERS})
    change = lambda key, value: confluent_kafka.admin.ConfigEntry(
        key.replace("_", "."), str(value), incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET
    )
    resource = confluent_kafka.admin.ConfigResource(
        confluent_kafka.admin.ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[change(key, value) for key, value in config.items()],
    )
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def watermarks(topic, partition=0):
    consumer = confluent_kafka.Consumer({"bootstrap.servers": e2e.BROKERS, "group.id": "deadlines"})
    both = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, partition), timeout=10)
    consumer.close()
    return both


class Archiver:
    """A process that runs on, and its log."""

    def __init__(self, *command):
        self.lines = []
        self.process = subprocess.Popen(
            [e2e.BIN, "archive", "--brokers", e2e.BROKERS, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        e2e.STARTED.append(self.process)
        # A daemon: what fails ends the script, whatever still runs.
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            self.lines.append((time.time(), line.rstrip()))

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        out = self.process.stdout.read()
        self.process.wait()
        self.reader.join()
        return json.loads(out)

    def having(self, text):
        return [(at, line) for at, line in self.lines if text in line]


def expires_before_the_cut():
    """Retention 60 s, cuts after 15 minutes: nothing is lost, as cuts come at half of the retention."""
    topic = create("short-dlq", 2, retention_ms=60_000, segment_ms=5000)
    archiver = Archiver("--topic", topic, "--archive", e2e.archive_url("short"), "-o", "json")
    producer = confluent_kafka.Producer({"bootstrap.servers": e2e.BROKERS, "linger.ms": 5})
    begin, n = time.time(), 0
    while time.time() - begin < 85:
        producer.produce(topic, f"{n}", partition=n % 2)
        n += 1
        producer.poll(0)
        time.sleep(0.01)
    producer.flush()
    starts = [watermarks(topic, p)[0] for p in range(2)]
    out = archiver.stop()
    if min(starts) == 0:
        e2e.fail(f"Kafka deleted nothing in {time.time() - begin:.0f} s: this proves nothing")
    if (out["records"], out["lost"]) != (n, 0):
        e2e.fail(f"of {n} records {out['records']} were archived, {out['lost']} lost\n" + "\n".join(l for _, l in archiver.lines))
    e2e.say(f"retention 60 s: {n} records, {sum(starts)} of them deleted by Kafka meanwhile, all archived in {out['cuts']} cuts")


def past_retention_on_arrival():
    """Timestamps of nine days ago in a topic that keeps an hour: a running archiver has them before Kafka looks."""
    topic = create("overdue-dlq", 2, retention_ms=HOUR)
    archiver = Archiver("--topic", topic, "--archive", e2e.archive_url("overdue"), "-o", "json")
    while not archiver.having("reading 2 partitions"):
        time.sleep(0.1)
    producer = confluent_kafka.Producer({"bootstrap.servers": e2e.BROKERS, "linger.ms": 5})
    begin, n, old = time.time(), 0, int((time.time() - 9 * 86400) * 1000)
    while time.time() - begin < 30:
        producer.produce(topic, f"{n}", partition=n % 2, timestamp=old)
        n += 1
        producer.poll(0)
        time.sleep(0.002)
    producer.flush()
    written = time.time()
    while sum(watermarks(topic, p)[0] for p in range(2)) < n and time.time() - written < 30:
        time.sleep(0.5)
    deleted = sum(watermarks(topic, p)[0] for p in range(2))
    out = archiver.stop()
    told = archiver.having("LogAppendTime")
    cuts = archiver.having("INFO archived")
    if not told:
        e2e.fail("the cure was not told\n" + "\n".join(l for _, l in archiver.lines))
    if out["records"] + out["lost"] != n:
        e2e.fail(f"{n} records, {out['records']} archived and {out['lost']} lost")
    # How many depends on the machine: the broker deletes all that is there each second, and a second's delay costs a second.
    if out["records"] < n * 0.5:
        e2e.fail(f"only {out['records']} of {n} records were saved")
    e2e.say(
        f"past retention on arrival: {out['records']} of {n} saved ({out['records'] / n:.2%}), {out['lost']} lost, {deleted} deleted by "
        f"Kafka, {out['cuts']} cuts, the first {cuts[0][0] - begin:.1f} s after the first record; told: {told[0][1][:300]}"
    )


def begun_anew_is_cut_at_once():
    """After a position out of range, what is past retention on arrival was kept open until the next look at the topic."""
    topic = create("anew-dlq", 1, retention_ms=HOUR)
    archiver = Archiver("--topic", topic, "--archive", e2e.archive_url("anew"), "-o", "json")
    producer = confluent_kafka.Producer({"bootstrap.servers": e2e.BROKERS, "linger.ms": 5})
    old = int((time.time() - 9 * 86400) * 1000)

    def produce_until(what, done, timeout):
        end = time.time() + timeout
        while not done():
            if time.time() > end:
                e2e.fail(f"{what}: not within {timeout} s\n" + "\n".join(l for _, l in archiver.lines))
            producer.produce(topic, b"x", timestamp=old)
            producer.flush()
            time.sleep(0.02)

    cuts = lambda: [line for _, line in archiver.having("INFO archived") if "rows=0" not in line]
    produce_until("the first cut", cuts, 90)
    archiver.process.send_signal(signal.SIGSTOP)
    start, begin = watermarks(topic)[0], time.time()
    produce_until("deletion", lambda: time.time() - begin > 3 and watermarks(topic)[0] > start, 60)
    archiver.process.send_signal(signal.SIGCONT)
    gaps = lambda: archiver.having("lost")
    produce_until("the gap", gaps, 60)
    before = len(cuts())
    produce_until("a cut behind the gap", lambda: len(cuts()) > before + 1, 30)
    took = time.time() - gaps()[0][0]
    archiver.stop()
    e2e.say(f"begun anew behind a gap: cut at once, twice within {took:.0f} s")


def quota(client, rate):
    """Bytes a second that this client id may read; None: without limit."""
    change = ["--add-config", f"consumer_byte_rate={rate}"] if rate else ["--delete-config", "consumer_byte_rate"]
    command = ["java", "-cp", os.environ["LOCALSTACK_KAFKA_CLASSPATH"], "org.apache.kafka.tools.ConfigCommand"]
    command += ["--bootstrap-server", e2e.BROKERS, "--alter", "--entity-type", "clients", "--entity-name", client]
    e2e.run(*command, *change)


def backlog_over_deadlines():
    """Four partitions with different deadlines, read slower than they expire: in their order, and lost as was said."""
    each, size, retention, client = 25_000, 4000, 240_000, f"slow-{e2e.RUN}"
    topic = create("late-dlq", 4, retention_ms=-1, segment_bytes=1 << 20)
    # Small batches, as dead letters have them: a fetch brings whole ones.
    settings = {"linger.ms": 20, "batch.size": 65536, "queue.buffering.max.kbytes": 32 << 10}
    producer = confluent_kafka.Producer({"bootstrap.servers": e2e.BROKERS, **settings})
    # Seconds from the start on until the first goes, and until the last does.
    expiry = {0: (220, 225), 1: (100, 105), 2: (180, 185), 3: (140, 145)}
    start = time.time() + 40
    value = os.urandom(size)
    for i in range(each):
        for partition, (first, last) in expiry.items():
            at = start - retention / 1000 + first + (last - first) * i / each
            while True:
                try:
                    producer.produce(topic, i.to_bytes(8, "big") + value, partition=partition, timestamp=int(at * 1000))
                    break
                except BufferError:
                    producer.poll(0.1)
    if producer.flush(60):
        e2e.fail("not all was produced")
    quota(client, 1_000_000)
    alter(topic, retention_ms=retention)
    time.sleep(max(0, start - time.time()))
    archiver = Archiver(
        *["--topic", topic, "--archive", e2e.archive_url("late"), "--once", "-o", "json", "--cut-bytes", "16MiB"],
        *["-X", f"client.id={client}", "-X", "fetch.message.max.bytes=262144", "--listen", "127.0.0.1:19464"],
        *["--log-level", "info,dlq_archiver::archive::lookout=debug"],
    )
    first_loss, forecasts = start + min(first for first, _ in expiry.values()), []
    while archiver.process.poll() is None:
        time.sleep(1)
        try:
            text = urllib.request.urlopen("http://127.0.0.1:19464/metrics", timeout=5).read().decode()
        except OSError:
            continue
        forecast = sum(float(n) for n in re.findall(r"^dlq_archiver_forecast_lost_offsets\S* (\S+)", text, re.M))
        forecasts.append((time.time(), int(forecast)))
    out = archiver.stop()
    quota(client, None)
    for at, line in archiver.lines:
        if "INFO archived" not in line:
            e2e.say(f"{at - start:6.1f} s {line}")
    e2e.say(f"{out['records']} archived, {out['lost']} lost; forecasts: {[(round(at - start), n) for at, n in forecasts[::6]]}")
    order = [int(re.search(r"partition=(\d+)", line).group(1)) for _, line in archiver.having("INFO archived")]
    e2e.say(f"order of cuts by partition: {order}")
    before = [n for at, n in forecasts if at < first_loss]
    off = abs(before[-1] - out["lost"]) / out["lost"]
    e2e.say(f"forecast right before the first loss {before[-1]}, lost {out['lost']}: off by {off:.1%}")
    if off > 0.05 or not archiver.having("forecast_lost="):
        e2e.fail("the forecast was not told, or wrong")
    # A partition comes once for each time that it was the nearest.
    turns = [p for i, p in enumerate(order) if i == 0 or order[i - 1] != p]
    deadlines = sorted(expiry, key=expiry.get)
    if [p for i, p in enumerate(turns) if p not in turns[:i]] != deadlines:
        e2e.fail(f"read in the order {turns}, the deadlines are in the order {deadlines}")


SHORT = [expires_before_the_cut, past_retention_on_arrival, begun_anew_is_cut_at_once]

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only")
    only = parser.parse_args().only
    if only:
        for name in only.split(","):
            {scenario.__name__: scenario for scenario in [*SHORT, backlog_over_deadlines]}[name]()
    else:
        # They wait most of the time.
        runs = [subprocess.Popen([sys.executable, __file__, "--only", scenario.__name__]) for scenario in SHORT]
        if any([run.wait() for run in runs]):
            e2e.fail("see above")
