"""The archive as an analyst opens it: DuckDB and a plain glob.

Nothing here is of the program under test; it reads files and nothing else.
"""

import os
from pathlib import Path

import duckdb
import duckdb_extension_httpfs


def connect():
    # Off, or DuckDB would try to download what is missing instead of saying so.
    db = duckdb.connect(config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
    folder = Path(duckdb_extension_httpfs.__path__[0], "extensions", f"v{duckdb.__version__}")
    db.load_extension(str(folder / "httpfs.duckdb_extension"))
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        scheme, host = endpoint.split("://")
        db.execute(
            "CREATE SECRET (TYPE s3, KEY_ID $key, SECRET $secret, REGION $region, ENDPOINT $host, URL_STYLE 'path', USE_SSL $ssl)",
            {
                "key": os.environ["AWS_ACCESS_KEY_ID"],
                "secret": os.environ["AWS_SECRET_ACCESS_KEY"],
                "region": os.environ["AWS_REGION"],
                "host": host,
                "ssl": scheme == "https",
            },
        )
    db.execute("SET TimeZone = 'UTC'")
    return db


def path_of(archive):
    """An archive's address as DuckDB takes it."""
    return archive.removeprefix("file://").rstrip("/")


COLUMNS = {
    # What readers of JSON lines would otherwise guess from samples; the rest are text.
    "topic_generation": "INTEGER", "kafka_partition": "INTEGER", "kafka_offset": "BIGINT", "kafka_timestamp": "TIMESTAMPTZ",
    "kafka_timestamp_ms": "BIGINT", "kafka_key_size": "INTEGER", "kafka_value_size": "INTEGER",
    "kafka_headers": "STRUCT(name VARCHAR, name_bytes VARCHAR, value_text VARCHAR, value_bytes VARCHAR)[]",
    "failed_at": "TIMESTAMPTZ", "error_code": "INTEGER", "attempts": "INTEGER", "origin_partition": "INTEGER",
    "origin_offset": "BIGINT", "origin_timestamp": "TIMESTAMPTZ", "event_time": "TIMESTAMPTZ", "prior_restores": "INTEGER",
    "archived_at": "TIMESTAMPTZ",
}  # fmt: skip
ORDER = """record_id kafka_cluster_id kafka_topic topic_generation kafka_partition kafka_offset kafka_timestamp
kafka_timestamp_ms kafka_timestamp_type kafka_key_text kafka_key_bytes kafka_value_text kafka_value_bytes kafka_key_size
kafka_value_size kafka_headers pipeline_name dialect failure_key failed_at error_class error_message error_code error_stage
error_component error_destination error_stacktrace attempts origin_topic origin_partition origin_offset origin_timestamp
origin_group event_id event_source event_type event_subject event_time content_type payload_state prior_restores
decode_problems archived_at""".split()


def rows(archive, format="parquet"):
    """A FROM clause for all rows of the archive."""
    glob = f"{path_of(archive)}/data/*/*/*"
    if format == "parquet":
        return f"read_parquet('{glob}.parquet', hive_partitioning = true, hive_types_autocast = false)"
    columns = ", ".join(f"{name}: '{COLUMNS.get(name, 'VARCHAR')}'" for name in ORDER)
    return f"read_json('{glob}.jsonl*', format = 'newline_delimited', columns = {{{columns}}}, maximum_object_size = 67108864)"
