"""The query of schemas/dispositions.md, as an analyst runs it: DuckDB on an archive with discards and an undo.

usage: e2e_dispositions.py

Wants DLQ_ARCHIVER_BIN. Needs neither Kafka nor S3: `demo` makes the archive. Ends with 1 at the first thing that is wrong.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import archive_sql

BIN = os.environ["DLQ_ARCHIVER_BIN"]
DOCS = pathlib.Path(__file__).parents[2] / "schemas/dispositions.md"


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"e2e_dispositions: {' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def check(what, got, want):
    if got != want:
        sys.exit(f"e2e_dispositions: FAILED: {what}: {got}, not {want}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        run(BIN, "demo", "--dir", folder)
        archive = ["--archive", f"file://{folder}"]
        ids = [json.loads(line)["record_id"] for line in run(BIN, "list", *archive, "-o", "jsonl").splitlines()]

        def discard(*more):
            run(BIN, "discard", *archive, "--reason", "a test", "--yes", *more)

        discard("--all", "--by", "Ann")
        discard("--undo", *[f"--record-id={one}" for one in ids[::3]])
        discard(f"--record-id={ids[0]}")
        listed = run(BIN, "list", *archive, "-o", "jsonl", "--disposition", "discarded").splitlines()
        want = {json.loads(line)["record_id"]: json.loads(line)["discarded"] for line in listed}
        if not 0 < len(want) < len(ids):
            sys.exit(f"e2e_dispositions: FAILED: {len(want)} of {len(ids)} are discarded: nothing to tell apart")

        query = DOCS.read_text().split("```sql\n")[1].split("```")[0]
        db = archive_sql.connect()
        query = query.replace("s3://compliance/dlq", folder).rstrip().rstrip(";")
        # Times as text: Python wants a module for time zones otherwise.
        rows = db.sql(f"SELECT * REPLACE (\"at\"::VARCHAR AS \"at\") FROM ({query})").fetchall()
        check("each record once", sorted(row[0] for row in rows), sorted(ids))
        check("what is discarded", {row[0] for row in rows if row[1]}, set(want))
        for record_id, discarded, number, _, by, reason in rows:
            if discarded:
                check(f"the disposition of {record_id}", want[record_id]["object"], f"dispositions/{number:010}.json")
                check(f"who decided on {record_id}", (want[record_id]["by"].startswith(by), want[record_id]["reason"]), (True, reason))
            else:
                check(f"the undo of {record_id}", number, 2)
        print(f"e2e_dispositions: {len(want)} of {len(ids)} records are discarded, in DuckDB as in `list`")


main()
