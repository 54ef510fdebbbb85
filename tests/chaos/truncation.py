"""Leader epochs on real brokers: logs that are truncated by an unclean election, and one that only looks like it."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import confluent_kafka
import rig
from cluster import Cluster
from kafka_faults import up
from rig import Archiver, check, e2e

SCENARIOS = {}
# What an archiver must not say of a log that is the ledger's.
OTHER_LOG = ("another leader epoch", "was truncated", "may have been truncated", "--new-generation", "not as it is archived")


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


@scenario
def marker_of_later_epoch(row, args):
    """A transaction is committed after a restart of the broker: its marker has a later leader epoch than its records."""
    topic, archive = rig.topic_name("later-marker"), rig.archive_url("later-marker")
    e2e.run(e2e.PRODUCE, e2e.BROKERS, topic, str(rig.PARTITIONS), "300")
    producer = transactional(e2e.BROKERS, topic)
    producer.begin_transaction()
    for n in range(50):
        producer.produce(topic, f"in the transaction {n}".encode(), partition=0)
    check(producer.flush(30) == 0, "the open transaction's records are not acknowledged")
    marker = log_end(e2e.BROKERS, topic)
    restart()
    producer.commit_transaction(60)
    rig.wait_until("the marker is in the log", 30, lambda: log_end(e2e.BROKERS, topic) == marker + 1)
    records, count = epoch_of(topic, marker - 1), 300 + 50
    check(epoch_of(topic, marker) > records, f"the marker at {marker} is of the leader epoch {records} too")
    row["fired"] = f"records of leader epoch {records}, marker at {marker} of {epoch_of(topic, marker)}"

    def quiet(archiver):
        said = [line for _, line in archiver.lines if any(text in line for text in OTHER_LOG)]
        check(not said, f"it takes the log for another one: {said}")

    took = []
    for _ in range(2):
        archiver = Archiver(topic, archive, once=True)
        code = archiver.wait(40)
        took.append(time.monotonic() - archiver.began)
        check(code == 0, f"`--once` ended with {code}:\n{archiver.tail()}")
        quiet(archiver)
        check(e2e.archived_rows(archive) == count, f"{e2e.archived_rows(archive)} rows, not {count}")
        row["first"] = f"`{archiver.first_trouble()}`"
    check(not archiver.cuts(), f"the second run archived again: {archiver.tail()}")
    check(took[1] < 15, f"the second run took {took[1]:.0f} s")

    archiver = Archiver(topic, archive, "-v")
    rig.wait_until("it reads all partitions", 60, lambda: len(archiver.said("reading from")) >= rig.PARTITIONS)
    time.sleep(5)
    restart()  # its position is behind the marker now, and is validated as the epoch grows again
    begin = time.monotonic()
    e2e.run(e2e.PRODUCE, e2e.BROKERS, topic, str(rig.PARTITIONS), "300", "--append")
    rig.wait_until("it goes on", 60, lambda: e2e.archived_rows(archive) == count + 300)
    row["resumed"] = f"{time.monotonic() - begin:.1f}"
    row["alive"] = "stayed alive" if archiver.alive() else "ended"
    starts = len(archiver.said("reading from"))
    check(archiver.terminate() == 0, archiver.tail())
    quiet(archiver)
    check(starts <= 2 * rig.PARTITIONS, f"{rig.PARTITIONS} partitions were started {starts} times")
    row["records"] = rig.compare(topic, archive, count + 300)
    row["note"] = f"`--once` twice: {took[0]:.1f} s, {took[1]:.1f} s; then following through another restart: {rig.PARTITIONS} partitions were started {starts} times"


def restart():
    """In an orderly way: the leader epochs of all logs grow."""
    rig.end_service("kafka", signal.SIGTERM)
    up()


def epoch_of(topic, offset):
    """Leader epoch of an offset of partition 0, from the broker's own file."""
    path = f"{rig.SERVICES}/kafka/data/{topic}-0/leader-epoch-checkpoint"

    def read():
        with open(path) as file:
            lines = [tuple(map(int, line.split())) for line in file.read().splitlines()[2:]]
        return [epoch for epoch, start in lines if start <= offset]

    return max(rig.wait_until(f"{path} has the epoch of {offset}", 30, read))


