"""Scale-out and scale-in: one, two, four and again one archiver share a topic that goes on growing.

Nothing but Kafka's consumer group divides the partitions. Each archiver must get its share and archive records of it; at
the end a plain glob finds every record once. Variables as for e2e.py.
"""

import json
import signal
import subprocess
import threading
import time

import confluent_kafka
import confluent_kafka.admin
import e2e

PARTITIONS = 8
ADMIN = confluent_kafka.admin.AdminClient({"bootstrap.servers": e2e.BROKERS})


class Producing(threading.Thread):
    """Some 2,000 records a second, until it is told to end. Plain ones: a cut of them is one small object."""

    def __init__(self, topic):
        super().__init__(daemon=True)
        self.producer = confluent_kafka.Producer({"bootstrap.servers": e2e.BROKERS, "linger.ms": 20})
        self.topic, self.count, self.refused, self.over = topic, 0, [], threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(0.1):
            for _ in range(200):
                key, value, headers = f"key-{self.count}", f"value {self.count}" * 20, [("n", str(self.count)), ("n", None)]
                self.producer.produce(self.topic, value, key, on_delivery=self.delivered, headers=headers)
                self.count += 1
            self.producer.poll(0)

    def delivered(self, error, _):
        if error:
            self.refused.append(error)

    def end(self):
        self.over.set()
        self.join(60)
        if self.producer.flush(60) or self.refused:
            e2e.fail(f"the producer's records were not taken: {self.refused[:1]}")
        return self.count


def shares(group):
    """How many partitions each member of the group has; None while one partition has no reader, or two."""
    members = ADMIN.describe_consumer_groups([group])[group].result().members
    parts = [[p.partition for p in m.assignment.topic_partitions] for m in members]
    whole = sorted(sum(parts, [])) == list(range(PARTITIONS))
    return sorted(len(p) for p in parts) if whole else None


def main():
    begin = time.monotonic()
    topic, archive, group = f"test-{e2e.RUN}-scale-dlq", e2e.archive_url("scale"), f"scale-{e2e.RUN}"
    e2e.create_topic(topic, PARTITIONS)
    command = e2e.archive_command(topic, archive, "--group", group, "--cut-age", "2s", "-o", "json")
    command.remove("--once")

    def more(count):
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
        e2e.STARTED.extend(started)
        return started

    def settled(wanted):
        e2e.wait_until(f"shares of {wanted} partitions", 60, lambda: shares(group) == wanted)
        rows = e2e.archived_rows(archive)
        e2e.wait_until(f"more than {rows} rows", 60, lambda: e2e.archived_rows(archive) > rows)
        e2e.say(f"{len(wanted)} share {PARTITIONS} partitions as {wanted}, after {time.monotonic() - begin:.0f} s")
        time.sleep(3)  # a cut or two of each

    def stop(processes):
        """SIGTERM to all at once; the records that each archived."""
        for process in processes:
            process.send_signal(signal.SIGTERM)
        outs = [process.communicate(timeout=40)[0] for process in processes]
        codes = [process.returncode for process in processes]
        if any(codes):
            e2e.fail(f"SIGTERM ended them with {codes}")
        return [json.loads(out)["records"] for out in outs]

    producing = Producing(topic)
    archivers = more(2)
    settled([4, 4])
    archivers += more(2)
    settled([2, 2, 2, 2])
    archived = stop(archivers[1:])
    settled([8])
    count = producing.end()
    e2e.wait_until(f"{count} rows", 60, lambda: e2e.archived_rows(archive) == count)
    archived += stop(archivers[:1])
    e2e.say(f"records archived by each: {archived}")
    if not all(archived):
        e2e.fail("an archiver had partitions and archived nothing")
    e2e.compare(topic, archive, count)
    e2e.say(f"scale-out and back: {time.monotonic() - begin:.0f} s")
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
