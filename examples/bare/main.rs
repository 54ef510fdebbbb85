//! The bare loops that the program is measured against (`make bench`): what librdkafka, Arrow and Parquet alone take for
//! the same work, written as one would in an afternoon. They use nothing of the program's own code but its dialects for
//! `decode`, and have glibc's allocator, with which they are faster than with the program's.
//!
//! usage: bare consume BROKERS TOPIC             read all records and drop them
//!        bare encode BROKERS TOPIC raw|all      and encode them to Parquet (zstd 1, one thread); the bytes are dropped
//!        bare decode BROKERS TOPIC              and decode their headers with the program's dialects
//!        bare produce BROKERS FROM TO COUNT [--transactions RECORDS]
//!
//! All but `produce` print the number of records and bytes (key and value) as JSON; `encode` also how many values each column
//! has that are not null, and the size of its files.

mod consume;
mod encode;
mod produce;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["consume", brokers, topic] => consume::drop_all(brokers, topic),
        ["encode", brokers, topic, "raw"] => encode::run(brokers, topic, false),
        ["encode", brokers, topic, "all"] => encode::run(brokers, topic, true),
        ["decode", brokers, topic] => consume::decode(brokers, topic),
        ["produce", brokers, from, to, count, ref rest @ ..] => produce::run(brokers, from, to, count.parse()?, rest),
        _ => Err("usage: see the top of examples/bare/main.rs".into()),
    }
}
