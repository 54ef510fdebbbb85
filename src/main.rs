//! Exit codes only; everything else is in the library.

fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(dlq_archiver::cli::main())
}
