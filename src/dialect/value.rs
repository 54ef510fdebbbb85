//! From a header's bytes to a column's value: the encodings, their bounds, and the notes on what did not fit.
//!
//! Owns no table and no record. Invariant: every input gives a value or a note, and no note holds a byte of input.

use super::table::{Encoding, Field, OriginalEncoding, Unit};
use crate::record::as_text;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::borrow::Cow;

/// 1970-01-01 to 9999-12-31, in microseconds: what every SQL engine reads (`schemas/record.md`).
const LAST_US: i64 = 253_402_300_799_999_999;
const MOST_NOTES: usize = 16;

/// A decoded field. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Value<'a> {
    #[default]
    None,
    Text(Cow<'a, str>),
    Int(i64),
}

/// Problem notes: short, each once, bounded in number.
#[derive(Debug, Default)]
pub(crate) struct Notes(Vec<Cow<'static, str>>);

impl Notes {
    pub fn add(&mut self, header: &str, what: &str) {
        if self.0.len() > MOST_NOTES {
            return;
        }
        if self.0.len() == MOST_NOTES {
            self.0.push(Cow::Borrowed("more problems than are listed"));
            return;
        }
        let note = format!("{header}: {what}");
        if !self.0.iter().any(|n| *n == note) {
            self.0.push(Cow::Owned(note));
        }
    }

    pub fn into_vec<'a>(self) -> Vec<Cow<'a, str>> {
        self.0.into_iter().collect()
    }
}

/// Text of any bytes: what is not UTF-8, and U+0000, becomes U+FFFD. Borrows where nothing is replaced.
pub(crate) fn text<'a>(bytes: Cow<'a, [u8]>, header: &str, notes: &mut Notes) -> Cow<'a, str> {
    let (text, valid) = match bytes {
        // Looked at as a whole first: several times as fast as the lossy reading, and nearly all is valid.
        Cow::Borrowed(b) if let Some(text) = as_text(b) => return Cow::Borrowed(text),
        Cow::Borrowed(b) => match str::from_utf8(b) {
            Ok(text) => (Cow::Borrowed(text), true),
            Err(_) => (String::from_utf8_lossy(b), false),
        },
        Cow::Owned(b) => match String::from_utf8(b) {
            Ok(text) => (Cow::Owned(text), true),
            Err(e) => (Cow::Owned(String::from_utf8_lossy(e.as_bytes()).into_owned()), false),
        },
    };
    if !valid {
        notes.add(header, "not UTF-8, U+FFFD put in");
    }
    if !text.as_bytes().contains(&0) {
        return text;
    }
    notes.add(header, "has U+0000, U+FFFD put in");
    Cow::Owned(text.replace('\0', "\u{FFFD}"))
}

/// Text of a text field: decoded as `encoding` says. `None` if it cannot be.
pub(crate) fn encoded_text<'a>(
    bytes: Cow<'a, [u8]>,
    encoding: Encoding,
    header: &str,
    notes: &mut Notes,
) -> Option<Cow<'a, str>> {
    if !matches!(encoding, Encoding::Base64 | Encoding::Base64OrText) {
        return Some(text(bytes, header, notes));
    }
    match STANDARD.decode(&bytes) {
        Ok(decoded) => Some(text(Cow::Owned(decoded), header, notes)),
        Err(_) if encoding == Encoding::Base64 => {
            notes.add(header, "not base64");
            None
        }
        Err(_) => {
            notes.add(header, "not base64, taken as text");
            Some(text(bytes, header, notes))
        }
    }
}

/// An original's key or value as it was; `None` if it is not there as the table says.
pub(crate) fn original(bytes: Option<Cow<'_, [u8]>>, encoding: OriginalEncoding) -> Option<Option<Cow<'_, [u8]>>> {
    match (bytes, encoding) {
        (Some(bytes), OriginalEncoding::Base64) => STANDARD.decode(&bytes).ok().map(|b| Some(Cow::Owned(b))),
        (bytes, _) => Some(bytes),
    }
}

fn decimal(bytes: &[u8]) -> Result<i64, &'static str> {
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err("not a decimal integer");
    }
    // Digits are UTF-8, so what fails here is the size.
    str::from_utf8(bytes).ok().and_then(|s| s.parse().ok()).ok_or("out of range")
}

