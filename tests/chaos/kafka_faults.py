"""Brokers and processes fail: restarts, kills, zombies, two owners; and topics that change under an archiver."""

import os
import signal
import time

import confluent_kafka
import faults
import rig
import store_faults
from faults import Fault
from rig import Archiver, Flow, check, e2e

SCENARIOS = {}
ALONE = {"made_anew_after_outage", "once_broker_killed", "broker_killed", "broker_restarted", "broker_hung", "store_killed", "zombie"}
SHORT_SESSION = ("-X", "session.timeout.ms=3000", "-X", "heartbeat.interval.ms=500")


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def up():
    rig.localstack("up.sh")


def in_session(args):
    """Whether the fault is over before the session is: 45 s by default."""
    return args.seconds < 35


@scenario
def broker_killed(row, args):
    """kill -9 of the only broker, started again after the fault's seconds."""
    store_faults.outage(row, args, rig.archive_url("broker-killed"), lambda: rig.end_service("kafka"), up, same_member=in_session(args))
    row["fired"] = "1 x SIGKILL"


@scenario
def broker_restarted(row, args):
    """An orderly restart of the only broker."""

    def on():
        rig.end_service("kafka", signal.SIGTERM)

    store_faults.outage(row, args, rig.archive_url("broker-restarted"), on, up, same_member=in_session(args))
    row["fired"] = "1 x SIGTERM"


@scenario
def broker_hung(row, args):
    """The only broker stands still (SIGSTOP), connections stay open."""
    broker = rig.service("kafka")

    def on():
        os.kill(broker, signal.SIGSTOP)

    def off():
        os.kill(broker, signal.SIGCONT)

    try:
        store_faults.outage(row, args, rig.archive_url("broker-hung"), on, off, same_member=in_session(args))
    finally:
        off()
    row["fired"] = "1 x SIGSTOP"


@scenario
def once_broker_killed(row, args):
    """`archive --once` with a long backlog: kill -9 of the only broker for some seconds, then for longer than --wait."""
    topic, archive, count = rig.topic_name("once-broker"), rig.archive_url("once-broker"), 60_000
    e2e.run(e2e.PRODUCE, e2e.BROKERS, topic, str(rig.PARTITIONS), str(count))
    notes = []
    for more, code_wanted, pause in [((), 0, 8), (("--wait", "5s"), 1, 40)]:
        e2e.run(e2e.PRODUCE, e2e.BROKERS, topic, str(rig.PARTITIONS), str(count), "--append")
        # Little memory, or all of it would have been read when the broker goes, and rightly be archived without it.
        small = ("--memory", "24MiB", "--cut-age", "3s", "-X", "queued.max.messages.kbytes=1024", "-X", "fetch.message.max.bytes=262144")
        archiver = Archiver(topic, archive, *more, *small, once=True, cut=("--cut-records", "5000"))
        rig.wait_until("it has begun", 60, lambda: archiver.cuts(), 0.05)
        rig.end_service("kafka")
        begin = time.monotonic()
        rig.wait_until("the pause is over", pause + 60, lambda: not archiver.alive() or time.monotonic() > begin + pause, 0.1)
        ended = time.monotonic() - begin
        up()
        code = archiver.wait(180)
        said = archiver.trouble(begin)
        row.setdefault("first", f"`{archiver.first_trouble(begin)}`")
        took = f"{ended:.0f} s after the kill" if ended < pause else f"{time.monotonic() - begin - pause:.0f} s after the pause"
        notes.append(f"{' '.join(more) or 'for 8 s'}: exit {code}, {took}" + (f", `{said[-1]}`" if code else ""))
        check(code == code_wanted, f"{notes[-1]}:\n{archiver.tail()}")
    again = Archiver(topic, archive, once=True)
    check(again.wait(180) == 0, again.tail())
    row["fired"], row["note"] = "2 x SIGKILL", "; ".join(notes)
    row["records"] = rig.compare(topic, archive, 3 * count)


@scenario
def store_killed(row, args):
    """kill -9 of the whole S3 server, started again after the fault's seconds."""
    store_faults.outage(row, args, rig.archive_url("store-killed"), lambda: rig.end_service("s3"), up)
    row["fired"] = "1 x SIGKILL"


