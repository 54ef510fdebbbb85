"""What a dead letter must be: one row of the archive against one record of expected.toml.

Knows no dialect: what a program should have written, and what that decodes to, is all in expected.toml. Starts nothing,
reads nothing.
"""

import datetime
import hashlib
import struct

# Of the archive's columns those that say what failed, where and why; the others are the record itself.
DECODED = """pipeline_name dialect failure_key failed_at error_class error_message error_code error_stage error_component
error_destination error_stacktrace attempts origin_topic origin_partition origin_offset origin_timestamp origin_group event_id
event_source event_type event_subject event_time content_type payload_state prior_restores decode_problems""".split()


def bytes_of(value):
    """A key or value as expected.toml has it: none, text, or {hex}, {int32}, {int64}."""
    match value:
        case None | {"null": True}:
            return None
        case str():
            return value.encode()
        case {"hex": text}:
            return bytes.fromhex(text)
        case {"int32": n}:
            return struct.pack(">i", n)
        case {"int64": n}:
            return struct.pack(">q", n)
    raise ValueError(f"not a key or value: {value}")


class Source:
    """A record that a producer gets."""

    def __init__(self, record, i):
        self.topic, self.partition = record["topic"], record.get("partition", 0)
        self.key, self.value = bytes_of(record.get("key")), bytes_of(record.get("value"))
        self.headers = [(name, bytes_of(value[0]) if value else None) for name, *value in record.get("headers", [])]
        self.timestamp = 1_760_000_000_000 + 1000 * i


def merged(common, record, sources, lists):
    """[common] with a record's own over it; `null` lists what of [common] is null here. A text in `front` and `added`
    stands for a list of [headers]; `source_*` can be named like a column."""
    out = {k: v for k, v in common.items() if k not in record.get("null", [])} | record
    for place in ("front", "added"):
        items = out.get(place, [])
        out[place] = [h for item in items for h in (lists[item] if isinstance(item, str) else [item])]
    if "source" in out:
        topic, partition, offset = out["source"].rsplit("/", 2)
        out |= {"source_topic": topic, "source_partition": int(partition), "source_offset": int(offset)}
        out["source_timestamp"] = sources[out["source"]].timestamp * 1000
    return out


def microseconds(time):
    return round(time.timestamp() * 1_000_000)


def hash_of(*fields):
    """The failure key, as src/dialect/key.rs describes it."""
    sha = hashlib.sha256()
    for field in fields:
        data = b"" if field is None else str(field).encode()
        sha.update(struct.pack(">I", 0xFFFFFFFF if field is None else len(data)) + data)
    return sha.hexdigest()[:32]


def failure_key(record):
    """The failure is that of the source's position, or what `failure` lists; where nothing tells (`false`), of the dead letter."""
    if "source" not in record or record.get("failure") is False:
        return hash_of("record", *record["id"].rsplit("/", 2))
    group = record.get("failure_group", record.get("origin_group"))
    fields = record.get("failure", [group, *record["source"].rsplit("/", 2)])
    return hash_of("failure", record["dialect"], *fields)


def column_agrees(wanted, row, column, rows):
    value = row[column]
    match wanted:
        case {"begins": text}:  # with more behind it
            return value is not None and value.startswith(text) and len(value) > len(text)
        case {"column": other}:
            return value is not None and value == rows[wanted.get("of", row["record_id"])][other]
        case datetime.datetime():
            return value == microseconds(wanted)
    return value == wanted and type(value) is type(wanted)


def header_agrees(wanted, value, columns):
    """`{text = COLUMN}`: the header is what the column is, in decimal if it is a number; {int32}, {int64}, {ms} in bytes."""
    match wanted:
        case {"text": column}:
            column = columns.get(column)
            if isinstance(column, dict):  # expected, where nothing was decoded
                return value is not None and value.decode().startswith(column["begins"])
            return value == (None if column is None else str(column).encode())
        case {"int32": str(column)}:
            return value == struct.pack(">i", columns[column])
        case {"int64": str(column)}:
            return value == struct.pack(">q", columns[column])
        case {"ms": column}:
            return value == struct.pack(">q", columns[column] // 1000)
        case {"some": True}:
            return bool(value)
    return value == bytes_of(wanted)


def short(value):
    """No whole stack traces in a report."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(value)} in all)"


def payload(row, what):
    text, data = row[f"kafka_{what}_text"], row[f"kafka_{what}_bytes"]
    return data if text is None else text.encode()


def archived_headers(row):
    out = []
    for h in row["kafka_headers"]:
        value = h["value_bytes"] if h["value_text"] is None else h["value_text"].encode()
        out.append((h["name"], value))
    return out


def headers_as_consumed(messages, rows):
    """The archive has what a plain consumer reads, byte for byte."""
    for m in messages:
        row = rows.get(f"{m.topic()}/{m.partition()}/{m.offset()}")
        if row is None:
            continue
        same = (m.headers() or [], m.key(), m.value(), m.timestamp()[1])
        if same != (archived_headers(row), payload(row, "key"), payload(row, "value"), row["kafka_timestamp_ms"]):
            yield f"{row['record_id']}: a plain consumer reads another record than was archived: {same}"


def differences(record, rows, sources, decoded):
    """What of a row is not as expected, a line each."""
    id, out = record["id"], []
    row = rows[id]
    source = sources[record["source"]] if "source" in record else None
    copies = record.get("copies", ["key", "value", "headers"]) if source else []
    for what in ("key", "value"):
        wanted = getattr(source, what) if what in copies else None
        if payload(row, what) != wanted:
            out.append(f"{id}: {what}: expected {wanted}, is {payload(row, what)}")

    known = record | ({c: row[c] for c in DECODED} if decoded else {})
    own = [(name, value, False) for name, value in source.headers] if "headers" in copies else []
    front, added = ([(name, value, True) for name, value in record[place]] for place in ("front", "added"))
    wanted = front + own + added
    names = [name for name, _, _ in wanted]
    headers = archived_headers(row)
    if record.get("order", True) is False:  # written from a map
        headers.sort(key=lambda h: names.index(h[0]) if h[0] in names else len(names))
    if [name for name, _ in headers] != names:
        out.append(f"{id}: headers: expected {names}, are {[(n, short(v)) for n, v in headers]}")
    else:
        for (name, value), (_, what, is_added) in zip(headers, wanted):
            agree = header_agrees(what, value, known) if is_added else value == what
            if not agree:
                out.append(f"{id}: header {name}: expected {what}, is {short(value)}")

    columns = {"failure_key": failure_key(record), "prior_restores": 0} | {c: record[c] for c in DECODED if c in record}
    for column in DECODED if decoded else []:
        if not column_agrees(columns.get(column), row, column, rows):
            out.append(f"{id}: {column}: expected {columns.get(column)}, is {short(row[column])}")
    return out