fn big_endian(bytes: &[u8]) -> i64 {
    let negative = bytes.first().is_some_and(|b| b & 0x80 != 0);
    bytes.iter().fold(if negative { -1 } else { 0 }, |n, b| (n << 8) | i64::from(*b))
}

fn integer(bytes: &[u8], encoding: Encoding) -> Result<i64, &'static str> {
    match (encoding, bytes.len()) {
        (Encoding::BeInt32, 4) | (Encoding::BeInt64, 8) | (Encoding::BeSigned, 1..=8) => Ok(big_endian(bytes)),
        (Encoding::BeInt32, _) => Err("not 4 bytes"),
        (Encoding::BeInt64, _) => Err("not 8 bytes"),
        (Encoding::BeSigned, _) => Err("not 1 to 8 bytes"),
        (Encoding::DecimalOrBe, 4 | 8) if !bytes.iter().all(u8::is_ascii_digit) => {
            // "-123" too is decimal, and then out of range: big-endian it would be an absurd number.
            decimal(bytes).or(Ok(big_endian(bytes)))
        }
        _ => decimal(bytes),
    }
}

/// The value of an integer field, within the field's bounds; `Ok(None)` for a partition or offset -1, which is Kafka's "none".
pub(crate) fn integer_field(
    bytes: &[u8],
    encoding: Encoding,
    add: i32,
    field: Field,
) -> Result<Option<i64>, &'static str> {
    let n = integer(bytes, encoding)?;
    if n == -1 && field.is_position() {
        return Ok(None);
    }
    let n = n.checked_add(i64::from(add)).ok_or("out of range")?;
    let bounds = match field {
        Field::OriginOffset => 0..=i64::MAX,
        Field::ErrorCode => i64::from(i32::MIN)..=i64::from(i32::MAX),
        _ => 0..=i64::from(i32::MAX),
    };
    if bounds.contains(&n) { Ok(Some(n)) } else { Err("out of range") }
}

/// Microseconds since 1970 of a time field; `Ok(None)` for -1, which is Kafka's "no timestamp".
pub(crate) fn time_field(bytes: &[u8], encoding: Encoding, unit: Unit) -> Result<Option<i64>, &'static str> {
    if encoding == Encoding::Rfc3339 {
        let text = str::from_utf8(bytes).map_err(|_| "not an RFC 3339 time")?;
        let time = chrono::DateTime::parse_from_rfc3339(text).map_err(|_| "not an RFC 3339 time")?;
        return in_range(Some(time.timestamp_micros())).map(Some);
    }
    let n = integer(bytes, encoding)?;
    if n == -1 {
        return Ok(None);
    }
    let us = match unit {
        Unit::S => n.checked_mul(1_000_000),
        Unit::Ms => n.checked_mul(1000),
        Unit::Us => Some(n),
        Unit::Ns => Some(n.div_euclid(1000)),
    };
    in_range(us).map(Some)
}

/// A Kafka timestamp in microseconds; `Ok(None)` for -1.
pub(crate) fn kafka_time(ms: i64) -> Result<Option<i64>, &'static str> {
    if ms == -1 { Ok(None) } else { in_range(ms.checked_mul(1000)).map(Some) }
}