@scenario
def killed(row, args):
    """kill -9 of the only archiver; another is started in its place."""
    topic, archive, group = rig.topic_name("killed"), rig.archive_url("killed"), f"chaos-{e2e.RUN}-killed"
    flow = Flow(topic)
    first = Archiver(topic, archive, "--group", group, *SHORT_SESSION)
    first.settled()
    first.kill()
    end = time.monotonic()
    second = Archiver(topic, archive, "--group", group, *SHORT_SESSION)
    second.settled()
    row["fired"] = "1 x SIGKILL"
    row["resumed"] = f"{max(second.cuts(end).values()) - end:.1f}"
    row["first"] = f"`{second.first_trouble()}`"
    flow.stop()
    rig.all_archived(topic, archive)
    check(second.terminate() == 0, second.tail())
    row["records"] = rig.compare(topic, archive, flow.acked)
    row["note"] = f"{len(second.said('finishing the cut'))} cuts that were begun were finished"


@scenario
def zombie(row, args):
    """SIGSTOP with buffered records and requests on the way, until the group has gone on without it; then SIGCONT."""
    topic, archive, group = rig.topic_name("zombie"), rig.archive_url("zombie"), f"chaos-{e2e.RUN}-zombie"
    proxy = faults.Proxy(rig.S3)
    flow = Flow(topic)
    sleeper = Archiver(topic, archive, "--group", group, *SHORT_SESSION, endpoint=proxy.endpoint)
    sleeper.settled()
    awake = Archiver(topic, archive, "--group", group, *SHORT_SESSION)
    rig.wait_until("both have partitions", 60, lambda: sleeper.cuts(awake.began + 5) and awake.cuts(awake.began + 5))
    held = Fault("hold", methods="PUT")
    proxy.on(held)
    check(held.hit.wait(30), "no request came to be held")
    begin = time.monotonic()
    sleeper.signal(signal.SIGSTOP)
    rig.wait_until("the group is without it", 60, lambda: len(rig.members(group) or "__") == 1)
    rig.wait_until("the other archives all partitions", 60, lambda: len(awake.cuts(begin + 3)) == rig.PARTITIONS)
    time.sleep(args.seconds)
    proxy.off()  # what was on its way arrives now, in the name of one that still sleeps
    time.sleep(2)
    end = time.monotonic()
    sleeper.signal(signal.SIGCONT)
    rig.wait_until("it is in the group again and archives", 90, lambda: sleeper.cuts(end + 1) and len(rig.members(group) or ()) == 2)
    row["resumed"] = f"{min(sleeper.cuts(end + 1).values()) - end:.1f}"
    row["fired"] = "1 x SIGSTOP, " + ", ".join(f"{n} x {what}" for what, n in proxy.fired.items())
    row["first"] = f"`{sleeper.first_trouble(end)}`"
    row["alive"], row["group"] = "stayed alive", "lost it and came back"
    time.sleep(3)
    flow.stop()
    rig.all_archived(topic, archive)
    for archiver in (sleeper, awake):
        check(archiver.terminate() == 0, archiver.tail())
    row["records"] = rig.compare(topic, archive, flow.acked)
    fenced = [len(a.said("created by another archiver")) for a in (sleeper, awake)]
    row["note"] = f"the zombie met another's documents {fenced[0]} times, the other {fenced[1]} times"


@scenario
def two_owners(row, args):
    """Two archivers in different groups: both own every partition all the time, and write one archive."""
    topic, archive = rig.topic_name("two-owners"), rig.archive_url("two-owners")
    flow = Flow(topic)
    both = [Archiver(topic, archive, "--group", f"chaos-{e2e.RUN}-owner-{i}") for i in (1, 2)]
    time.sleep(args.seconds + 15)
    flow.stop()
    rig.all_archived(topic, archive)
    time.sleep(3)
    row["first"] = f"`{both[0].first_trouble()}`"
    for archiver in both:
        check(archiver.terminate() == 0, archiver.tail())
    row["alive"] = "both stayed alive"
    fenced = [len(a.said("created by another archiver")) for a in both]
    row["fired"] = f"{sum(fenced)} x fenced"
    check(sum(fenced), "the two never met")
    row["records"] = rig.compare(topic, archive, flow.acked)
    row["note"] = f"cuts by each: {[len(a.said(' archived topic=')) for a in both]}, fenced: {fenced}"


@scenario
def topic_made_anew(row, args):
    """A topic is deleted, made anew and grows past the old position under a running archiver."""
    made_anew(row, "anew", lambda archiver: None)


