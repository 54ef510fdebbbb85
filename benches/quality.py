"""How good the files are that a large archive consists of, and how much of them DuckDB reads for questions by a plain glob.

usage: quality.py [--records N] [--json FILE] [--keep] [--archive URL]

Wants what tests/e2e/e2e.py wants, and BARE_BIN as measure_restore.py does: `benches/run.sh quality` sees to it. Not run by
`make test`: 5,000,000 records take five minutes on two idle cores, and 6 GB of disk for a while. `--keep` leaves the archive for
`--archive`, which produces nothing, and takes what measure_restore.py left, too; it needs services of `make up`, as others end
with the run. What is made is deleted at the end. It prints

- bytes a record, and what they are: each column of all objects, bloom filters, page indexes, footers;
- how large objects, row groups and pages are. Pages are counted by their headers, in some objects;
- what DuckDB asks for and gets, through a proxy that counts: requests, and the bytes of them and of their answers.
"""

import argparse
import collections
import json
import os
import statistics
import sys
import time

import measure  # first: it finds tests/e2e
import archive_sql
import e2e
import measure_restore
import proxy
import s3

# Objects whose pages are looked at.
SAMPLE = 40
ENCODINGS = {0: "PLAIN", 2: "PLAIN_DICTIONARY", 3: "RLE", 5: "DELTA_BINARY_PACKED", 6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY", 8: "RLE_DICTIONARY", 9: "BYTE_STREAM_SPLIT"}  # fmt: skip
DICTIONARY_PAGE = 2


class Counter(proxy.Counter):
    """Counts the objects that were asked for, too."""

    def __init__(self, archive):
        host, port = os.environ["AWS_ENDPOINT_URL"].split("://")[1].split(":")
        super().__init__(host, int(port), archive)
        self.gets = collections.Counter()

    def kind(self, method, target):
        if method == "GET" and "list-type" not in target:
            self.gets[target.partition("?")[0]] += 1
        return super().kind(method, target)


def connect(port=None):
    """DuckDB without any cache, through a proxy at `port` if there is one."""
    direct = os.environ["AWS_ENDPOINT_URL"]
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}" if port else direct
    try:
        return archive_sql.connect()
    finally:
        os.environ["AWS_ENDPOINT_URL"] = direct


class Thrift:
    """As much of Thrift's compact protocol as page headers need: structs are dicts by field number."""

    def __init__(self, data, at):
        self.data, self.at = data, at

    def varint(self):
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def number(self):
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def take(self, count):
        self.at += count
        return self.data[self.at - count : self.at]

    def value(self, kind):
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self.take(1)
        if kind in (4, 5, 6):
            return self.number()
        if kind == 8:
            return self.take(self.varint())
        if kind == 12:
            return self.struct()
        e2e.fail(f"a page header has a field of type {kind}")

    def struct(self):
        fields, number = {}, 0
        while head := self.take(1)[0]:
            number = number + (head >> 4) if head >> 4 else self.number()
            fields[number] = self.value(head & 15)
        return fields


def pages(data, chunk):
    """The encodings of a column chunk's data pages, with how often each is there."""
    found, end = collections.Counter(), chunk["start"] + chunk["size"]
    thrift = Thrift(data, chunk["start"])
    while thrift.at < end:
        header = thrift.struct()
        if header[1] != DICTIONARY_PAGE:
            encoding = header[5][2] if 5 in header else header[8][4]
            found[ENCODINGS.get(encoding, str(encoding))] += 1
        thrift.at += header[3]
    return found


