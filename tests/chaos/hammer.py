"""The two counts: kill -9 and SIGSTOP again and again, with two archivers in one group.

Three of ten moments are chance, the others are chosen: when an intent, a data object or a manifest is on its way to the store or
just stored. Requests on the way when their sender is killed arrive after it was started again, or never.
"""

import collections
import random
import signal
import time

import faults
import rig
from faults import Fault
from rig import Archiver, Flow, check, e2e

SESSION = ("-X", "session.timeout.ms=1500", "-X", "heartbeat.interval.ms=300")
CUT = ("--cut-age", "1s", "--cut-records", "150")
POINTS = {"intent": r"\.intent\.json", "data": r"/data/", "manifest": r"/\d{20}\.json"}


class Pair:
    """Two places for archivers of one group, each behind a proxy of its own."""

    def __init__(self, topic, archive, group):
        self.command = (topic, archive, "--group", group, *SESSION)
        self.proxies = [faults.Proxy(rig.S3), faults.Proxy(rig.S3)]
        self.all = []
        self.now = [None, None]
        for place in (0, 1):
            self.start(place)

    def start(self, place):
        self.now[place] = start = Archiver(*self.command, endpoint=self.proxies[place].endpoint, cut=CUT)
        self.all.append(start)
        return start

    def said(self, text):
        return sum(len(archiver.said(text)) for archiver in self.all)

    def reach(self, place, chance, reached):
        """Waits for a moment to strike at; its name is counted."""
        if chance.random() < 0.3:
            time.sleep(chance.uniform(0.2, 3.0))
            reached["any moment"] += 1
            return
        point = chance.choice(list(POINTS))
        act = chance.choice(["hold", "hold_reply"])
        fault = Fault(act, methods="PUT", key=POINTS[point], once=True)
        self.proxies[place].on(fault)
        if fault.hit.wait(5):
            reached[f"{point} {'on its way' if act == 'hold' else 'stored'}"] += 1
        else:
            reached["any moment"] += 1  # it had no partition, or nothing to write

    def drop(self, place):
        """What is on its way is lost: the proxy is left to itself, with what it holds."""
        self.proxies[place] = faults.Proxy(rig.S3)


def finish(row, pair, flow, topic, archive, what, reached, begin):
    for proxy in pair.proxies:
        proxy.off()
    flow.stop()
    rig.all_archived(topic, archive, 300)
    for archiver in pair.now:
        code = archiver.terminate()
        check(code == 0, f"SIGTERM ended it with {code}:\n{archiver.tail()}")
    took = time.monotonic() - begin
    row["records"] = rig.compare(topic, archive, flow.acked)
    row["fired"] = f"{what} in {took:.0f} s: " + ", ".join(f"{n} x {name}" for name, n in sorted(reached.items()))
    row["note"] = (
        f"{pair.said(' archived topic=')} cuts; {pair.said('finishing the cut')} that were begun were finished by another; "
        f"{pair.said('created by another archiver')} times fenced"
    )
    trouble = collections.Counter(line.split(": ")[-1][:100] for a in pair.all for line in a.trouble())
    row["first"] = "; ".join(f"`{line}` ({n})" for line, n in trouble.most_common(3)) or "(nothing)"


def watch(pair):
    for archiver in pair.now:
        check(archiver.alive(), f"one ended by itself with {archiver.process.returncode}:\n{archiver.tail()}")


def kills(row, args):
    """kill -9 again and again, two archivers in one group, each started again at once."""
    if not args.kills:
        return
    topic, archive = rig.topic_name("kills"), rig.archive_url("kills")
    chance, reached = random.Random(args.seed), collections.Counter()
    flow = Flow(topic)
    pair = Pair(topic, archive, f"chaos-{e2e.RUN}-kills")
    begin, done, since, late = time.monotonic(), 0, time.monotonic(), 0
    while done < args.kills:
        place = chance.randrange(2)
        pair.reach(place, chance, reached)
        watch(pair)
        struck = [0, 1] if chance.random() < 0.2 else [place]
        for victim in struck:
            pair.now[victim].kill()
            done += 1
        if chance.random() < 0.5:
            pair.drop(place)
        else:
            late += 1
        for victim in struck:
            pair.start(victim)
        pair.proxies[place].off()
        if done % 25 < len(struck):
            e2e.say(f"{done} kills in {time.monotonic() - begin:.0f} s, {pair.said(' archived topic=')} cuts")
            check(pair.said(" archived topic=") > 0, "nothing is archived any more")
        if time.monotonic() - since > 20:  # a breath now and then, or nothing but rebalances would be seen
            time.sleep(4)
            since = time.monotonic()
    finish(row, pair, flow, topic, archive, f"{done} kills", reached, begin)


def zombies(row, args):
    """SIGSTOP until the group has gone on without it, then SIGCONT, again and again, two archivers in one group."""
    if not args.zombies:
        return
    topic, archive, group = rig.topic_name("zombies"), rig.archive_url("zombies"), f"chaos-{e2e.RUN}-zombies"
    chance, reached = random.Random(args.seed), collections.Counter()
    flow = Flow(topic, rate=200)
    pair = Pair(topic, archive, group)
    begin, lost = time.monotonic(), 0
    for n in range(args.zombies):
        rig.wait_until("both are in the group", 60, lambda: len(rig.members(group) or ()) == 2, 0.2)
        place = chance.randrange(2)
        sleeper, awake = pair.now[place], pair.now[1 - place]
        pair.reach(place, chance, reached)
        watch(pair)
        stopped = time.monotonic()
        sleeper.signal(signal.SIGSTOP)
        rig.wait_until("the group is without it", 60, lambda: len(rig.members(group) or "__") == 1, 0.2)
        rig.wait_until("the other archives all partitions", 60, lambda: len(awake.cuts(stopped + 1.5)) == rig.PARTITIONS, 0.2)
        lost += 1
        if chance.random() < 0.5:  # what it had sent arrives while it sleeps
            pair.proxies[place].off()
            time.sleep(0.3)
        sleeper.signal(signal.SIGCONT)
        pair.proxies[place].off()
        if n % 10 == 9:
            e2e.say(f"{n + 1} zombies in {time.monotonic() - begin:.0f} s, {pair.said(' archived topic=')} cuts")
    row["alive"], row["group"] = "stayed alive", f"lost it {lost} times"
    finish(row, pair, flow, topic, archive, f"{lost} zombies", reached, begin)
    check(len(pair.all) == 2, "one had to be started again")


SCENARIOS = {"kills": kills, "zombies": zombies}
