"""`archive --once` under each class of store fault: at its start, for a while, and for longer than it waits."""

import dataclasses
import threading
import time

import faults
import rig
from rig import Archiver, check, e2e
from store_faults import CLASSES, PASSING

SCENARIOS = {}
COUNT = 1500
# The opening asks for archive.json, and whether anything is in these folders; the fault is met behind it.
BEHIND_OPENING = "(ledger|data)(/|%2F)[a-z]"


def ends(archiver, seconds, what):
    """Exit code, a note, and the last thing that it said of trouble."""
    code = archiver.wait(seconds)
    said = archiver.trouble() or [line for _, line in archiver.lines if line.startswith("error")]
    return code, f"{what}: exit {code} in {time.monotonic() - archiver.began:.0f} s", said[-1] if said else "(nothing)"


def scenario(name, kinds):
    def run(row, args):
        proxy = faults.Proxy(rig.S3, args.seed)
        topic, archive = rig.topic_name(row["name"].replace("_", "-")), rig.archive_url(row["name"])

        def start(*more):
            return Archiver(topic, archive, *more, endpoint=proxy.endpoint, once=True)

        def later():
            return [dataclasses.replace(kind, key=BEHIND_OPENING, hit=threading.Event()) for kind in kinds]

        notes = []
        e2e.run(e2e.PRODUCE, e2e.BROKERS, topic, str(rig.PARTITIONS), str(COUNT))
        if name in CLASSES:
            proxy.on(*kinds)
            # Else a store without the header would be taken, plainly.
            conditional = ("--store-create", "conditional") if name == "unknown_header" else ()
            archiver = start("--start-timeout", "5s", *conditional)
            code, note, row["first"] = ends(archiver, 240, "at start, --start-timeout 5s")
            if time.monotonic() - archiver.began > 40:
                row["result"] = "known gap"  # five seconds were asked for
            proxy.off()
            notes.append(note)
            check(code in (1, 2), f"{note}, though the store did not work")
        else:
            check(start().wait(60) == 0, "the archive could not be opened")  # a refusal at the opening rightly ends it
            e2e.run(e2e.PRODUCE, e2e.BROKERS, topic, str(rig.PARTITIONS), str(COUNT), "--append")
            proxy.on(*later())
            code, note, _ = ends(start(), 120, "all the time")
            notes.append(note)
            proxy.off()
            check(code == 0, note)
        code, note, _ = ends(start(), 120, "without a fault")
        check(code == 0, note)

        e2e.run(e2e.PRODUCE, e2e.BROKERS, topic, str(rig.PARTITIONS), str(COUNT), "--append")
        proxy.on(*later())
        archiver = start()
        time.sleep(8)
        proxy.off()
        code, note, said = ends(archiver, 180, "for 8 s")
        notes.append(note)
        row.setdefault("first", archiver.first_trouble())
        check(code == 0, f"{note}: {said}")

        e2e.run(e2e.PRODUCE, e2e.BROKERS, topic, str(rig.PARTITIONS), str(COUNT), "--append")
        if name in CLASSES:
            proxy.on(*later())
            code, note, said = ends(start("--wait", "5s"), 180, "beyond --wait 5s")
            proxy.off()
            notes.append(f"{note}, `{said}`")
            check(code == 1, f"{note}: {said}")
        code, note, said = ends(start(), 120, "again")
        check(code == 0, f"{note}: {said}")
        notes.append(note)
        row["first"] = f"`{row['first']}`"
        row["note"] = "; ".join(notes)
        row["fired"] = ", ".join(f"{count} x {what}" for what, count in proxy.fired.items()) or "never"
        row["records"] = rig.compare(topic, archive, (3 if name in CLASSES else 4) * COUNT)
        for kind in kinds:
            # By chance, some may be missing where there are few requests.
            check(proxy.fired[kind.name] or kind.probability < 1, f"{kind.name} never fired")

    run.__doc__ = f"`archive --once`, S3: {', '.join(kind.name for kind in kinds)}"
    SCENARIOS[f"once_{name}"] = run


for _name, _kinds in {**CLASSES, **PASSING}.items():
    scenario(_name, _kinds)