def spread(values):
    """Least, median, greatest."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def shape(db, glob, sizes):
    """Objects, row groups, and what their bytes are."""
    files = db.execute(f"SELECT num_rows, num_row_groups, footer_size FROM parquet_file_metadata('{glob}')").fetchall()
    groups = db.execute(f"SELECT row_group_num_rows FROM parquet_metadata('{glob}') WHERE column_id = 0").fetchall()
    columns, of_columns = db.execute(
        f"""SELECT path_in_schema, sum(total_compressed_size)::BIGINT, sum(total_uncompressed_size)::BIGINT,
                   coalesce(sum(bloom_filter_length), 0)::BIGINT, list_sort(list_distinct(flatten(list(string_split(encodings, ', '))))),
                   list_sort(list_distinct(list(compression))), bool_and(stats_min_value IS NOT NULL OR stats_null_count = num_values),
                   count(stats_min_value) > 0, bool_and(coalesce(stats_null_count = num_values, false))
            FROM parquet_metadata('{glob}') GROUP BY path_in_schema, column_id ORDER BY column_id"""
    ).fetchall(), []
    for name, stored, plain, bloom, encodings, codecs, always, some, empty in columns:
        told = "all null" if empty else "yes" if always else "some" if some else "no"
        of_columns.append(
            {"column": name, "compressed": stored, "uncompressed": plain, "bloom": bloom, "encodings": encodings, "codecs": codecs, "statistics": told}
        )
    rows, total = sum(rows for rows, _, _ in files), sum(sizes)
    chunks, bloom, footers = (sum(c["compressed"] for c in of_columns), sum(c["bloom"] for c in of_columns), sum(f for _, _, f in files))
    result = {
        "objects": len(sizes),
        "records": rows,
        "bytes": total,
        "bytes_a_record": total / rows,
        # Per object, 4 bytes at its begin and 8 at its end.
        "parts": {"columns": chunks, "bloom filters": bloom, "footers": footers, "page indexes": total - chunks - bloom - footers - 12 * len(sizes)},
        "rows_an_object": spread([rows for rows, _, _ in files]),
        "bytes_an_object": spread(sizes),
        "row_groups_an_object": spread([count for _, count, _ in files]),
        "rows_a_row_group": spread([rows for (rows,) in groups]),
    }
    return result, of_columns


def paging(db, archive, paths):
    """Pages of some objects, all row groups and columns: by column and encoding, and how many an object has."""
    chosen = sorted(paths)[:: max(1, len(paths) // SAMPLE)][:SAMPLE]
    names = [f"s3:/{path}" for path in chosen]
    chunks = db.execute(
        """SELECT file_name, path_in_schema, least(coalesce(nullif(dictionary_page_offset, 0), data_page_offset), data_page_offset), total_compressed_size
           FROM parquet_metadata($names)""",
        {"names": names},
    ).fetchall()
    by_column, by_object = collections.defaultdict(collections.Counter), []
    for path, name in zip(chosen, names):
        data, count = s3.request("GET", path), 0
        for _, column, start, size in (chunk for chunk in chunks if chunk[0] == name):
            found = pages(data, {"start": start, "size": size})
            by_column[column].update(found)
            count += found.total()
        by_object.append(count)
    return by_column, {"objects": len(chosen), "pages_an_object": spread(by_object)}


def asked(archive, questions, total, result):
    """What DuckDB reads for each: a new connection every time, so nothing is known before."""
    for name, sql in questions.items():
        begin = time.monotonic()
        rows = connect().execute(sql).fetchall()
        seconds, counted = time.monotonic() - begin, Counter(archive)
        if connect(counted.port).execute(sql).fetchall() != rows:
            e2e.fail(f"{name}: another answer through the proxy")
        requests, size = counted.taken()
        read = sum(size.values())
        result["questions"].append(
            {"question": name, "rows": len(rows), "seconds": seconds, "requests": requests, "bytes": size, "objects": len(counted.gets), "share": read / total}
        )
        print(f"{name}: {seconds:.1f} s, {requests}, {read / measure.MIB:.1f} MiB", file=sys.stderr, flush=True)


def questions(archive, day, records):
    rows = archive_sql.rows(archive)
    # What `produce` names one event, at noon of the sixth day: in the middle of the cut's objects.
    event = f"8798{records * 11 // 20:010}"
    found = connect().execute(f"SELECT record_id, kafka_topic, kafka_partition, kafka_offset, dt FROM {rows} WHERE event_id = '{event}'").fetchall()
    if len(found) != 1:
        e2e.fail(f"event {event} is there {len(found)} times")
    ((record, topic, partition, offset, dt),) = found
    one = f"SELECT record_id, pipeline_name, error_class, error_message, kafka_value_text FROM {rows} WHERE"
    return {
        "count of all records (footers alone)": f"SELECT count(*) FROM {rows}",
        "count by error class on the last day": f"SELECT error_class, count(*) FROM {rows} WHERE dt = '{day}' GROUP BY ALL ORDER BY ALL",
        "one event by event_id": f"{one} event_id = '{event}'",
        "one event by event_id and dt": f"{one} event_id = '{event}' AND dt = '{dt}'",
        "one event by record_id": f"{one} record_id = '{record}'",
        "one event by record_id and dt": f"{one} record_id = '{record}' AND dt = '{dt}'",
        "one event by kafka_partition, kafka_offset": f"{one} kafka_topic = '{topic}' AND kafka_partition = {partition} AND kafka_offset = {offset}",
    }


def range_of(spread):
    return f"{spread['min']:.0f} / {spread['median']:.0f} / {spread['max']:.0f}"


def tables(result):
    about, by_page = result["archive"], result["pages"]
    print(f"{about['records']} records in {about['objects']} objects, {measure_restore.mib(about['bytes'])}: {about['bytes_a_record']:.1f} bytes a record\n")
    print("| part | MiB | % | bytes a record |\n|---|---|---|---|")
    for part, size in about["parts"].items():
        print(f"| {part} | {size / measure.MIB:.2f} | {100 * size / about['bytes']:.2f} | {size / about['records']:.2f} |")
    print("\n| | min / median / max |\n|---|---|")
    for name in ("rows_an_object", "bytes_an_object", "row_groups_an_object", "rows_a_row_group"):
        print(f"| {name.replace('_', ' ')} | {range_of(about[name])} |")
    print(f"| pages an object, of all columns ({by_page['objects']} objects) | {range_of(by_page['pages_an_object'])} |")
    print("\n| column | stored MiB | uncompressed MiB | ratio | % of stored | bytes a record | codec | encodings | pages of the sample | statistics | bloom MiB |")
    print("|" + "---|" * 11)
    for c in sorted(result["columns"], key=lambda c: -c["compressed"]):
        sampled = ", ".join(f"{count} {name}" for name, count in sorted(c["pages"].items()))
        print(
            f"| {c['column']} | {c['compressed'] / measure.MIB:.2f} | {c['uncompressed'] / measure.MIB:.2f} | {c['uncompressed'] / c['compressed']:.2f} "
            f"| {100 * c['compressed'] / about['bytes']:.2f} | {c['compressed'] / about['records']:.2f} | {', '.join(c['codecs'])} "
            f"| {', '.join(c['encodings'])} | {sampled} | {c['statistics']} | {c['bloom'] / measure.MIB:.2f} |"
        )
    print("\n| DuckDB | rows | s | objects | requests | of them | MiB | % of data |\n|---|---|---|---|---|---|---|---|")
    for q in result["questions"]:
        of = ", ".join(f"{count} {kind.removesuffix(' data')}" for kind, count in sorted(q["requests"].items()))
        print(
            f"| {q['question']} | {q['rows']} | {q['seconds']:.1f} | {q['objects']} | {sum(q['requests'].values())} | {of} "
            f"| {sum(q['bytes'].values()) / measure.MIB:.2f} | {100 * q['share']:.2f} |"
        )


def look(args):
    archive = args.archive or measure_restore.fill(args)
    paths = s3.sizes(f"{archive}/data/")
    db, glob = connect(), f"{archive}/data/*/*/*.parquet"
    result = {"questions": []}
    result["archive"], result["columns"] = shape(db, glob, list(paths.values()))
    by_column, result["pages"] = paging(db, archive, list(paths))
    for column in result["columns"]:
        column["pages"] = by_column[column["column"]]
    day = max(path.split("/dt=")[1].split("/")[0] for path in paths)
    about = result["archive"]
    asked(archive, questions(archive, day, about["records"]), about["bytes"], result)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=measure.at_least_1, default=5_000_000, help="with few, objects are so small that engines read all of them")
    parser.add_argument("--json", type=measure.to_file, metavar="FILE")
    parser.add_argument("--keep", action="store_true", help=measure.KEEP)
    parser.add_argument("--archive", type=measure.left_archive, metavar="URL", help="one that was left")
    args = parser.parse_args()
    with measure.cleaning(args.keep):
        result = look(args)
        tables(result)
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