fn in_range(us: Option<i64>) -> Result<i64, &'static str> {
    us.filter(|us| (0..=LAST_US).contains(us)).ok_or("out of range")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(bytes: &[u8], encoding: Encoding) -> Result<i64, &'static str> {
        integer(bytes, encoding)
    }

    #[test]
    fn integers_are_read_as_their_encoding_says() {
        assert_eq!(int(b"42", Encoding::Decimal), Ok(42));
        assert_eq!(int(b"-3", Encoding::Decimal), Ok(-3));
        for bad in [&b""[..], b"-", b"+1", b" 1", b"1 ", b"0x1", b"five", b"\xff", b"1\0", b"--1"] {
            assert_eq!(int(bad, Encoding::Decimal), Err("not a decimal integer"), "{bad:?}");
        }
        assert_eq!(int(b"9223372036854775808", Encoding::Decimal), Err("out of range"));
        assert_eq!(int(&[0, 0, 0, 5], Encoding::BeInt32), Ok(5));
        assert_eq!(int(&[0xff; 4], Encoding::BeInt32), Ok(-1));
        assert_eq!(int(&[0, 0, 5], Encoding::BeInt32), Err("not 4 bytes"));
        assert_eq!(int(&[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], Encoding::BeInt64), Ok(i64::MAX));
        assert_eq!(int(&[0x80, 0, 0, 0, 0, 0, 0, 0], Encoding::BeInt64), Ok(i64::MIN));
        assert_eq!(int(&[0x01, 0x99], Encoding::BeSigned), Ok(0x199));
        assert_eq!(int(&[0x80], Encoding::BeSigned), Ok(-128));
        assert_eq!(int(&[], Encoding::BeSigned), Err("not 1 to 8 bytes"));
        assert_eq!(int(&[0; 9], Encoding::BeSigned), Err("not 1 to 8 bytes"));
        assert_eq!(int(b"1234", Encoding::DecimalOrBe), Ok(1234));
        assert_eq!(int(b"12345678", Encoding::DecimalOrBe), Ok(12_345_678));
        assert_eq!(int(&[0, 0, 0, 5], Encoding::DecimalOrBe), Ok(5));
        assert_eq!(int(b"7", Encoding::DecimalOrBe), Ok(7));
        assert_eq!(int(&[0, 5], Encoding::DecimalOrBe), Err("not a decimal integer"));
    }

    #[test]
    fn integers_are_bounded_by_their_field() {
        let field = |bytes, field| integer_field(bytes, Encoding::Decimal, 0, field);
        assert_eq!(field(b"-1", Field::OriginPartition), Ok(None));
        assert_eq!(field(b"-1", Field::OriginOffset), Ok(None));
        assert_eq!(field(b"-1", Field::Attempts), Err("out of range"));
        assert_eq!(field(b"-2", Field::OriginPartition), Err("out of range"));
        assert_eq!(field(b"-2", Field::OriginOffset), Err("out of range"));
        assert_eq!(field(b"2147483648", Field::OriginPartition), Err("out of range"));
        assert_eq!(field(b"2147483648", Field::OriginOffset), Ok(Some(2_147_483_648)));
        assert_eq!(field(b"-7", Field::ErrorCode), Ok(Some(-7)));
        assert_eq!(integer_field(b"0", Encoding::Decimal, -1, Field::Attempts), Err("out of range"));
        assert_eq!(
            integer_field(b"-9223372036854775808", Encoding::Decimal, -1, Field::ErrorCode),
            Err("out of range")
        );
    }

    #[test]
    fn times_are_microseconds_within_1970_to_9999() {
        let rfc = |s: &str| time_field(s.as_bytes(), Encoding::Rfc3339, Unit::Ms);
        assert_eq!(rfc("2026-10-08T14:11:24.228703Z"), Ok(Some(1_791_468_684_228_703)));
        assert_eq!(rfc("1970-01-01T01:00:00+01:00"), Ok(Some(0)));
        assert_eq!(rfc("1969-12-31T23:59:59Z"), Err("out of range"));
        assert_eq!(rfc("yesterday"), Err("not an RFC 3339 time"));
        let ms = |n: i64| time_field(n.to_string().as_bytes(), Encoding::Decimal, Unit::Ms);
        assert_eq!(ms(-1), Ok(None));
        assert_eq!(ms(-2), Err("out of range"));
        assert_eq!(ms(253_402_300_799_999), Ok(Some(253_402_300_799_999_000)));
        assert_eq!(ms(253_402_300_800_000), Err("out of range"));
        assert_eq!(ms(i64::MAX), Err("out of range"));
        assert_eq!(time_field(b"1760000000000000001", Encoding::Decimal, Unit::Ns), Ok(Some(1_760_000_000_000_000)));
        assert_eq!(kafka_time(i64::MIN), Err("out of range"));
    }

    #[test]
    fn notes_are_few_and_each_is_there_once() {
        let mut notes = Notes::default();
        for i in 0..100 {
            notes.add("h", &format!("problem {}", i / 2));
        }
        let notes = notes.into_vec();
        assert_eq!(notes.len(), MOST_NOTES + 1);
        assert_eq!(notes[1], "h: problem 1");
    }
}
