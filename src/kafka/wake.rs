//! Wakes librdkafka's thread of a broker.
//!
//! Owns a queue for answers that nobody reads. Changes nothing of what is read, and from where.

use crate::record::TopicPartition;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka_sys as sys;

/// A thread that waits for no answer looks at partitions that were resumed once a second (`rd_kafka_max_block_ms`, and no wake-up
/// in `rd_kafka_toppar_pause_resume`, 2.12): with room for one cut at a time an archiver stood still as long as it read. Any
/// request to the broker wakes it, and ListOffsets is one that consumers may send and that moves nothing.
pub(super) struct Waker {
    client: *mut sys::rd_kafka_t,
    answers: *mut sys::rd_kafka_queue_t,
}

// SAFETY: librdkafka's clients and queues may be used from any thread, and by several at once.
unsafe impl Send for Waker {}
// SAFETY: as above.
unsafe impl Sync for Waker {}

impl Waker {
    /// # Safety
    /// The client must outlive it.
    pub(super) unsafe fn new(client: *mut sys::rd_kafka_t) -> Self {
        // SAFETY: by the caller.
        Self { client, answers: unsafe { sys::rd_kafka_queue_new(client) } }
    }

    /// The leaders of these partitions. Returns at once.
    pub(super) fn wake(&self, partitions: &[TopicPartition]) {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for tp in partitions {
            let added = list.add_partition_offset(&tp.topic, tp.partition, Offset::End);
            added.unwrap_or_else(|e| tracing::debug!("{tp}: {e}"));
        }
        self.drop_answers();
        // SAFETY: client and queue live; the list is copied; without options librdkafka has its own.
        unsafe { sys::rd_kafka_ListOffsets(self.client, list.ptr(), std::ptr::null(), self.answers) }
    }

    fn drop_answers(&self) {
        loop {
            // SAFETY: the queue lives; each event is destroyed once.
            unsafe {
                let answer = sys::rd_kafka_queue_poll(self.answers, 0);
                if answer.is_null() {
                    return;
                }
                sys::rd_kafka_event_destroy(answer);
            }
        }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.drop_answers();
        // SAFETY: the client lives; nothing uses the queue any more, and answers that are still to come are let go with it.
        unsafe { sys::rd_kafka_queue_destroy(self.answers) }
    }
}
