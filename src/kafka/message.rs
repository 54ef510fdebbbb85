//! A fetched message, read through rdkafka-sys: the safe header accessor panics on names that are not UTF-8 and cuts
//! names at NUL.

use crate::error::{Error, Result};
use crate::record::{Header, RawBatch, TimestampType};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka_sys as sys;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::os::raw::c_char;

/// One message as librdkafka holds it; nothing is copied until [`Message::copy_into`].
pub struct Message<'m>(&'m BorrowedMessage<'m>);

impl<'m> Message<'m> {
    pub(super) fn new(inner: &'m BorrowedMessage<'m>) -> Self {
        Self(inner)
    }
    pub fn topic(&self) -> &str {
        self.0.topic()
    }
    pub fn partition(&self) -> i32 {
        self.0.partition()
    }
    pub fn offset(&self) -> i64 {
        self.0.offset()
    }

    /// Bytes of key and value.
    pub fn size(&self) -> usize {
        self.0.key_len() + self.0.payload_len()
    }

    /// Copies the record into `batch`, byte for byte.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if librdkafka cannot parse the headers (it takes at most 100,000 of them).
    pub fn copy_into(&self, batch: &mut RawBatch) -> Result<()> {
        let ptr = self.0.ptr();
        let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: `ptr` is a live message of this client for as long as `self.0` is borrowed.
        let (timestamp_ms, leader_epoch) =
            unsafe { (sys::rd_kafka_message_timestamp(ptr, &mut kind), sys::rd_kafka_message_leader_epoch(ptr)) };
        let timestamp_type = match kind {
            sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME => TimestampType::LogAppendTime,
            _ => TimestampType::CreateTime,
        };
        // Walked twice, and each is a call or two into C.
        let headers: Vec<_> = self.headers()?.iter().collect();
        batch.push(
            self.offset(),
            timestamp_ms,
            timestamp_type,
            leader_epoch,
            self.0.key(),
            self.0.payload(),
            headers.iter().copied(),
        );
        Ok(())
    }

    fn headers(&self) -> Result<RawHeaders<'_>> {
        let mut list = std::ptr::null_mut();
        // SAFETY: as above; the list belongs to the message.
        let code = unsafe { sys::rd_kafka_message_headers(self.0.ptr(), &mut list) };
        match code {
            sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(RawHeaders::new(list)),
            sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__NOENT => Ok(RawHeaders::new(std::ptr::null_mut())),
            _ => Err(Error::corrupt(format!(
                "the headers of {}/{}/{} cannot be parsed (librdkafka takes at most 100,000 of them): the partition \
                 stops here rather than archive the record without them",
                self.topic(),
                self.partition(),
                self.offset()
            ))),
        }
    }
}

struct RawHeaders<'m> {
    list: *mut sys::rd_kafka_headers_t,
    count: usize,
    owner: PhantomData<&'m ()>,
}

impl<'m> RawHeaders<'m> {
    fn new(list: *mut sys::rd_kafka_headers_t) -> Self {
        // SAFETY: a list that is not null is live as long as its message.
        let count = if list.is_null() { 0 } else { unsafe { sys::rd_kafka_header_cnt(list) } };
        Self { list, count, owner: PhantomData }
    }

    fn iter(&self) -> impl Iterator<Item = Header<'m>> {
        let list = self.list;
        (0..self.count).map(move |i| {
            let (mut name, mut value, mut size) = (std::ptr::null(), std::ptr::null(), 0usize);
            // SAFETY: `i` is below the list's count, so name and value are set and live as long as the message.
            unsafe {
                sys::rd_kafka_header_get_all(list, i, &mut name, &mut value, &mut size);
                let value = (!value.is_null()).then(|| std::slice::from_raw_parts(value.cast::<u8>(), size));
                Header { name: header_name(name), value }
            }
        })
    }
}

/// The name with any NUL bytes in it. librdkafka hands out a C string, but keeps the length in front of it.
///
/// # Safety
/// `name` is a name that `rd_kafka_header_get_all` returned: the `rkhdr_name` of librdkafka's `rd_kafka_header_s`
/// (`rdkafka_header.h`), which has `size_t rkhdr_name_size` and `char *rkhdr_value` right in front of it. rdkafka-sys is
/// pinned to the exact version this was read from, and `header_names_with_nul_survive` fails if it changes.
unsafe fn header_name<'m>(name: *const c_char) -> &'m [u8] {
    // SAFETY: see above.
    unsafe {
        let cut = CStr::from_ptr(name).count_bytes();
        let size =
            name.cast::<u8>().sub(size_of::<*const c_char>() + size_of::<usize>()).cast::<usize>().read_unaligned();
        // A name with a NUL is longer than its C string and ends in NUL; anything else is an ordinary name.
        let exact = if size > cut && *name.add(size) == 0 { size } else { cut };
        std::slice::from_raw_parts(name.cast::<u8>(), exact)
    }
}