@scenario
def made_anew_after_outage(row, args):
    """The same, after the brokers stood still for longer than a question to them may take."""

    def outage(archiver):
        broker = rig.service("kafka")
        os.kill(broker, signal.SIGSTOP)
        try:
            time.sleep(max(args.seconds, 15))
        finally:
            os.kill(broker, signal.SIGCONT)
        end = time.monotonic()
        rig.wait_until("all partitions go on", 90, lambda: len(archiver.cuts(end)) == 2 * rig.PARTITIONS)

    made_anew(row, "anew-later", outage)


def made_anew(row, name, before_it):
    old, other = rig.topic_name(name), rig.topic_name(f"{name}-other")
    archive, group = rig.archive_url(name), f"chaos-{e2e.RUN}-{name}"
    flow, other_flow = Flow(old), Flow(other)
    archiver = Archiver([old, other], archive, "--group", group)
    rig.wait_until("all partitions have a cut", 60, lambda: len(archiver.cuts()) == 2 * rig.PARTITIONS)
    before_it(archiver)
    time.sleep(3)
    count = flow.stop()
    rig.wait_until("the old topic is archived", 60, lambda: rows_of(archive, old)[0] >= count)
    time.sleep(4)  # nothing of it is open any more
    before = rows_of(archive, old)
    begin = time.monotonic()
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": e2e.BROKERS, **rig.QUIET})
    admin.delete_topics([old])[old].result()
    rig.wait_until("the topic can be made again", 30, lambda: made(old))
    e2e.run(e2e.PRODUCE, e2e.BROKERS, old, str(rig.PARTITIONS), str(2 * count), "--append")
    row["fired"] = f"made anew, {2 * count} records where {count} were"
    new_flow = Flow(old, create=False)

    def stopped():
        return [line for line in archiver.trouble(begin) if f"{old}/" in line and "stopped:" in line]

    # Where the consumer itself never wakes up again, an idle partition looks after a minute.
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and len(stopped()) < rig.PARTITIONS:
        time.sleep(1)
    told, silent = archiver.told_after(begin), rig.PARTITIONS - len(stopped())
    new_flow.stop()
    row["first"] = f"`{archiver.first_trouble(begin)}`"
    row["alive"] = "stayed alive" if archiver.alive() else f"ended with {archiver.process.returncode}"
    after = rows_of(archive, old)
    other_flow.stop()
    rig.wait_until("the other topic is archived", 60, lambda: rows_of(archive, other)[0] == other_flow.acked)
    code = archiver.terminate()
    row["records"] = rig.compare(other, archive, other_flow.acked)
    restarted = Archiver([old, other], archive, "--group", group, once=True)
    again = restarted.wait(90)
    row["note"] = (
        f"told of {rig.PARTITIONS - silent} of {rig.PARTITIONS} partitions that they stopped, the first after "
        f"{told and round(told)} s; rows of the old topic {before[0]}, then {after[0]}; the other's are equal; SIGTERM: exit {code}; `--once` again: exit {again}, `{restarted.first_trouble()}`"
    )
    check(after == before, f"the old topic's rows were {before} and are {after}:\n{archiver.tail()}")
    check(rows_of(archive, old) == before, "another run changed the old topic's rows")
    check(not silent, f"of {silent} partitions nothing was said within 100 s, though they had stopped. Then, at the end:\n{archiver.tail()}")
    check(code == 1 and again == 1, f"exit codes {code} and {again}")


def rows_of(archive, topic):
    """How many rows a topic has in the archive, and a sum over all they say."""
    try:
        db = e2e.archive_sql.connect()
        source = e2e.archive_sql.rows(archive)
        return db.execute(f"SELECT count(*), sum(hash(r)::HUGEINT) FROM (SELECT * FROM {source}) r WHERE kafka_topic = ?", [topic]).fetchone()
    except e2e.archive_sql.duckdb.Error:
        return 0, None  # there is no file yet


def made(topic):
    try:
        e2e.create_topic(topic, rig.PARTITIONS)
        return True
    except confluent_kafka.KafkaException:
        return False


