//! Bytes as text, where they are: nearly all that comes is ASCII, and is looked at once.

/// The bytes as text, if they are valid UTF-8 without U+0000 (which engines cut at or refuse).
pub fn as_text(bytes: &[u8]) -> Option<&str> {
    if is_plain(bytes) {
        // SAFETY: each byte is in 1..=0x7f, which is ASCII.
        return Some(unsafe { str::from_utf8_unchecked(bytes) });
    }
    str::from_utf8(bytes).ok().filter(|text| !text.as_bytes().contains(&0))
}

/// Whether all bytes are in 1..=0x7f. Eight at a time, as most texts here are short: what is no ASCII has its upper bit
/// set, and of the first 0 the difference to 1 has.
pub(super) fn is_plain(bytes: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let odd = |word: &[u8; 8]| {
        let word = u64::from_ne_bytes(*word);
        word | word.wrapping_sub(ONES)
    };
    // Some bytes twice, where their number is not a multiple.
    let Some(last) = bytes.last_chunk::<8>() else {
        return bytes.iter().all(|byte| (1..=0x7f).contains(byte));
    };
    let (words, _) = bytes.as_chunks::<8>();
    (words.iter().fold(odd(last), |found, word| found | odd(word)) & (ONES << 7)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_utf8_without_nul_wherever_the_odd_byte_is() {
        for len in 0..70 {
            let plain = vec![b'a'; len];
            assert_eq!(as_text(&plain), Some(str::from_utf8(&plain).unwrap()));
            for at in 0..len {
                for byte in 0..=255_u8 {
                    let mut bytes = plain.clone();
                    bytes[at] = byte;
                    let expected = str::from_utf8(&bytes).ok().filter(|text| !text.contains('\0'));
                    assert_eq!(as_text(&bytes), expected, "{byte} at {at} of {len}");
                }
            }
        }
        assert_eq!(as_text("größe\u{10ffff}".as_bytes()), Some("größe\u{10ffff}"));
        assert_eq!(as_text("größe\0".as_bytes()), None);
    }
}