def transactional(brokers, name):
    """A producer whose open transaction outlives a restart."""
    settings = {"bootstrap.servers": brokers, "transactional.id": name, "transaction.timeout.ms": 300_000}
    producer = confluent_kafka.Producer({**settings, **rig.QUIET})
    producer.init_transactions(60)
    return producer


def log_end(brokers, topic):
    settings = {"bootstrap.servers": brokers, "group.id": "chaos", "isolation.level": "read_uncommitted"}
    consumer = confluent_kafka.Consumer({**settings, **rig.QUIET})
    try:
        return consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), 30)[1]
    finally:
        consumer.close()


# After 100 records A that both replicas have: what only the dead leader has, and what its successor writes instead, as
# (name, count). `None` are records of a transaction that is aborted; its marker takes one more offset.
SHARED = 100
CASES = {
    "short": ([("B", 50)], []),
    "grown": ([("B", 50)], [("C", 80)]),
    "markers": ([("B", 50)], [(None, 60), ("C", 30)]),
    "mixed": ([("B", 50)], [("C", 20), (None, 40), ("C", 30)]),
    # Nothing that was archived is cut off, but C is where the ledger has passed markers only.
    "passed": ([(None, 50)], [("C", 80)]),
    # Nothing at all was lost: the log goes on.
    "harmless": ([(None, 50)], [(None, 60), ("C", 30)]),
}
# Archivers that run through it, each with an archive of its own, all of one topic that goes on as "grown" does.
FOLLOWERS = {
    "stops": (),
    "goes-on": ("--new-generation",),
    # It has read B, and not archived it, when the leader dies.
    "open-batch": ("--new-generation", "--cut-age", "10m"),
    # It stands still all the time, and wakes up to a log that has grown past its position.
    "frozen": ("--new-generation", "-X", "max.poll.interval.ms=600000", "-X", "session.timeout.ms=600000"),
}


@scenario
def unclean_election(row, args):
    """Records that were archived are cut off by an unclean leader election, and others take their offsets."""
    folder = tempfile.mkdtemp(prefix="dlq-archiver-chaos-archives-")
    try:
        with Cluster("unclean-election") as cluster:
            Truncations(cluster, folder).run(row)
    finally:
        shutil.rmtree(folder)


