#!/usr/bin/env python3
"""Breaks one rule of the protocol at a time in a copy of the source, and expects the simulation to find it.

A variant that no seed finds means that the simulation proves nothing about that rule. `--check` only looks whether every
variant still fits the source. Usage: broken.py [--check] [--only NAME] [--from NAME] [--seeds N]
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# (name, [(file, old text, new text)])
ARCHIVE = [
    ("group offset committed before upload", [(
        "src/archive/reader.rs",
        "        self.send(Event::Batch(batch));\n",
        "        self.send(Event::Batch(batch));\n        self.consumer.commit(tp, to, false);\n")]),
    ("names by clock", [(
        "src/archive/writer.rs",
        "        let key = object.key.clone();\n",
        "        let key = object.key.replace('.', &format!(\"-{}.\", crate::host::now_us()));\n")]),
    ("pipelines named by who recovers", [(
        "src/cut.rs",
        "        let pipeline = pipelines.of(raw.offset).ok_or_else(|| {\n"
        "            Error::internal(format!(\"offset {} is none of {}. Please report this\", raw.offset, object.key))\n"
        "        })?;\n",
        "        let _ = &pipelines;\n        let pipeline = tables.routing.pipeline(&intent.topic, &decoded);\n"
        "        let pipeline = &*pipeline;\n")]),
    ("intents deleted", [(
        "tests/sim/store.rs",
        "        self.oracle.create(key, body, created);\n",
        "        self.oracle.create(key, body, created);\n"
        "        if key.starts_with(\"ledger/\") && !key.contains(\"intent\") {\n"
        "            self.memory.remove_behind_the_back(&key.replace(\".json\", \".intent.json\"));\n        }\n")]),
    ("no genesis", [(
        "src/archive/partition.rs",
        "        // Where every offset was a record, each one that is gone was one.\n",
        "        if writer.last.is_none() {\n            writer.head.next = low;\n        }\n")]),
    ("genesis deleted", [(
        "tests/sim/store.rs",
        "        self.oracle.create(key, body, created);\n",
        "        self.oracle.create(key, body, created);\n"
        "        if key.ends_with(\".intent.json\") {\n"
        "            self.memory.remove_behind_the_back(&format!(\"{}/genesis.json\", key.rsplit_once('/').unwrap().0));\n"
        "        }\n")]),
    ("no empty objects in recovery", [(
        "src/archive/writer.rs",
        "        let Encoded { bytes, object, tally } = encoded;\n",
        "        let Encoded { bytes, object, tally } = encoded;\n        if object.rows == 0 {\n"
        "            return Ok((object, RoaringTreemap::new()));\n        }\n")]),
    ("\"exists\" ignored", [(
        "src/archive/writer.rs",
        "                head.is_some_and(|h| h.meta.get(\"sha256\") == Some(object.sha256.as_str()))",
        "                head.is_some()")]),
    ("manifest before data", [(
        "src/archive/writer.rs",
        "        let created =\n            self.partition.wait_out(\"create a data object\", || store.create(&key, bytes.clone(), &meta)).await?;",
        "        let (store2, key2, bytes2, meta2) = (self.shared().store.clone(), key.clone(), bytes.clone(), meta.clone());\n"
        "        std::mem::forget(host::spawn(async move { store2.create(&key2, bytes2, &meta2).await }));\n"
        "        let created = Created::New;")]),
    ("topic id asked at assignment only", [(
        "src/archive/writer.rs",
        "        self.check_topic_id().await?;\n        let key = layout::intent_key",
        "        let key = layout::intent_key"), (
        "src/archive/recovery.rs",
        "                self.check_topic_id().await?;\n", "")]),
    ("to = last offset + 1", [(
        "src/archive/part.rs",
        "if self.state == State::Reading && self.placed && position > self.next {",
        "if self.state == State::Reading && self.placed && position > self.next && self.batch.len() > usize::MAX - 1 {")]),
    ("what an object lacks is no gap", [(
        "src/archive/writer.rs",
        "        if !missing.is_empty() {", "        if missing.len() > u64::MAX - 1 {")]),
    ("recovery does not compare checksums", [(
        "src/archive/recovery.rs",
        "if record.checksum(&mut scratch) != checksum {", "if record.checksum(&mut scratch) == 1 {"), (
        "src/archive/generation.rs",
        "        let Some(newest) = newest else { return Ok(None) };",
        "        let Some(newest) = newest.filter(|n| n.version > 1_000_000) else { return Ok(None) };")]),
    ("leader epochs not asked for", [(
        "src/archive/generation.rs",
        "            if !self.cluster().refuses(&self.tp, offset, leader_epoch).await? {",
        "            if leader_epoch >= -1 {")]),
    ("leader epochs asked for at a start only", [(
        "src/archive/writer.rs",
        "        self.partition.check_leader_epochs(self.last, &records, to).await?;\n", "")]),
    ("generations not sealed", [(
        "src/archive/generation.rs",
        "            match self.wait_out(\"seal the generation\", || io::create(self.store(), &key, &seal)).await {\n"
        "                Ok(_) => return Ok(loaded),",
        "            match self.wait_out(\"seal the generation\", || async { Ok((&key, &seal)) }).await {\n"
        "                Ok(_) => return Ok(loaded),")]),
    ("a truncated log begins at its start", [(
        "src/archive/generation.rs",
        "        if other.wholly {\n            return Ok(0);\n        }", "        if !other.why.is_empty() {\n            return Ok(0);\n        }")]),
    ("a listing begins behind the checkpoint", [(
        "src/archive/ledger.rs",
        "checkpoint.map(|to| layout::before_key(prefix, to))", "checkpoint.map(|to| layout::before_key(prefix, to + 1))")]),
]

RESTORE = [
    ("restore: the list behind the commit", [(
        "src/restore/going.rs",
        "        self.folder.put_piece(piece, &rows).await?;\n"
        "        self.sink.commit(self.plan.progress_topic()?, batch.end).await?;\n",
        "        self.sink.commit(self.plan.progress_topic()?, batch.end).await?;\n"
        "        self.folder.put_piece(piece, &rows).await?;\n")]),
    ("restore: the list before it is sent", [(
        "src/restore/going.rs",
        "        let answers = self.sink.send(&batch, self.plan.options.timestamps).await?;\n",
        "        self.folder.put_piece(Piece { start: batch.start, end: batch.end, run: self.run }, &[]).await?;\n"
        "        let answers = self.sink.send(&batch, self.plan.options.timestamps).await?;\n"), (
        "src/restore/going.rs",
        "        self.folder.put_piece(piece, &rows).await?;\n", "")]),
    ("restore: progress in a transaction of its own", [(
        "src/restore/delivery.rs",
        "        self.producer.commit(&self.group, topic, offset, PATIENCE).await\n",
        "        let old = self.target.committed(&self.group, topic, PATIENCE).await?.unwrap_or(0);\n"
        "        self.producer.commit(&self.group, topic, old, PATIENCE).await?;\n"
        "        self.producer.begin().await?;\n"
        "        self.producer.commit(&self.group, topic, offset, PATIENCE).await\n")]),
    ("restore: nothing is fenced", [(
        "src/restore/delivery.rs",
        "            Ok((producer.init_transactions(START).await?, producer))\n",
        "            Ok((Transactions::Ready, producer))\n")]),
    ("restore: progress is read, then fenced", [(
        "src/restore/ahead.rs",
        "        loop {\n            let (run, sink)",
        "        loop {\n            let early = target.committed(&plan.group, plan.progress_topic()?,"
        " std::time::Duration::from_secs(50)).await?;\n            let (run, sink)"), (
        "src/restore/ahead.rs",
        "            let progress = sink.progress(plan.progress_topic()?).await?;\n",
        "            let progress = early.and_then(|o| u64::try_from(o).ok()).filter(|_| sink.delivery() =="
        " Delivery::Transactional);\n")]),
    ("restore: lists are read, then the progress", [(
        "src/restore/ahead.rs",
        "            let progress = sink.progress(plan.progress_topic()?).await?;\n"
        "            let sent = folder.sent().await?;\n",
        "            let sent = folder.sent().await?;\n"
        "            let progress = sink.progress(plan.progress_topic()?).await?;\n")]),
    ("restore: the number is not looked at again", [(
        "src/restore/ahead.rs",
        "            if sent.last_run() < run || sent.closing.is_some() {",
        "            if sent.last_run() <= u32::MAX {")]),
    ("restore: no run is written", [(
        "src/restore/running.rs",
        "            if !folder.begin_run(ahead.run, start, &self.options.process).await? {",
        "            if ahead.run == u32::MAX {")]),
    ("restore: a run that is taken is begun all the same", [(
        "src/restore/running.rs",
        "            if !folder.begin_run(ahead.run, start, &self.options.process).await? {",
        "            if !folder.begin_run(ahead.run, start, &self.options.process).await? && ahead.run == u32::MAX {")]),
    ("restore: no turn is taken", [(
        "src/restore/planning.rs",
        "        turn::take(self.store(), &plan, &self.options.process).await?;\n", ""), (
        "src/restore/running.rs",
        "            turn::take(self.store(), plan, &self.options.process).await?;\n", "")]),
    ("restore: another's unfinished lists do not count", [(
        "src/restore/audit.rs",
        "        for (pieces, finished) in [(certain, true), (perhaps, false)] {",
        "        for (pieces, finished) in [(certain, true), (perhaps, false)].into_iter().skip(2) {")]),
    ("restore: the plan behind the first batch", [(
        "src/restore/planning.rs",
        "        Folder::new(self.store(), &draft.id).create_plan(&plan, &self.options.values).await?;\n", ""), (
        "src/restore/running.rs",
        "            if plan.delivery == Delivery::Plain {\n                self.end_plainly",
        "            Folder::new(self.store(), &plan.restore_id).create_plan(plan, &self.options.values).await?;\n"
        "            if plan.delivery == Delivery::Plain {\n                self.end_plainly")]),
    ("restore: every list counts", [(
        "src/restore/pieces.rs",
        "    let mut kept: Vec<Piece> = pieces.iter().filter(|p| !is_redone(p, runs)).copied().collect();",
        "    let mut kept: Vec<Piece> = pieces.iter().copied().collect();")]),
    ("restore: plainly, a later run stops nobody", [(
        "src/restore/going.rs",
        "self.plan.delivery == Delivery::Plain && self.folder.is_superseded(self.run).await?",
        "self.plan.delivery == Delivery::Plain && self.run == u32::MAX")]),
    ("restore: plainly, the end is no run", [(
        "src/restore/running.rs",
        "                self.end_plainly(&going).await?;\n", ""), (
        "src/restore/running.rs",
        "                Delivery::Plain => ahead.sent.runs.values().next_back() == Some(&start),\n",
        "                Delivery::Plain => true,\n")]),
    ("restore: what is refused with others is refused", [(
        "src/restore/delivery.rs",
        "            if one_by_one {\n                for (row, refusal)", "            if !one_by_one || one_by_one {\n                for (row, refusal)")]),
    ("restore: plainly, all is sent again behind a refusal", [(
        "src/restore/delivery.rs",
        "                self.producer.abort(PATIENCE).await?;\n                answers",
        "                self.producer.abort(PATIENCE).await?;\n            }\n            {\n                answers")]),
    ("restore: a refusal is forgotten with its batch", [(
        "src/restore/delivery.rs",
        "                    return Ok(answers.into_iter().flatten().collect());",
        "                    self.miscounts = false;\n"
        "                    return Ok(answers.into_iter().flatten().collect());")]),
    ("restore: who slept through its end has its turn once more", [(
        "src/restore/turn.rs",
        "        if folder.is_over().await? {\n            return Ok(None);", "        if own_number == 0 {\n            return Ok(None);"), (
        "src/restore/turn.rs",
        "        let folder = Folder::new(store, &plan.restore_id);\n        // It",
        "        let own_number = order.newest + 1;\n        let folder = Folder::new(store, &plan.restore_id);\n        // It")]),
    ("restore: the order is no chain", [(
        "src/restore/turn.rs",
        "            previous_sha256: self.sha256.clone(),", "            previous_sha256: None,")]),
    ("restore: a take-over that was killed is never listed", [(
        "src/restore/running.rs",
        "                if !closing.uncertain {", "                if !closing.uncertain && run == u32::MAX {"), (
        "src/restore/running.rs",
        "            if let Some(closing) = &ahead.sent.closing {\n                // Who",
        "            let run = ahead.run;\n            if let Some(closing) = &ahead.sent.closing {\n                // Who")]),
]
# (name, edits, the test that is to fail)
VARIANTS = [(*v, "no_seed_loses") for v in ARCHIVE] + [(*v, "no_seed_restores") for v in RESTORE]


def check():
    """Every old text must be in its file exactly once."""
    wrong = [
        f"{name}: {file} has it {(ROOT / file).read_text().count(old)} times"
        for name, edits, _ in VARIANTS
        for file, old, _ in edits
        if (ROOT / file).read_text().count(old) != 1
    ]
    for line in wrong:
        print(f"broken.py: {line}", file=sys.stderr)
    return not wrong


def run(copy, edits, test, seeds):
    """Returns the number of seeds that were needed and what was found, or None."""
    originals = {copy / file: (copy / file).read_text() for file, _, _ in edits}
    for file, old, new in edits:
        path = copy / file
        path.write_text(path.read_text().replace(old, new))
    try:
        return judge(copy, test, seeds)
    finally:
        for path, text in originals.items():
            path.write_text(text)


def judge(copy, test, seeds):
    env = os.environ | {"SIM_SEEDS": str(seeds), "RUST_BACKTRACE": "0"}
    done = subprocess.run(
        ["cargo", "test", "--release", "--locked", "--quiet", "--test", "sim", test, "--", "--nocapture"],
        cwd=copy, env=env, text=True, capture_output=True)
    found = re.search(r"^seed (\d+): \[\n\s*\"(.*)\"", done.stderr, re.M)
    if found:
        return int(found[1]), found[2]
    if done.returncode != 0 and "test result" not in done.stdout:
        sys.exit(f"broken.py: it does not build:\n{done.stderr[-3000:]}")
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--from", dest="start", help="begin with this one")
    parser.add_argument("--seeds", type=int, default=2000)
    args = parser.parse_args()
    if not check():
        return 1
    if args.check:
        return 0
    missed = 0
    print(f"{'broken rule':52} {'seeds':>6} {'s':>5}  found", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "dlq-archiver"
        ignore = shutil.ignore_patterns(".git", "target", ".venv", ".run", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignore)
        begun = args.start is None
        for name, edits, test in VARIANTS:
            begun = begun or args.start in name
            if not begun:
                continue
            if args.only and args.only not in name:
                continue
            began = time.monotonic()
            found = run(copy, edits, test, args.seeds)
            took = round(time.monotonic() - began)
            if found:
                print(f"{name:52} {found[0]:>6} {took:>5}  {found[1][:150]}", flush=True)
            else:
                missed += 1
                print(f"{name:52} {'-':>6} {took:>5}  NOT FOUND in {args.seeds} seeds", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
