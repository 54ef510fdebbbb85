"""Where an archiver's CPU time goes, by stage: a profile of one `archive --once`.

usage: stages.py [--records N] [--profile FILE]

Wants what bench.py wants, and Linux's perf. `--profile`: one that `perf record -e cpu-clock --call-graph dwarf` left, nothing
is run. Else topic and archive are deleted at the end. A sample belongs to the first stage in the table below one of whose words
is in its stack.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

STAGES = [
    ("fetch: librdkafka's threads", None, r"^rdk:"),
    ("hash: SHA-256, MD5, XXH3", r"sha2::|md5::|[Xx]x[Hh]ash|checksum", None),
    ("compress: zstd", r"ZSTD_|HUF_|FSE_|zstd", None),
    ("decode headers", r"dialect::", None),
    ("upload: SDK, HTTP", r"aws_|hyper|store::s3", None),
    ("encode: columns, pages", r"cut::encode|parquet|arrow", None),
    ("group, intent", r"cut::group|cut::intent", None),
    ("poll and copy", None, r"^poll"),
    ("rest", "", None),
]


def samples(profile):
    """Thread and stack of each."""
    script = subprocess.run(["perf", "script", "--no-inline", "-i", profile, "-F", "comm,ip,sym"], capture_output=True, text=True)
    if script.returncode != 0:
        sys.exit(f"stages: perf script ended with {script.returncode}:\n{script.stderr[-4000:]}")
    for block in script.stdout.split("\n\n"):
        lines = block.strip("\n").split("\n")
        if lines and lines[0].strip():
            yield lines[0].strip(), "\n".join(lines[1:])


def stage(thread, stack):
    for name, words, of in STAGES:
        if of is not None and re.search(of, thread) or words is not None and re.search(words, stack):
            return name
    return STAGES[-1][0]


def table(profile):
    counts, kernel = {name: 0 for name, *_ in STAGES}, {name: 0 for name, *_ in STAGES}
    for thread, stack in samples(profile):
        name = stage(thread, stack)
        counts[name] += 1
        kernel[name] += bool(re.match(r"\s*ffff", stack))
    total = sum(counts.values())
    if total == 0:
        sys.exit(f"stages: {profile} has no samples")
    print("| stage | share | of it in the kernel |\n|---|---|---|")
    for name, count in counts.items():
        print(f"| {name} | {100 * count / total:.1f} % | {100 * kernel[name] / total:.1f} % |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--profile")
    args = parser.parse_args()
    if args.profile:
        return table(args.profile)
    import measure  # first: it finds tests/e2e
    import e2e

    with measure.cleaning(), tempfile.TemporaryDirectory() as folder:
        topic, archive = e2e.produce("stages-dlq", 8, args.records), e2e.archive_url("stages")
        profile = os.path.join(folder, "perf.data")
        perf = ["perf", "record", "-e", "cpu-clock", "-F", "149", "--call-graph", "dwarf,16384", "-o", profile]
        e2e.run(*perf, *e2e.archive_command(topic, archive))
        table(profile)


if __name__ == "__main__":
    sys.exit(main())
