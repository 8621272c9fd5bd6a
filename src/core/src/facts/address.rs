//! Addresses of clients, and which of several is believed.

use super::Facts;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Which address is the client's.
pub(super) enum Client {
    /// The one that was asked for.
    Known(Vec<u8>),
    /// The host's own, since X-Forwarded-For has fewer entries than proxies are trusted.
    Short(Vec<u8>),
    /// None that can be read.
    Unknown,
}

/// The client's address, in the bytes that stand for it in a key.
///
/// With `trusted_hops` it is that entry of X-Forwarded-For, counted from the right: each trusted proxy has appended one
/// entry, and what stands left of those is the client's own invention.
pub(super) fn client(facts: &dyn Facts, trusted_hops: u8, ipv6_prefix: u8) -> Client {
    let entry = trusted_hops.checked_sub(1).and_then(|from_right| entry(facts, from_right));
    let short = trusted_hops > 0 && entry.is_none();
    let text = entry.unwrap_or_else(|| facts.client_address());
    match parse(&text).and_then(|address| group(address, ipv6_prefix)) {
        Some(bytes) if short => Client::Short(bytes),
        Some(bytes) => Client::Known(bytes),
        None => Client::Unknown,
    }
}

/// An entry of X-Forwarded-For; the last one is 0.
fn entry(facts: &dyn Facts, from_right: u8) -> Option<Vec<u8>> {
    let list = facts.list("x-forwarded-for");
    let entries = list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    entries.rev().filter(|entry| !entry.is_empty()).nth(usize::from(from_right)).map(<[u8]>::to_vec)
}

/// Reads `1.2.3.4`, `1.2.3.4:5`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:5`, each IPv6 one with or without
/// `%zone`.
fn parse(text: &[u8]) -> Option<IpAddr> {
    let text = core::str::from_utf8(text).ok()?;
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some(socket.ip());
    }
    let inner = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => text,
    };
    inner.split('%').next()?.parse().ok()
}

/// The bytes that stand for an address in a key: an IPv4 address whole, also when it comes embedded in IPv6
/// (mapped, RFC 4291 §2.5.5.2, or by NAT64, RFC 6052 §2.1); an IPv6 address by its prefix.
fn group(address: IpAddr, ipv6_prefix: u8) -> Option<Vec<u8>> {
    let v6 = match address {
        IpAddr::V4(v4) => return Some(v4.octets().to_vec()),
        IpAddr::V6(v6) => v6,
    };
    if let Some(v4) = embedded_ipv4(v6) {
        return Some(v4.octets().to_vec());
    }
    let mask = u128::MAX.checked_shl(128_u32.checked_sub(u32::from(ipv6_prefix))?)?;
    Some((v6.to_bits() & mask).to_be_bytes().to_vec())
}

fn embedded_ipv4(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    const NAT64: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];
    if let Some(v4) = v6.to_ipv4_mapped() {
        return Some(v4);
    }
    let [.., a, b, c, d] = v6.octets();
    v6.segments().starts_with(&NAT64).then(|| Ipv4Addr::new(a, b, c, d))
}