@scenario
def open_transaction(row, args):
    """A transaction is left open on a partition while records go on coming behind it; then it is aborted."""
    topic, archive, group = rig.topic_name("hanging"), rig.archive_url("hanging"), f"chaos-{e2e.RUN}-hanging"
    flow = Flow(topic)
    archiver = Archiver(topic, archive, "--group", group)
    archiver.settled()
    settings = {"bootstrap.servers": e2e.BROKERS, "transactional.id": topic, "transaction.timeout.ms": 600_000}
    producer = confluent_kafka.Producer({**settings, **rig.QUIET})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"never committed", partition=0)
    producer.flush(30)
    begin = time.monotonic()
    time.sleep(args.seconds + 5)
    during = archiver.cuts(begin + 5)
    once = Archiver(topic, archive, once=True)
    code = once.wait(60)
    behind = flow.acked - e2e.archived_rows(archive)
    # An idle partition is looked at once a minute, and told when it stands still for a second time.
    rig.wait_until("it is told", 180, lambda: archiver.said("a transaction has been open", begin), 0.5)
    told = time.monotonic() - begin
    row["first"] = f"`{archiver.first_trouble(begin)}`"
    producer.abort_transaction(30)
    end = time.monotonic()
    rig.wait_until("the partition goes on", 60, lambda: len(archiver.cuts(end)) == rig.PARTITIONS, 0.2)
    row["fired"] = "1 x open transaction"
    row["resumed"] = f"{max(archiver.cuts(end).values()) - end:.1f}"
    flow.stop()
    rig.wait_until("all is archived", 60, lambda: e2e.archived_rows(archive) == flow.acked)
    check(archiver.terminate() == 0, archiver.tail())
    row["alive"] = "stayed alive"
    row["records"] = rig.compare(topic, archive, flow.acked)
    row["note"] = (
        f"told after {told:.0f} s; while it was open {len(during)} of {rig.PARTITIONS} partitions went on, and {behind} records waited; `--once` then: exit "
        f"{code}, `{once.first_trouble()}`"
    )
    check(len(during) == rig.PARTITIONS - 1, f"partitions that went on: {sorted(during)}")


@scenario
def deleted_behind_aborted(row, args):
    """DeleteRecords up to the log end, behind a tail of aborted records that nobody could read; and a true loss."""
    notes = []
    for name, seen, committed in [("unseen", False, 0), ("seen", True, 0), ("true-loss", False, 50)]:
        topic, archive = rig.topic_name(f"aborted-{name}"), rig.archive_url(f"aborted-{name}")
        e2e.create_topic(topic, 1)
        rig.wait_until("a leader", 30, lambda: log_end(topic) == 0)
        transaction(topic, 100, commit=True)
        check(Archiver(topic, archive, once=True).wait(60) == 0, "the first run failed")
        begin = log_end(topic)
        transaction(topic, 50, commit=False)
        if committed:
            transaction(topic, committed, commit=True)
        if seen:
            check(Archiver(topic, archive, once=True).wait(60) == 0, "the second run failed")
        end = log_end(topic)
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": e2e.BROKERS, **rig.QUIET})
        admin.delete_records([confluent_kafka.TopicPartition(topic, 0, end)])
        rig.wait_until("the log start moves", 30, lambda: log_start(topic) == end)
        archiver = Archiver(topic, archive, once=True)
        code = archiver.wait(60)
        transaction(topic, 10, commit=True)
        after = Archiver(topic, archive, once=True).wait(60)
        rows = rows_of(archive, topic)[0]
        notes.append(
            f"{name}: offsets {begin}..{end} deleted, {committed} of them records that could be read: exit {code}, "
            f"`{archiver.first_trouble()}`; then exit {after}, {rows} rows"
        )
        check(rows == 110, f"{rows} rows")
        # What nobody saw before it was deleted may have been records: it is told as not known.
        check(code == (0 if seen else 3), f"{name}: exit {code}")
        check(seen or "is not known" in archiver.first_trouble(), f"{name}: {archiver.first_trouble()}")
    row["fired"] = "3 x DeleteRecords"
    row["note"] = "; ".join(notes)


def transaction(topic, count, commit):
    producer = confluent_kafka.Producer({"bootstrap.servers": e2e.BROKERS, "transactional.id": topic, **rig.QUIET})
    producer.init_transactions(30)
    producer.begin_transaction()
    for n in range(count):
        producer.produce(topic, f"record {n}".encode(), partition=0)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def ends_of(topic):
    consumer = confluent_kafka.Consumer({"bootstrap.servers": e2e.BROKERS, "group.id": "chaos", "isolation.level": "read_uncommitted", **rig.QUIET})
    try:
        return consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), 10)
    except confluent_kafka.KafkaException:
        return None, None
    finally:
        consumer.close()


def log_end(topic):
    return ends_of(topic)[1]


def log_start(topic):
    return ends_of(topic)[0]
