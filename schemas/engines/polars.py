# Polars. Parquet needs no schema: pl.scan_parquet("ARCHIVE/data/**/*.parquet", hive_partitioning=True).
# JSONL: bytes are base64, pl.col("kafka_value_bytes").str.decode("base64"); times come as text.
# A pipeline's rows: WHERE pipeline_name = '...'. A condition on the folder alone misses those in pipeline=shared.00000000.
import polars as pl

SCHEMA = {
    "record_id": pl.String,
    "kafka_cluster_id": pl.String,
    "kafka_topic": pl.String,
    "topic_generation": pl.Int32,
    "kafka_partition": pl.Int32,
    "kafka_offset": pl.Int64,
    "kafka_timestamp": pl.String,
    "kafka_timestamp_ms": pl.Int64,
    "kafka_timestamp_type": pl.String,
    "kafka_key_text": pl.String,
    "kafka_key_bytes": pl.String,
    "kafka_value_text": pl.String,
    "kafka_value_bytes": pl.String,
    "kafka_key_size": pl.Int32,
    "kafka_value_size": pl.Int32,
    "kafka_headers": pl.List(pl.Struct({"name": pl.String, "name_bytes": pl.String, "value_text": pl.String, "value_bytes": pl.String})),
    "pipeline_name": pl.String,
    "dialect": pl.String,
    "failure_key": pl.String,
    "failed_at": pl.String,
    "error_class": pl.String,
    "error_message": pl.String,
    "error_code": pl.Int32,
    "error_stage": pl.String,
    "error_component": pl.String,
    "error_destination": pl.String,
    "error_stacktrace": pl.String,
    "attempts": pl.Int32,
    "origin_topic": pl.String,
    "origin_partition": pl.Int32,
    "origin_offset": pl.Int64,
    "origin_timestamp": pl.String,
    "origin_group": pl.String,
    "event_id": pl.String,
    "event_source": pl.String,
    "event_type": pl.String,
    "event_subject": pl.String,
    "event_time": pl.String,
    "content_type": pl.String,
    "payload_state": pl.String,
    "prior_restores": pl.Int32,
    "decode_problems": pl.String,
    "archived_at": pl.String,
}
TIMES = ["kafka_timestamp", "failed_at", "origin_timestamp", "event_time", "archived_at"]


def dead_letters(archive, extension="jsonl.gz"):
    lines = pl.scan_ndjson(f"{archive}/data/**/*.{extension}", schema=SCHEMA)
    return lines.with_columns(pl.col(TIMES).str.to_datetime("%Y-%m-%dT%H:%M:%S%.6fZ", time_unit="us", time_zone="UTC"))
