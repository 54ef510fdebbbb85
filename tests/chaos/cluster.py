"""A Kafka cluster of several nodes on loopback, each broker and controller, that one scenario starts and stops.

It runs from the jars that localstack downloaded. A scenario that wants replicas needs it: localstack has one broker.
"""

import base64
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid

import confluent_kafka
import confluent_kafka.admin
import rig
from rig import check, e2e

JAVA = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
CLASSPATH = os.environ["LOCALSTACK_KAFKA_CLASSPATH"]


def free_ports(count):
    """Ports that were free at the same time."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Cluster:
    """Nodes 1 to `size`; `with` starts them, and at its end kills them and deletes their data. Their logs stay."""

    def __init__(self, name, size=3):
        self.name = name
        self.nodes = range(1, size + 1)
        ports = free_ports(2 * size)
        self.ports = dict(zip(self.nodes, ports))
        self.controllers = dict(zip(self.nodes, ports[size:]))
        self.brokers = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        self.processes = {}

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="dlq-archiver-chaos-kafka-")
        try:
            self._format()
            for node in self.nodes:
                self._launch(node)
            self.admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.brokers, **rig.QUIET})
            for node in self.nodes:
                self._up(node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _properties(self, node):
        return f"""process.roles=broker,controller
node.id={node}
listeners=PLAINTEXT://127.0.0.1:{self.ports[node]},CONTROLLER://127.0.0.1:{self.controllers[node]}
controller.listener.names=CONTROLLER
controller.quorum.voters={",".join(f"{n}@127.0.0.1:{port}" for n, port in self.controllers.items())}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={self.folder}/{node}
offsets.topic.num.partitions=3
transaction.state.log.num.partitions=3
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
group.max.session.timeout.ms=1800000
auto.create.topics.enable=false
auto.leader.rebalance.enable=false
# A broker that was killed is given up soon, one that the machine is slow for is not.
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=500
log.cleaner.dedupe.buffer.size=4194304
"""

    def _format(self):
        # It is an argument, so it must not look like an option.
        cluster_id = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        formats = []
        for node in self.nodes:
            with open(f"{self.folder}/{node}.properties", "w") as file:
                file.write(self._properties(node))
            formats.append(self._java(node, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", file.name))
        for node, process in zip(self.nodes, formats):
            check(process.wait(120) == 0, f"the storage of node {node} could not be formatted, see {self._log(node)}")

    def _log(self, node):
        return f"{rig.LOGS}/{self.name}-kafka-{node}.log"

    def _java(self, node, *arguments):
        command = [
            JAVA, "-Xmx384m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError",
            f"-Dlog4j2.configurationFile={rig.ROOT}/localstack/kafka/log4j2.properties", "-cp", CLASSPATH, *arguments,
        ]  # fmt: skip
        with open(self._log(node), "a") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        e2e.STARTED.append(process)
        return process

    def _launch(self, node):
        self.processes[node] = self._java(node, "kafka.Kafka", f"{self.folder}/{node}.properties")

    def _up(self, node):
        def answers():
            check(self.processes[node].poll() is None, f"node {node} ended while starting, see {self._log(node)}")
            return node in self._metadata().brokers

        rig.wait_until(f"node {node} is a broker of the cluster", 120, answers)

    def _metadata(self, topic=None):
        try:
            return self.admin.list_topics(topic, timeout=5)
        except confluent_kafka.KafkaException:
            return confluent_kafka.admin.ClusterMetadata()  # nobody answers: of no brokers

    def start(self, node):
        self._launch(node)
        self._up(node)

    def end(self, node, number=signal.SIGKILL):
        self.processes[node].send_signal(number)
        self.processes[node].wait(60)

    def create_topic(self, topic, replicas, **config):
        """One partition, on these nodes."""
        new = confluent_kafka.admin.NewTopic(topic, num_partitions=1, replica_assignment=[replicas], config=config)
        self.admin.create_topics([new])[topic].result(60)

    def in_sync(self, topics, leader, replicas):
        """Waits until all topics have this leader, and these replicas in sync."""

        def state(topic):
            found = self._metadata(topic).topics.get(topic)
            partition = found and found.partitions.get(0)
            return partition and (partition.leader, set(partition.isrs))

        rig.wait_until(f"{leader} leads all topics, {replicas} are in sync", 90, lambda: all(state(topic) == (leader, replicas) for topic in topics))

    def elect_preferred(self, topics):
        partitions = [confluent_kafka.TopicPartition(topic, 0) for topic in topics]
        self.admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, partitions).result(60)
