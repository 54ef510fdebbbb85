//! Exit codes; the allocator is in its own file, everything else in the library.

mod allocator;

fn main() {
    dlq_archiver::kafka::memory::leave(dlq_archiver::cli::main())
}
