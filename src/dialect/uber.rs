//! Keys that Uber's consumer proxy writes: a protobuf message that tells of the original, which is gone otherwise.
//!
//! Owns the wire format, as far as this one message needs it (protobuf.dev, "Encoding"). Field numbers: 1 retry count,
//! 2 topic, 3 partition, 4 offset, 5 timestamp in nanoseconds, 6 the original key.

/// The names that the key's fields have as headers.
pub(crate) const FIELDS: [&str; 6] =
    ["uber.retry_count", "uber.topic", "uber.partition", "uber.offset", "uber.timestamp_ns", KEY];
/// The original key: null where the message has none.
pub(crate) const KEY: &str = "uber.key";

/// A field as a header would hold it: numbers in decimal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    Number(i64),
    Bytes(&'a [u8]),
}

/// The fields that are there, by their place in [`FIELDS`]; `None` if the key is no such message. Of a field that comes
/// twice the last counts, as protobuf has it; unknown fields are skipped.
pub(crate) fn fields(mut key: &[u8]) -> Option<[Option<Part<'_>>; 6]> {
    let mut found: [Option<Part<'_>>; 6] = Default::default();
    while !key.is_empty() {
        let tag = varint(&mut key)?;
        let part = match tag & 7 {
            0 => Part::Number(varint(&mut key)?.cast_signed()),
            1 => Part::Bytes(take(&mut key, 8)?),
            2 => {
                let len = varint(&mut key)?;
                Part::Bytes(take(&mut key, usize::try_from(len).ok()?)?)
            }
            5 => Part::Bytes(take(&mut key, 4)?),
            _ => return None,
        };
        let number = usize::try_from(tag >> 3).ok().filter(|n| *n > 0)?;
        let is_text = matches!(number, 2 | 6);
        if let Some(field) = found.get_mut(number - 1) {
            if is_text != (tag & 7 == 2) || !is_text && tag & 7 != 0 {
                return None;
            }
            *field = Some(part);
        }
    }
    Some(found)
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        let bits = u64::from(byte & 0x7f);
        n |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits)?;
        if byte & 0x80 == 0 {
            return Some(n);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_of_the_original() {
        let key =
            b"\x08\x03\x12\x05trips\x18\x07\x20\xac\x02\x28\x80\x80\x80\x80\x80\x80\x80\x80\x18\x32\x02k1\x7a\x01x";
        let [count, topic, partition, offset, timestamp, original] = fields(key).unwrap();
        assert_eq!((count, topic), (Some(Part::Number(3)), Some(Part::Bytes(b"trips"))));
        assert_eq!((partition, offset), (Some(Part::Number(7)), Some(Part::Number(300))));
        assert_eq!((timestamp, original), (Some(Part::Number(24 << 56)), Some(Part::Bytes(b"k1"))));
        assert_eq!(fields(b"").unwrap(), [None, None, None, None, None, None]);
        // Absent is 0 in protobuf; a negative number takes ten bytes.
        assert_eq!(fields(b"\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").unwrap()[3], Some(Part::Number(-1)));
    }

    #[test]
    fn other_keys_are_none() {
        let cases: [&[u8]; 9] = [
            b"order-7",
            b"\x12\x05trip",
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x10\x05",
            b"\x0a\x01x",
            b"\x08",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
            b"\x00\x01",
            b"\x0b",
        ];
        for bad in cases {
            assert_eq!(fields(bad), None, "{bad:?}");
        }
    }
}
