//! The C library under librdkafka: memory that is freed goes back to the system, and how the process ends.

/// To be called before anything is allocated in earnest. Without effect where another allocator is linked (`allocator.rs`).
///
/// glibc maps large blocks apart, and gives them back when they are freed; but it raises the size from which it does so
/// to that of the largest block that was freed, up to 32 MiB (mallopt(3), `M_MMAP_THRESHOLD`). Brokers' answers, batches
/// and objects then come from heaps that are full of holes. A size that is set stays: with 500 partitions of records of
/// 1 MiB and a budget of 256 MiB the peak was 359 MiB in place of 579 MiB.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets a number of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}

/// Ends the process at once. What C libraries registered for its end is not run: it frees what librdkafka's threads, which
/// nobody can wait for, may still use ("malloc_consolidate(): invalid chunk size" was seen at the end of a `tail`).
pub fn leave(code: u8) -> ! {
    use std::io::Write;
    // Whoever closed it does not want it.
    let _ = std::io::stdout().flush();
    // SAFETY: ends the process; nothing of it is used afterwards.
    unsafe { libc::_exit(i32::from(code)) }
}
