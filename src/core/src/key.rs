//! Keys: what names a bucket outside the request, without telling whose it is.
//!
//! A key is the first 128 bits of keyed BLAKE3 over length-prefixed parts. Without the hash key nobody can go back
//! from a key to the identity, nor find two identities with one key; with the same hash key every proxy derives the
//! same key.

use core::fmt;

/// Binds derived keys to their use: the same secret used elsewhere gives other digests.
const CONTEXT: &str = "tollgate 2026-12 bucket key";

/// The secret that keys are derived with.
#[derive(Clone)]
pub struct HashKey([u8; blake3::KEY_LEN]);

impl HashKey {
    /// Any text serves; 16 random characters or more keep identities from being guessed.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        Self(blake3::derive_key(CONTEXT, secret))
    }

    /// The key for one namespace: nothing that is derived with it meets what is derived with another.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        Self(*blake3::keyed_hash(&self.0, namespace.as_bytes()).as_bytes())
    }

    /// Starts a digest of one kind; digests of different kinds never meet.
    #[must_use]
    pub fn digest(&self, kind: &str) -> Digester<'_> {
        let mut digester = Digester { hash_key: self, parts: Vec::with_capacity(MOST_DIGESTS) };
        digester.part(kind.as_bytes());
        digester
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(…)")
    }
}

/// The parts of almost every digest have room in so many bytes.
const MOST_DIGESTS: usize = 256;

/// Takes the parts of one digest. They are hashed at once: that is quicker than one by one, and less code.
pub struct Digester<'a> {
    hash_key: &'a HashKey,
    parts: Vec<u8>,
}

impl Digester<'_> {
    /// Adds a part. Its length goes in before it, so parts cannot run together: ("ab", "c") is not ("a", "bc").
    pub fn part(&mut self, bytes: &[u8]) {
        self.parts.push(1);
        self.parts.extend((bytes.len() as u64).to_le_bytes());
        self.parts.extend(bytes);
    }

    /// Adds a part that is not there, which is another thing than an empty one.
    pub fn absent(&mut self) {
        self.parts.push(0);
    }

    /// The digest of all parts.
    #[must_use]
    pub fn finish(self) -> Digest {
        let full = blake3::keyed_hash(&self.hash_key.0, &self.parts);
        let mut short = [0; Digest::LEN];
        for (to, from) in short.iter_mut().zip(full.as_bytes()) {
            *to = *from;
        }
        Digest(short)
    }
}

/// 128 bits that name a bucket. Shown and sent as 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; Self::LEN]);

impl Digest {
    /// Bytes in a digest.
    pub const LEN: usize = 16;

    /// A digest read back from where it was stored.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// As stored.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Reads 32 hexadecimal digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let pairs: &[[u8; 2]; Self::LEN] = pairs.try_into().ok()?;
        let mut bytes = [0; Self::LEN];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = (half(*high)? << 4) | half(*low)?;
        }
        rest.is_empty().then_some(Self(bytes))
    }

    /// An even share of `count` for this digest.
    #[must_use]
    pub fn share(&self, count: u32) -> u32 {
        let number = u128::from_le_bytes(self.0);
        number.checked_rem(u128::from(count)).and_then(|share| u32::try_from(share).ok()).unwrap_or(0)
    }
}

/// What a hexadecimal digit stands for.
const fn half(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit.wrapping_sub(b'0')),
        b'a'..=b'f' => Some(digit.wrapping_sub(b'a').wrapping_add(10)),
        _ => None,
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By hand: each charge has two of them, and a format takes several times as long.
        let digit = |nibble: u8| b"0123456789abcdef".get(usize::from(nibble)).copied().unwrap_or(b'?');
        let mut hex = [0; 32];
        for ([high, low], byte) in hex.as_chunks_mut().0.iter_mut().zip(self.0) {
            (*high, *low) = (digit(byte >> 4), digit(byte & 0xf));
        }
        f.write_str(core::str::from_utf8(&hex).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(HexVisitor)
    }
}

/// Sees the text where it is: a `String` for each digest would be its own allocation.
struct HexVisitor;

impl serde::de::Visitor<'_> for HexVisitor {
    type Value = Digest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Digest, E> {
        Digest::from_hex(text).ok_or_else(|| E::custom("must be 32 lower-case hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn digest(secret: &str, parts: &[&str]) -> Digest {
        let hash_key = HashKey::new(secret.as_bytes());
        let mut digester = hash_key.digest("test");
        for part in parts {
            digester.part(part.as_bytes());
        }
        digester.finish()
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(digest("k", &["ab", "c"]), digest("k", &["a", "bc"]));
        assert_ne!(digest("k", &["abc"]), digest("k", &["abc", ""]));
        let hash_key = HashKey::new(b"k");
        let (mut absent, mut empty) = (hash_key.digest("test"), hash_key.digest("test"));
        absent.absent();
        empty.part(b"");
        assert_ne!(absent.finish(), empty.finish());
    }

    #[test]
    fn one_secret_gives_one_digest_on_every_machine() {
        // Written down: a change of this value would forget every budget at an upgrade.
        assert_eq!(digest("secret", &["tenant", "acme"]).to_string(), "ae1bca9539d431ddf4b25896070fbae7");
        assert_ne!(digest("secret", &["tenant", "acme"]), digest("other", &["tenant", "acme"]));
    }

    #[test]
    fn hexadecimal_goes_there_and_back() {
        let one = digest("secret", &["a"]);
        assert_eq!(Digest::from_hex(&one.to_string()), Some(one));
        for wrong in ["", "0", "+0000000000000000000000000000000", "0000000000000000000000000000000G", &"0".repeat(33)]
        {
            assert_eq!(Digest::from_hex(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_hash_key_is_never_shown() {
        assert_eq!(format!("{:?}", HashKey::new(b"secret")), "HashKey(…)");
    }
}
