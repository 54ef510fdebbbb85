//! Exit codes only; everything else is in the library.

fn main() {
    dlq_archiver::kafka::memory::leave(dlq_archiver::cli::main())
}
