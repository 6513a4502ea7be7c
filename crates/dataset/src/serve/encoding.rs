//! Compressed answers, when they are asked for and pay.

use crate::limits;
use std::io::Write;

/// How a body is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// The coding `zstd` (RFC 8878).
    Zstd,
    /// The coding `gzip` (RFC 1952).
    Gzip,
}

impl Encoding {
    /// As `content-encoding` names it.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Zstd => "zstd",
            Encoding::Gzip => "gzip",
        }
    }

    /// The body in this coding, if that is at least a tenth shorter.
    pub fn encode(self, body: &[u8]) -> Option<Vec<u8>> {
        let coded = match self {
            Encoding::Zstd => zstd::bulk::compress(body, 1).ok()?,
            Encoding::Gzip => {
                let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                coder.write_all(body).ok()?;
                coder.finish().ok()?
            }
        };
        (coded.len() <= body.len() - body.len() / 10).then_some(coded)
    }
}

/// Whether a body of that length is coded for whom asks for it.
pub fn is_negotiated(length: usize) -> bool {
    (limits::COMPRESSED_BYTES..=limits::COMPRESSED_MOST_BYTES).contains(&length)
}

/// The coding for a body of that length: what the client likes best of what we have, zstd if it likes both the same.
pub fn chosen(accept: &[u8], length: usize) -> Option<Encoding> {
    if !is_negotiated(length) {
        return None;
    }
    let accept = std::str::from_utf8(accept).ok()?;
    let weight = |encoding: Encoding| {
        let of = |name: &str| accept.split(',').find_map(|item| weight_of(item, name));
        of(encoding.name()).or_else(|| of("*")).unwrap_or(0)
    };
    let (zstd, gzip) = (weight(Encoding::Zstd), weight(Encoding::Gzip));
    match (zstd, gzip) {
        (0, 0) => None,
        (zstd, gzip) if zstd >= gzip => Some(Encoding::Zstd),
        _ => Some(Encoding::Gzip),
    }
}

/// The weight of a coding in thousandths; 1,000 without `q`. None: `item` names another coding.
fn weight_of(item: &str, name: &str) -> Option<u32> {
    let (coding, parameter) = item.split_once(';').unwrap_or((item, "q=1"));
    if !coding.trim().eq_ignore_ascii_case(name) {
        return None;
    }
    let weight = parameter.trim().strip_prefix("q=").or_else(|| parameter.trim().strip_prefix("Q="))?;
    let weight: f32 = weight.trim().parse().ok()?;
    Some((weight.clamp(0.0, 1.0) * 1000.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_client_likes_best_is_chosen() {
        let of = |accept: &str| chosen(accept.as_bytes(), limits::COMPRESSED_BYTES);
        assert_eq!(of("gzip, deflate, br, zstd"), Some(Encoding::Zstd));
        assert_eq!(of("gzip"), Some(Encoding::Gzip));
        assert_eq!(of("gzip;q=1, zstd;q=0.5"), Some(Encoding::Gzip));
        assert_eq!(of("*"), Some(Encoding::Zstd));
        assert_eq!(of("*, zstd;q=0"), Some(Encoding::Gzip));
        for none in ["", "identity", "br", "gzip;q=0", "gzip;q=x", "*;q=0"] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(chosen(b"gzip", limits::COMPRESSED_BYTES - 1), None, "short bodies do not pay");
        assert_eq!(chosen(b"gzip", limits::COMPRESSED_MOST_BYTES + 1), None, "long ones hold others up");
    }

    #[test]
    fn what_does_not_get_shorter_is_left() {
        let mut noise = 1_u64;
        let random: Vec<u8> = (0..4_000)
            .map(|_| {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                (noise >> 32) as u8
            })
            .collect();
        let text = b"partage ".repeat(500);
        for encoding in [Encoding::Zstd, Encoding::Gzip] {
            assert_eq!(encoding.encode(&random), None);
            assert!(encoding.encode(&text).unwrap().len() < 200);
        }
    }
}