class Truncations:
    """All cases at once, so that brokers are stopped only once."""

    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.folder = folder
        self.topics = {name: rig.topic_name(f"cut-off-{name}") for name in [*CASES, "followed"]}
        self.written = {name: [] for name in self.topics}
        self.followers = {}
        self.notes = []

    def run(self, row):
        cluster, topics = self.cluster, list(self.topics.values())
        for topic in topics:
            cluster.create_topic(topic, [1, 2], **{"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})
        cluster.in_sync(topics, 1, {1, 2})
        for name in self.topics:
            self.write(name, "A", SHARED)
        self.once("with A", CASES, 0)
        for name, more in FOLLOWERS.items():
            cut = () if "--cut-age" in more else rig.CUT
            self.followers[name] = Archiver(
                self.topics["followed"], self.archive(name), *more, "-v", cut=cut, brokers=cluster.brokers
            )
        cluster.end(2, signal.SIGTERM)
        cluster.in_sync(topics, 1, {1})
        for name, (old, _) in CASES.items():
            self.append(name, old)
        self.write("followed", "B", 50)
        self.once("with B", CASES, 0)
        for name in CASES:
            self.check_rows(name)
        for name in ("stops", "goes-on", "frozen"):
            self.wait_for_rows(name, self.written["followed"])
        before = {name: tree(self.archive(name)) for name in [*CASES, "stops"]}
        ends = {name: log_end(cluster.brokers, topic) for name, topic in self.topics.items()}
        self.followers["frozen"].signal(signal.SIGSTOP)

        begin = time.monotonic()
        cluster.end(1)
        cluster.start(2)
        cluster.in_sync(topics, 2, {2})
        for name, topic in self.topics.items():
            end = log_end(cluster.brokers, topic)
            check(end == SHARED < ends[name], f"{topic} ended at {ends[name]}, and ends at {end} after the election")
        row["fired"] = f"{len(topics)} logs truncated from {', '.join(map(str, sorted(set(ends.values()))))} to {SHARED}"
        for name, (_, new) in CASES.items():
            self.append(name, new)
        self.write("followed", "C", 80)
        self.followers["frozen"].signal(signal.SIGCONT)

        stopped = [name for name in CASES if name != "harmless"]
        runs = self.once("cut off", stopped, 1)
        for name, run in runs.items():
            said = run.said(": stopped: ")[0]
            self.notes.append(f"{name}: `{said.split(': ', 3)[3].split('. ')[0]}`")
            check("its log was truncated" in said and "--new-generation" in said, f"{name}: {said}")
            check(tree(self.archive(name)) == before[name], f"{name}: a run that stopped touched the archive")
        row["first"] = "`" + runs["grown"].said(": stopped: ")[0].split(" ", 1)[1].strip() + "`"
        self.once("cut off", ["harmless"], 0)
        check(self.generations("harmless") == [0], "the log went on, and a new generation was begun")

        self.once("cut off", stopped, 0, "--new-generation")
        for name in CASES:
            self.check_rows(name)
        for name in stopped:
            (_, first) = self.generations(name)
            # Where the log differs from what is archived, or behind aborted records that follow: nothing is in between.
            (_, new) = CASES[name]
            latest = SHARED + (new[0][1] + 1 if new and new[0][0] is None else 0)
            check(SHARED <= first <= latest, f"{name}: the new generation begins at {first}")
            self.notes.append(f"{name}: generation 2 from {first}")
        self.check_followers(begin)

        cluster.start(1)
        cluster.in_sync(topics, 2, {1, 2})
        before = {name: tree(self.archive(name)) for name in CASES}
        self.once("the old leader follows", CASES, 0, "--new-generation")
        cluster.elect_preferred(topics)
        cluster.in_sync(topics, 1, {1, 2})
        self.once("the old leader leads again", CASES, 0, "--new-generation")
        for name in CASES:
            check(tree(self.archive(name)) == before[name], f"{name}: a run with nothing new touched the archive")
        self.end_followers()
        self.verify([*CASES, *FOLLOWERS])
        row["records"] = sum(len(values) for values in self.written.values())
        row["alive"] = "those that go on stayed alive"
        row["note"] = "; ".join(self.notes)

    def archive(self, name):
        return f"file://{self.folder}/{name}"

    def producer(self):
        return confluent_kafka.Producer({"bootstrap.servers": self.cluster.brokers, "acks": "1", **rig.QUIET})

    def write(self, name, what, count):
        """Values that are nowhere else in the topic."""
        begin = len(self.written[name])
        values = [f"{what} {n}" for n in range(begin, begin + count)]
        send(self.producer(), self.topics[name], values)
        self.written[name] += values

    def append(self, name, parts):
        for what, count in parts:
            if what:
                self.write(name, what, count)
            else:
                producer = transactional(self.cluster.brokers, self.topics[name])
                producer.begin_transaction()
                send(producer, self.topics[name], [f"aborted {n}" for n in range(count)])
                marker = log_end(self.cluster.brokers, self.topics[name])
                producer.abort_transaction(60)
                rig.wait_until("the marker is in the log", 30, lambda: log_end(self.cluster.brokers, self.topics[name]) > marker)

    def once(self, when, names, code, *more):
        """`archive --once` for each of these at a time."""
        runs = {
            name: Archiver(self.topics.get(name, self.topics["followed"]), self.archive(name), *more, once=True, brokers=self.cluster.brokers)
            for name in names
        }
        for name, run in runs.items():
            ended = run.wait(120)
            check(ended == code, f"{name}, {when}: `--once {' '.join(more)}` ended with {ended}, not {code}:\n{run.tail()}")
        return runs

    def rows(self, name):
        """Values of an archive, with how often each is there."""
        try:
            source = e2e.archive_sql.rows(self.archive(name))
            found = e2e.archive_sql.connect().execute(f"SELECT kafka_value_text, count(*) FROM {source} GROUP BY 1").fetchall()
        except e2e.archive_sql.duckdb.Error:
            return {}  # there is no file yet
        return dict(found)

    def check_rows(self, name, topic=None):
        rows, written = self.rows(name), self.written[topic or name]
        check(len(written) == len(set(written)), "the scenario wrote a value twice")
        lost = [value for value in written if value not in rows]
        check(not lost, f"{name}: {len(lost)} values are not in the archive: {lost[:5]}")
        double = [value for value, count in rows.items() if count > 1]
        check(not double, f"{name}: {len(double)} values are in the archive twice: {double[:5]}")
        other = [value for value in rows if value not in written]
        check(not other, f"{name}: {len(other)} values are not of the topic: {other[:5]}")

    def wait_for_rows(self, name, values, seconds=90):
        try:
            rig.wait_until(f"{name} has {len(values)} rows", seconds, lambda: len(self.rows(name)) >= len(values), 1)
        except rig.Failed as error:
            have = self.rows(name)
            raise rig.Failed(f"{error}: it has {len(have)}. Its last lines:\n{self.followers[name].tail()}") from None

    def generations(self, name):
        """Where each generation of an archive begins."""
        found = {}
        for path, _, files in os.walk(f"{self.folder}/{name}/ledger"):
            if "genesis.json" in files:
                with open(f"{path}/genesis.json") as file:
                    genesis = json.load(file)
                found[genesis["generation"]] = genesis["first_offset"]
        return [found[number] for number in sorted(found)]

    def check_followers(self, begin):
        for name in ("goes-on", "open-batch", "frozen"):
            archiver = self.followers[name]
            if name == "open-batch":
                # C would wait for its age: what SIGTERM archives is looked at in the end.
                rig.wait_until("the open batch is archived", 90, lambda: len(self.rows(name)) >= SHARED + 50, 1)
                continue
            self.wait_for_rows(name, self.written["followed"])
            self.check_rows(name, "followed")
            check(archiver.alive(), f"{name}: it ended with {archiver.process.returncode}:\n{archiver.tail()}")
        stops = self.followers["stops"]
        rig.wait_until("the partition is stopped", 90, lambda: stops.said(": stopped: "))
        said = stops.said(": stopped: ")[0]
        check("truncated" in said and "--new-generation" in said, said)
        told = next(at for at, line in stops.lines if line == said)
        self.notes.append(f"following: stopped {told - begin:.0f} s after the kill")

    def end_followers(self):
        """Those that go on have lived through two more elections, and archive what comes then."""
        old = [value for value in self.written["followed"] if not value.startswith("C")]
        self.write("followed", "D", 20)
        for name in ("goes-on", "frozen"):
            self.wait_for_rows(name, self.written["followed"])
        time.sleep(3)  # whoever has an open batch reads D
        going = [name for name in FOLLOWERS if name != "stops"]
        for name, archiver in self.followers.items():
            code = archiver.terminate()
            check(code == (1 if name == "stops" else 0), f"{name}: SIGTERM ended it with {code}:\n{archiver.tail()}")
        early = {name: len(self.rows(name)) for name in FOLLOWERS}
        # At SIGTERM a leader that has just moved is not waited for: Kafka has what was left.
        self.once("after SIGTERM", going, 0)
        check(self.rows("stops") == dict.fromkeys(old, 1), f"stops: it has {early['stops']} rows, {len(old)} were archived")
        check(self.generations("stops") == [0], "stops: a new generation was begun")
        for name in going:
            self.check_rows(name, "followed")
            generations = self.generations(name)
            check(generations == [0, SHARED], f"{name}: generations begin at {generations}")
        self.notes.append("following, rows at SIGTERM: " + ", ".join(f"{name} {count}" for name, count in early.items()))

    def verify(self, names):
        offline = {name: value for name, value in os.environ.items() if name != "DLQ_ARCHIVER_BROKERS"}
        for name in names:
            command = [e2e.BIN, "verify", "--archive", self.archive(name)]
            for more in ([], ["--brokers", self.cluster.brokers]):
                done = subprocess.run([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=offline)
                # One that stopped has what the log has lost, and no later generation says so.
                wanted = 4 if more and name == "stops" else 0
                check(done.returncode == wanted, f"{name}: verify {more} ended with {done.returncode}:\n{done.stdout}")


def send(producer, topic, values):
    failed = []
    for value in values:
        producer.produce(topic, value.encode(), partition=0, on_delivery=lambda error, _: error and failed.append(error))
    check(producer.flush(60) == 0 and not failed, f"{topic}: records are not acknowledged: {failed[:1]}")


def tree(archive):
    """Every object of a local archive, with the hash of its bytes."""
    folder, found = e2e.archive_sql.path_of(archive), {}
    for path, _, files in os.walk(folder):
        for name in files:
            with open(f"{path}/{name}", "rb") as file:
                found[os.path.relpath(file.name, folder)] = hashlib.sha256(file.read()).hexdigest()
    return found
