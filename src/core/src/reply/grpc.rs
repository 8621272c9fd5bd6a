//! What a gRPC caller reads of a rejection (gRFC A6 and the error model of google.rpc).

use crate::units::Micros;

/// How a caller speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    /// gRPC and gRPC-Web, with the content type of the reply.
    Grpc(&'static str),
}

const KINDS: [&str; 8] = [
    "application/grpc-web-text+proto",
    "application/grpc-web-text",
    "application/grpc-web+proto",
    "application/grpc-web+json",
    "application/grpc-web",
    "application/grpc+proto",
    "application/grpc+json",
    "application/grpc",
];

impl Protocol {
    /// By the content type of the request. A media type has no case (RFC 9110 §8.3.1).
    pub(super) fn of(content_type: &[u8]) -> Self {
        let kind = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let kind = kind.to_ascii_lowercase();
        if let Some(known) = KINDS.iter().find(|known| known.as_bytes() == kind.as_slice()) {
            return Self::Grpc(known);
        }
        // Of a format that is not known the reply has no message, and needs none.
        let other = |prefix: &str| kind.strip_prefix(prefix.as_bytes()).is_some_and(|rest| rest.starts_with(b"+"));
        if other("application/grpc-web") {
            Self::Grpc("application/grpc-web")
        } else if other("application/grpc") {
            Self::Grpc("application/grpc")
        } else {
            Self::Http
        }
    }
}

/// `grpc-status-details-bin`: a `google.rpc.Status` with a `google.rpc.RetryInfo`, in base64.
pub(super) fn details(status: i32, message: &str, wait: Micros) -> String {
    let seconds = wait.count().checked_div(1_000_000).unwrap_or(0);
    let nanos = wait.count().checked_rem(1_000_000).unwrap_or(0).saturating_mul(1_000);
    let mut duration = Vec::new();
    number(&mut duration, 1, seconds);
    number(&mut duration, 2, nanos);
    let mut retry_info = Vec::new();
    bytes(&mut retry_info, 1, &duration);
    let mut any = Vec::new();
    bytes(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
    bytes(&mut any, 2, &retry_info);
    let mut whole = Vec::new();
    number(&mut whole, 1, u64::try_from(status).unwrap_or(0));
    bytes(&mut whole, 2, message.as_bytes());
    bytes(&mut whole, 3, &any);
    base64(&whole)
}

/// A protobuf field that is a number. One that is 0 is left out.
fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    if value > 0 {
        varint(out, field << 3);
        varint(out, value);
    }
}

/// A protobuf field that is bytes, text or a message.
fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend(value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while let [low, ..] = value.to_le_bytes()
        && value >= 0x80
    {
        out.push(low | 0x80);
        value >>= 7;
    }
    let [low, ..] = value.to_le_bytes();
    out.push(low);
}

/// Without padding, as gRPC asks for.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let part = |index: usize| chunk.get(index).map_or(0, |byte| u32::from(*byte));
        let bits = part(0) << 16 | part(1) << 8 | part(2);
        for place in 0..=chunk.len() {
            let shift = [18, 12, 6, 0].get(place).copied().unwrap_or(0);
            let digit = ALPHABET.get((bits >> shift & 63) as usize).copied().unwrap_or(b'A');
            text.push(char::from(digit));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_grpc_caller_is_known_by_its_content_type() {
        let known = [
            ("application/grpc", "application/grpc"),
            ("Application/GRPC", "application/grpc"),
            ("application/grpc+proto", "application/grpc+proto"),
            ("application/grpc+thrift", "application/grpc"),
            ("application/grpc; charset=utf-8", "application/grpc"),
            ("application/grpc-web-text", "application/grpc-web-text"),
            ("application/grpc-web+thrift", "application/grpc-web"),
        ];
        for (content_type, reply) in known {
            assert_eq!(Protocol::of(content_type.as_bytes()), Protocol::Grpc(reply), "{content_type}");
        }
        for content_type in
            ["", "application/json", "application/grpcx", "application/grpc-webs", "text/grpc", "\u{ff}"]
        {
            assert_eq!(Protocol::of(content_type.as_bytes()), Protocol::Http, "{content_type}");
        }
    }

    #[test]
    fn details_are_a_status_with_its_retry_info() {
        // code: 8, message: "no", details: RetryInfo {retry_delay {seconds: 300, nanos: 5000}}
        let encoded = "CAgSAm5vGjQKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SCAoGCKwCEIgn";
        assert_eq!(details(8, "no", Micros::new(300_000_005)), encoded);
    }

    #[test]
    fn base64_has_every_length() {
        assert_eq!(
            ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes())),
            ["", "Zg", "Zm8", "Zm9v", "Zm9vYg"]
        );
    }
}
