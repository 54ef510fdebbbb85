"""Compares an archive with its topics, record by record: all of them, not a sample.

usage: compare.py BROKERS ARCHIVE TOPIC [--format parquet|jsonl] [--expect N]

One side is DuckDB over a plain glob of the data prefix, the other a plain read_committed consumer that knows nothing of
the archive. Key, value, headers (names, order, repeats, null against empty) and timestamp must be the same bytes, each
offset must be there once, and there must be no row that the topic does not have.
"""

import argparse
import base64
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

import archive_sql


def archived(db, archive, format, topic, partition):
    """Yields (offset, timestamp, key, value, headers) in the order of offsets."""
    un64 = "from_base64({})" if format == "jsonl" else "{}"
    raw = "coalesce(encode({0}_text), %s)" % un64.format("{0}_bytes")
    header = un64.format("h.{}_bytes")
    cursor = db.execute(
        f"""SELECT kafka_offset, kafka_timestamp_ms, kafka_timestamp_type, {raw.format("kafka_key")}, {raw.format("kafka_value")},
                   list_transform(kafka_headers, h -> coalesce({header.format("name")}, encode(h.name))),
                   list_transform(kafka_headers, h -> coalesce(encode(h.value_text), {header.format("value")})),
                   kafka_key_size, kafka_value_size
            FROM {archive_sql.rows(archive, format)}
            WHERE kafka_topic = ? AND kafka_partition = ? ORDER BY kafka_offset""",
        [topic, partition],
    )
    while rows := cursor.fetchmany(10_000):
        yield from rows


def consumed(brokers, topic, partition):
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "compare",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    try:
        while True:
            for message in consumer.consume(5000, 1.0):
                if message.error():
                    if message.error().code() == KafkaError._PARTITION_EOF:
                        return
                    sys.exit(f"consumer: {message.error()}")
                yield message
    finally:
        consumer.close()


def partitions(brokers, topic):
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "compare"})
    try:
        return sorted(consumer.list_topics(topic, 10).topics[topic].partitions)
    finally:
        consumer.close()


TYPES = {1: "CreateTime", 2: "LogAppendTime"}


def compare(db, brokers, archive, format, topic, partition):
    count = 0
    rows = archived(db, archive, format, topic, partition)
    for message in consumed(brokers, topic, partition):
        row = next(rows, None)
        if row is None:
            sys.exit(f"{topic}/{partition}/{message.offset()} is not in the archive")
        offset, timestamp, kind, key, value, names, values, key_size, value_size = row
        kafka_kind, kafka_timestamp = message.timestamp()
        headers = [(name.encode(), value) for name, value in message.headers() or []]
        theirs = (message.offset(), kafka_timestamp, TYPES[kafka_kind], message.key(), message.value(), headers)
        ours = (offset, timestamp, kind, key, value, list(zip(names, values)))
        if ours != theirs:
            sys.exit(f"{topic}/{partition}/{message.offset()} differs:\narchive {ours}\nKafka   {theirs}")
        if (key_size, value_size) != tuple(None if b is None else len(b) for b in (key, value)):
            sys.exit(f"{topic}/{partition}/{message.offset()}: sizes {key_size}, {value_size} are wrong")
        count += 1
    if (row := next(rows, None)) is not None:
        sys.exit(f"{topic}/{partition}/{row[0]} is in the archive and not in the topic (or there twice)")
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brokers")
    parser.add_argument("archive")
    parser.add_argument("topic")
    parser.add_argument("--format", default="parquet")
    parser.add_argument("--expect", type=int)
    args = parser.parse_args()
    db = archive_sql.connect()
    begin = time.monotonic()
    source = archive_sql.rows(args.archive, args.format)
    total, distinct = db.execute(
        f"SELECT count(*), count(DISTINCT (kafka_partition, kafka_offset)) FROM {source} WHERE kafka_topic = ?", [args.topic]
    ).fetchone()
    if total != distinct:
        sys.exit(f"{total} rows, but {distinct} distinct positions: records are there twice")
    if args.expect is not None and total != args.expect:
        sys.exit(f"{total} rows where {args.expect} were expected")
    same = sum(
        compare(db, args.brokers, args.archive, args.format, args.topic, p) for p in partitions(args.brokers, args.topic)
    )
    if same != total:
        sys.exit(f"{total} rows, {same} of them compared")
    print(f"{same} records equal, none twice, none missing, in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
