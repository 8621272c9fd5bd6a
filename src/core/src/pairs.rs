//! A header map as the host hands it over: how many lines there are, the sizes of each name and value as little-endian
//! numbers of 4 bytes, then each name and each value with a NUL behind it.

/// The lines of a header map. Bytes that are not one hold fewer lines, or none.
#[derive(Clone, Debug, Default)]
pub struct Pairs(Vec<u8>);

impl Pairs {
    /// Takes what the host has given.
    #[must_use]
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The values of all lines of this name, in their order.
    #[must_use]
    pub fn lines(&self, name: &str) -> Vec<&[u8]> {
        self.all().filter(|(known, _)| *known == name.as_bytes()).map(|(_, value)| value).collect()
    }

    /// The value of the first of them.
    #[must_use]
    pub fn first(&self, name: &str) -> Option<&[u8]> {
        self.lines(name).first().copied()
    }

    /// All lines, in their order.
    fn all(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let count = size(&self.0).unwrap_or(0);
        let (sizes, mut rest) =
            self.0.get(4..).and_then(|all| all.split_at_checked(count.saturating_mul(8))).unwrap_or_default();
        let mut part = move |size: usize| {
            let (part, behind) = rest.split_at_checked(size)?;
            rest = behind.split_first()?.1;
            Some(part)
        };
        let (sizes, _) = sizes.as_chunks::<8>();
        sizes.iter().map_while(move |sizes| {
            let (name, value) = sizes.split_at_checked(4)?;
            Some((part(size(name)?)?, part(size(value)?)?))
        })
    }
}

fn size(bytes: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(*bytes.first_chunk()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn pairs(lines: &[(&str, &str)]) -> Vec<u8> {
        let size = |text: &str| u32::try_from(text.len()).unwrap().to_le_bytes();
        let mut bytes = u32::try_from(lines.len()).unwrap().to_le_bytes().to_vec();
        bytes.extend(lines.iter().flat_map(|(name, value)| [size(name), size(value)]).flatten());
        for text in lines.iter().flat_map(|(name, value)| [name, value]) {
            bytes.extend(text.bytes());
            bytes.push(0);
        }
        bytes
    }

    #[test]
    fn all_lines_of_a_name_are_found_in_their_order() {
        let map = Pairs::new(pairs(&[(":path", "/a"), ("x", "1"), ("empty", ""), ("x", "2,3"), ("xy", "4")]));
        assert_eq!(map.lines("x"), [&b"1"[..], b"2,3"]);
        assert_eq!(map.lines(":path"), [b"/a"]);
        assert_eq!(map.lines("empty"), [b""]);
        assert_eq!((map.first("x"), map.first("y")), (Some(&b"1"[..]), None));
        assert!(Pairs::default().lines("x").is_empty());
    }

    #[cfg(not(target_arch = "wasm32"))]
    proptest::proptest! {
        #[test]
        fn whatever_a_host_gives_is_read_without_harm(
            mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64),
            cut in 0usize..64,
            count in 0u8..5,
        ) {
            let map = Pairs::new(bytes.clone());
            proptest::prop_assert!(map.all().count() <= bytes.len());
            if let Some(first) = bytes.first_chunk_mut::<4>() {
                *first = [count, 0, 0, 0];
            }
            proptest::prop_assert!(Pairs::new(bytes).all().count() <= usize::from(count));
            let mut whole = pairs(&[("one", "1"), ("two", "2")]);
            whole.truncate(cut);
            let map = Pairs::new(whole);
            proptest::prop_assert!(map.all().all(|line| [(&b"one"[..], &b"1"[..]), (b"two", b"2")].contains(&line)));
        }
    }
}
