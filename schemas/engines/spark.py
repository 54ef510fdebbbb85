# Spark. Parquet needs no schema: spark.read.parquet("ARCHIVE/data").
# JSONL: bytes are base64, unbase64(kafka_value_bytes). Set spark.sql.session.timeZone to UTC to see times as they are written.
# A pipeline's rows: WHERE pipeline_name = '...'. A condition on the folder alone misses those in pipeline=shared.00000000.
SCHEMA = """
    record_id STRING,
    kafka_cluster_id STRING,
    kafka_topic STRING,
    topic_generation INT,
    kafka_partition INT,
    kafka_offset BIGINT,
    kafka_timestamp TIMESTAMP,
    kafka_timestamp_ms BIGINT,
    kafka_timestamp_type STRING,
    kafka_key_text STRING,
    kafka_key_bytes STRING,
    kafka_value_text STRING,
    kafka_value_bytes STRING,
    kafka_key_size INT,
    kafka_value_size INT,
    kafka_headers ARRAY<STRUCT<name: STRING, name_bytes: STRING, value_text: STRING, value_bytes: STRING>>,
    pipeline_name STRING,
    dialect STRING,
    failure_key STRING,
    failed_at TIMESTAMP,
    error_class STRING,
    error_message STRING,
    error_code INT,
    error_stage STRING,
    error_component STRING,
    error_destination STRING,
    error_stacktrace STRING,
    attempts INT,
    origin_topic STRING,
    origin_partition INT,
    origin_offset BIGINT,
    origin_timestamp TIMESTAMP,
    origin_group STRING,
    event_id STRING,
    event_source STRING,
    event_type STRING,
    event_subject STRING,
    event_time TIMESTAMP,
    content_type STRING,
    payload_state STRING,
    prior_restores INT,
    decode_problems STRING,
    archived_at TIMESTAMP
"""


def dead_letters(spark, archive):
    return spark.read.schema(SCHEMA).json(f"{archive}/data")
