//! The allocator, of Rust and of the C libraries, and its settings.
//!
//! Benches have this file too: what is measured allocates as the program does.
#![cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]

/// Brokers' answers and batches come and go by the mebibyte: glibc either gives each back to the system at once, which then
/// clears every page anew (a seventh of an archiver's time), or keeps heaps full of holes.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Memory that was freed goes back to the system after half a second, at the next call, and is used again until then, large blocks
/// too: at once took a tenth more time. With one arena what one thread freed is there for the others: with two, 30 to 60 MiB more
/// lay about (jemalloc(3), `TUNING`).
#[unsafe(export_name = "malloc_conf")]
pub static SETTINGS: &[u8] = b"oversize_threshold:0,dirty_decay_ms:500,muzzy_decay_ms:0,narenas:1\0";
