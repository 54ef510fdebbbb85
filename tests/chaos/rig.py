"""What every scenario is made of: a topic that grows all the time, archivers whose log is read as it comes, services
that are stopped and started, and the comparison at the end."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))

import confluent_kafka  # noqa: E402
import confluent_kafka.admin  # noqa: E402
import e2e  # noqa: E402

S3 = os.environ["AWS_ENDPOINT_URL"]
SERVICES = os.environ["LOCALSTACK_DIR"]  # its own: brokers are stopped here
LOGS = tempfile.mkdtemp(prefix="dlq-archiver-chaos-logs-")
PARTITIONS = 3
QUIET = {"log_level": 0}  # librdkafka of the test itself: brokers that go away are no news here
CUT = ("--cut-age", "2s", "--cut-records", "300")


class Failed(Exception):
    pass


def check(condition, text):
    if not condition:
        raise Failed(text)


def wait_until(what, seconds, condition, pause=0.5):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        check(time.monotonic() < deadline, f"not within {seconds} s: {what}")
        time.sleep(pause)
    return value


def topic_name(name):
    return f"chaos-{e2e.RUN}-{name}"  # a name that the layout need not escape


def archive_url(name):
    return f"s3://{e2e.BUCKET}/chaos-{e2e.RUN}/{name}"


def archive_name(archive):
    return archive.rstrip("/").rsplit("/", 1)[1]


class Flow:
    """Produces at a steady rate until told to stop, like VAST: a value of 0.5 KB, some headers, two functions."""

    def __init__(self, topic, rate=300, create=True):
        self.topic = topic
        self.rate = rate
        self.acked = 0
        self.refused = 0
        self.ended = threading.Event()
        if create:
            e2e.create_topic(topic, PARTITIONS)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        wait_until("records are acknowledged", 30, lambda: self.acked, 0.1)

    def _run(self):
        # No idempotence: after a broker's restart there may be records twice in the topic. The archive has what the topic has.
        producer = confluent_kafka.Producer({"bootstrap.servers": e2e.BROKERS, "linger.ms": 5, **QUIET})
        begin, n = time.monotonic(), 0
        while not self.ended.wait(0.05):
            while n < (time.monotonic() - begin) * self.rate:
                self._send(producer, n)
                n += 1
            producer.poll(0)
        producer.flush()

    def _send(self, producer, n):
        headers = [
            ("ce_specversion", b"1.0"),
            ("ce_id", str(n).encode()),
            ("ce_knativeerrorcode", str(500 + n % 4).encode()),
            ("ce_knativeerrordest", f"http://function-{n % 2:02}-nbdpm6d3aaaaa.dataengine.svc.cluster.local".encode()),
            ("empty", b""),
            ("null", None),
        ]
        value = None if n % 50 == 0 else (f"{n:08}" * 64).encode()
        key = None if n % 3 == 0 else f"key-{n}".encode()
        while True:
            try:
                producer.produce(self.topic, value, key, n % PARTITIONS, self._acked, headers=headers)
                return
            except BufferError:
                producer.poll(0.1)

    def _acked(self, error, _):
        if error:
            self.refused += 1
        else:
            self.acked += 1

    def stop(self):
        self.ended.set()
        self.thread.join(120)
        check(not self.thread.is_alive(), "the producer did not get rid of its records")
        return self.acked


class Archiver:
    """A process of the program under test, and its log with the time at which each line came."""

    def __init__(self, topic, archive, *more, endpoint=S3, once=False, cut=CUT, brokers=e2e.BROKERS):
        topics = [topic] if isinstance(topic, str) else topic
        command = [e2e.BIN, "archive", "--brokers", brokers, "--archive", archive, "--endpoint-url", endpoint]
        for name in topics:
            command += ["--topic", name]
        command += ["--once"] if once else []
        self.archive = archive
        self.lines = []
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [*command, *cut, *more], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        e2e.STARTED.append(self.process)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        with open(f"{LOGS}/{archive_name(self.archive)}-{self.process.pid}.log", "w") as log:
            for line in self.process.stderr:
                self.lines.append((time.monotonic(), line.rstrip("\n")))
                log.write(line)
                log.flush()

    def alive(self):
        return self.process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.reader.join(10)

    def wait(self, seconds):
        """The exit code."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"it did not end within {seconds} s. Its last lines:\n{self.tail()}")
        self.reader.join(10)
        return code

    def terminate(self, seconds=40):
        if self.alive():
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def trouble(self, since=0.0):
        """Warnings and errors, without their time stamp."""
        return [text.split(" ", 1)[1].strip() for at, text in list(self.lines) if at >= since and (" WARN " in text or "ERROR " in text)]

    def first_trouble(self, since=0.0):
        return next(iter(self.trouble(since)), "(nothing)")

    def told_after(self, since):
        """Seconds until it said that something is wrong."""
        return next((at - since for at, text in list(self.lines) if at >= since and (" WARN " in text or "ERROR " in text)), None)

    def said(self, text, since=0.0):
        return [line for at, line in list(self.lines) if at >= since and text in line]

    def cuts(self, since=0.0):
        """When each partition's first cut after `since` was done."""
        first = {}
        for at, line in list(self.lines):
            if at >= since and " archived topic=" in line:
                partition = line.split(" archived ")[1].split(" from=")[0]
                first.setdefault(partition, at)
        return first

    def settled(self, seconds=60):
        """Waits until it has archived from every partition."""
        try:
            wait_until("all partitions have a cut", seconds, lambda: len(self.cuts()) == PARTITIONS or not self.alive())
            check(self.alive(), f"it ended with {self.process.returncode}")
        except Failed as error:
            raise Failed(f"{error}. Its last lines:\n{self.tail()}") from None

    def tail(self):
        return "\n".join(line for _, line in self.lines[-12:])


