"""The store fails in all the ways that stores do, under one archiver that follows a topic."""

import os
import subprocess
import tempfile
import time

import faults
import rig
from faults import Fault
from rig import Archiver, Flow, check, e2e

# name -> what the proxy does while it lasts; also used for `--once`
CLASSES = {
    "http_500": [Fault("answer", 500, "InternalError")],
    "slow_down": [Fault("answer", 503, "SlowDown", "Please reduce your request rate.")],
    "bad_gateway": [Fault("answer", 502, "Bad Gateway", html=True)],
    "unknown_header": [
        Fault("answer", 501, "NotImplemented", "A header you provided implies functionality that is not implemented", header="if-none-match")
    ],
    "refused": [Fault("refuse")],
    "reset_mid_body": [Fault("cut_request", methods="PUT")],
    "stall": [Fault("hold")],
    "expired_token": [Fault("answer", 403, "ExpiredToken", "The provided token has expired.")],
    "clock_skew": [
        Fault("answer", 403, "RequestTimeTooSkewed", "The difference between the request time and the server's time is too large.")
    ],
    "read_only": [Fault("answer", 403, "AccessDenied", "Access Denied", methods="PUT")],
    "no_bucket": [Fault("answer", 404, "NoSuchBucket", "The specified bucket does not exist")],
}
# These do not keep it from archiving: replies are lost, or chance leaves a way through.
PASSING = {
    "lost_reply": [Fault("lost_reply", methods="PUT")],
    "storm": [
        Fault("answer", 500, "InternalError", probability=0.08),
        Fault("answer", 503, "SlowDown", probability=0.08),
        Fault("refuse", probability=0.08),
        Fault("cut_request", methods="PUT", probability=0.08),
        Fault("cut_answer", methods="GET", probability=0.15),
        Fault("lost_reply", methods="PUT", probability=0.15),
        Fault("answer", 403, "ExpiredToken", probability=0.05),
        Fault("hold", methods="PUT", probability=0.01),
    ],
}
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def outage(row, args, archive, on, off, endpoint=rig.S3, seconds=None, same_member=True, topic=None):
    """One archiver follows a topic that grows; on(), seconds, off(); it goes on by itself, in its group all the time."""
    name = row["name"].replace("_", "-")
    topic, group = topic or rig.topic_name(name), f"chaos-{e2e.RUN}-{name}"
    flow = Flow(topic)
    archiver = Archiver(topic, archive, "--group", group, endpoint=endpoint)
    try:
        archiver.settled()
        before = rig.members(group)
        check(before and len(before) == 1, f"members of the group: {before}")
        begin, lost = time.monotonic(), 0
        on()
        while time.monotonic() < begin + (seconds or args.seconds):
            time.sleep(1)
            if not archiver.alive():
                break
            lost += rig.members(group) not in (before, None)
        off()
        end = time.monotonic()
        told = archiver.told_after(begin)
        row["first"] = f"`{archiver.first_trouble(begin)}`" + ("" if told is None else f" after {told:.0f} s")
        row["alive"] = "stayed alive" if archiver.alive() else f"ended with {archiver.process.returncode}"
        check(archiver.alive(), f"it ended with {archiver.process.returncode}:\n{archiver.tail()}")
        rig.wait_until("all partitions go on", 120, lambda: len(archiver.cuts(end)) == rig.PARTITIONS or not archiver.alive(), 0.2)
        check(archiver.alive(), f"it ended with {archiver.process.returncode}:\n{archiver.tail()}")
        row["resumed"] = f"{max(archiver.cuts(end).values()) - end:.1f}"
        after = rig.members(group)
        row["group"] = "stayed in" if not lost and after == before else "left it and came back"
        if same_member:
            check(not lost and after == before, f"it lost its place in the group: {before}, then {after}")
        time.sleep(3)
        acked = flow.stop()
        rig.all_archived(topic, archive)
        code = archiver.terminate()
        check(code == 0, f"SIGTERM ended it with {code}:\n{archiver.tail()}")
        row["records"] = rig.compare(topic, archive)
        check(row["records"] >= acked, f"{row['records']} records in the topic, {acked} were acknowledged")
        return archiver
    finally:
        flow.ended.set()
        archiver.kill()


def by_proxy(name, kinds):
    def run(row, args):
        proxy = faults.Proxy(rig.S3, args.seed)
        # A stall longer than the client's patience (three attempts of 20 s), or nothing would be said of it.
        seconds = args.seconds + {"stall": 60, "storm": 15}.get(name, 0)
        try:
            outage(row, args, rig.archive_url(name), lambda: proxy.on(*kinds), proxy.off, proxy.endpoint, seconds)
        finally:
            row["fired"] = ", ".join(f"{count} x {what}" for what, count in proxy.fired.items()) or "never"
        for kind in kinds:
            check(proxy.fired[kind.name], f"{kind.name} never fired")

    run.__doc__ = "S3: " + ", ".join(kind.name for kind in kinds)
    SCENARIOS[name] = run


for name, kinds in {**CLASSES, **PASSING}.items():
    by_proxy(name, kinds)


@scenario
def one_partition_refused(row, args):
    """S3: refuses one partition's objects for two minutes, until they take all the memory that they may; the others go on."""
    topic, archive = rig.topic_name("one-partition-refused"), rig.archive_url("one_partition_refused")
    proxy = faults.Proxy(rig.S3, args.seed)
    flow = Flow(topic, rate=900)
    archiver = Archiver(topic, archive, "--memory", "4MiB", endpoint=proxy.endpoint, cut=("--cut-age", "1s"))
    try:
        archiver.settled()
        proxy.on(Fault("answer", 403, "AccessDenied", "Access Denied", methods="PUT", key=r"-0-\d{20}-\d{20}\."))
        begin = time.monotonic()
        time.sleep(120)
        row["first"] = f"`{archiver.first_trouble(begin)}`"
        late = archiver.cuts(begin + 100)
        check(len(late) == rig.PARTITIONS - 1, f"cuts after 100 s: {late}\n{archiver.tail()}")
        refused = archiver.said(f"topic={topic} partition=0", begin)
        check(not any(" archived " in line for line in refused[1:]), "partition 0 was not refused")
        proxy.off()
        row["records"] = flow.stop()
        rig.all_archived(topic, archive)
        code = archiver.terminate()
        check(code == 0, f"SIGTERM ended it with {code}:\n{archiver.tail()}")
        check(rig.compare(topic, archive) >= row["records"], "fewer records than were acknowledged")
        row["fired"] = ", ".join(f"{count} x {what}" for what, count in proxy.fired.items())
    finally:
        flow.ended.set()
        archiver.kill()


@scenario
def disk_full(row, args):
    """Local folder on a small tmpfs: something else fills the disk, and makes room again."""
    folder = tempfile.mkdtemp(prefix="dlq-archiver-chaos-")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], stderr=subprocess.PIPE, text=True)
    if mounted.returncode != 0:
        os.rmdir(folder)
        row["result"], row["note"] = "not tried", f"no right to mount: {mounted.stderr.strip()}"
        return
    ballast = f"{folder}/ballast"

    def fill():
        with open(ballast, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                row["fired"] = f"{file.tell() >> 20} MiB of ballast, then {error.strerror}"

    try:
        outage(row, args, f"file://{folder}/archive", fill, lambda: os.remove(ballast))
    finally:
        subprocess.run(["umount", folder], check=True)
        os.rmdir(folder)