def members(group):
    """Members of a group, or None while the brokers do not answer."""
    try:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": e2e.BROKERS, **QUIET})
        described = admin.describe_consumer_groups([group], request_timeout=5)[group].result(10)
        return sorted(m.member_id for m in described.members)
    except Exception:  # noqa: BLE001 - whatever it is, it is no answer
        return None


def watermarks(topic):
    consumer = confluent_kafka.Consumer({"bootstrap.servers": e2e.BROKERS, "group.id": "chaos", **QUIET})
    try:
        return [consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, p), 10) for p in range(PARTITIONS)]
    finally:
        consumer.close()


def all_archived(topic, archive, seconds=150):
    """Waits until the archive has as many rows as the topic has records (no transactions in it)."""
    count = sum(high - low for low, high in watermarks(topic))
    wait_until(f"{count} rows in {archive} (it has {e2e.archived_rows(archive)})", seconds, lambda: e2e.archived_rows(archive) >= count, 1)
    return count


def compare(topic, archive, expect=None):
    """Every record of the topic is in the archive once and the same, and no gap is told of; the count."""
    command = [sys.executable, f"{ROOT}/tests/e2e/compare.py", e2e.BROKERS, archive, topic]
    command += [] if expect is None else ["--expect", str(expect)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check(done.returncode == 0, f"compare: {done.stdout.strip()[-600:]}")
    summary = json.loads(e2e.run(e2e.BIN, "summary", "--archive", archive, "-o", "json"))
    gaps = {kind: summary[f"offsets_{kind}"] for kind in ("lost", "expired", "compacted")}
    check(not any(gaps.values()), f"nothing is missing, but the ledger tells of gaps: {gaps}")
    return int(done.stdout.split()[0])


def localstack(script, *arguments):
    done = subprocess.run([f"{ROOT}/localstack/{script}", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check(done.returncode == 0, f"{script}: {done.stdout[-600:]}")


def service(name):
    """The process id of a service of ours."""
    with open(f"{SERVICES}/{name}.pid") as file:
        return int(file.read().split()[0])


def end_service(name, number=signal.SIGKILL):
    pid = service(name)
    os.kill(pid, number)
    wait_until(f"{name} has ended", 60, lambda: not running(pid), 0.1)


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
