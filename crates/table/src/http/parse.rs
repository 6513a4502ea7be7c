//! What a request for a key says.

use super::PREFIX;
use http::request::Parts;
use http::{HeaderMap, Method, header};
use partage_core::base::id::Epoch;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::map::Access;
use partage_service::table::replication::{Consistency, LogPosition};
use partage_service::table::rows::{Condition, Expiry, RequestId};
use partage_wire::request::headers::IDEMPOTENCY_KEY;
use partage_worker::KeyspaceName;
use partage_worker::http::{Target, access_of};
use percent_encoding::percent_decode_str;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// The longest idempotency key: two UUIDs and some, and no way to fill memory.
const IDEMPOTENCY_KEY_BYTES: usize = 255;

/// A request for a key, but for its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyRequest {
    pub(super) table: KeyspaceName,
    pub(super) key: Key,
    pub(super) consistency: Consistency,
    /// The index in the log that a read must have reached.
    pub(super) at_least: u64,
    pub(super) condition: Condition,
    is_write: bool,
    ttl_ms: Option<u64>,
    idempotency_key: Option<Vec<u8>>,
}

/// How a version is written: epoch and index.
pub(crate) fn version_text(version: LogPosition) -> String {
    format!("{}-{}", version.epoch.0, version.index)
}

/// A version from its text; none if it is no version.
pub(crate) fn version(text: &str) -> Option<LogPosition> {
    let (epoch, index) = text.split_once('-')?;
    Some(LogPosition { epoch: Epoch(epoch.parse().ok()?), index: index.parse().ok()? })
}

impl KeyRequest {
    /// The table and the key that the request is for. The leader takes linearizable reads, as it takes writes.
    pub(super) fn target(&self) -> Target {
        let reads_anywhere = !self.is_write && self.consistency != Consistency::Linearizable;
        let access = if reads_anywhere { Access::Read } else { Access::Write };
        Target { keyspace: self.table.clone(), key: self.key.as_bytes().to_vec(), access: Some(access) }
    }

    /// When the row that is put ends, by the clock of the leader.
    pub(super) fn expiry(&self) -> Expiry {
        self.ttl_ms.map_or(Expiry::Never, Expiry::After)
    }

    /// The client's name for the write, and what tells the write from another one under the same name.
    pub(super) fn request_id(&self, value: Option<&[u8]>) -> Option<(RequestId, u64)> {
        let name = self.idempotency_key.as_ref()?;
        Some(named(name, &self.key, self.condition, self.ttl_ms, value))
    }
}

/// What tells a write of one row from others: the client's name for it, and a fingerprint of what it says; no value is a
/// delete.
pub(crate) fn named(
    name: &[u8],
    key: &Key,
    condition: Condition,
    ttl_ms: Option<u64>,
    value: Option<&[u8]>,
) -> (RequestId, u64) {
    let mut hash = Xxh3::new();
    hash.update(key.as_bytes());
    hash.update(format!("{condition:?} {ttl_ms:?} {:?} ", value.map(<[u8]>::len)).as_bytes());
    hash.update(value.unwrap_or_default());
    (RequestId(xxh3_128(name).to_be_bytes()), hash.digest())
}

/// What a request says; an error is a sentence with the way out.
pub(super) fn key_request(parts: &Parts) -> Result<KeyRequest, String> {
    let path = parts.uri.path();
    let named = match path.strip_prefix(PREFIX) {
        Some(rest) => rest.split_once("/keys/"),
        None => path.trim_start_matches('/').split_once('/'),
    };
    let Some((table, key)) = named else {
        return Err(format!("{path}: ask for {PREFIX}<table>/keys/<key>, or /<table>/<key>"));
    };
    let table = percent_decode_str(table).decode_utf8_lossy();
    let table = KeyspaceName::new(&table).map_err(|error| error.to_string())?;
    let key: Vec<u8> = percent_decode_str(key).collect();
    let key = Key::new(&key).map_err(|error| error.to_string())?;
    let mut request = KeyRequest {
        table,
        key,
        consistency: Consistency::Linearizable,
        at_least: 0,
        condition: condition(&parts.headers)?,
        is_write: access_of(&parts.method) == Access::Write,
        ttl_ms: None,
        idempotency_key: idempotency_key(&parts.headers)?,
    };
    take_query(&mut request, &parts.method, parts.uri.query().unwrap_or_default())?;
    if !request.is_write && (request.condition != Condition::Always || request.idempotency_key.is_some()) {
        return Err(
            "if-match, if-none-match and idempotency-key are for PUT and DELETE: leave them out".to_owned()
        );
    }
    Ok(request)
}

fn take_query(request: &mut KeyRequest, method: &Method, query: &str) -> Result<(), String> {
    let (mut consistency, mut bound_ms) = (None, None);
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let number = || value.parse::<u64>().map_err(|_| format!("{name}={value}: give a whole number"));
        match &*name {
            "ttl_ms" if method == Method::PUT => request.ttl_ms = Some(number()?),
            "consistency" if !request.is_write => consistency = Some(value.into_owned()),
            "bound_ms" if !request.is_write => bound_ms = Some(number()?),
            "at_least" if !request.is_write => {
                let at = version(&value).ok_or_else(|| {
                    format!("at_least={value}: give a version as an answer's partage-applied has it")
                })?;
                request.at_least = at.index;
            }
            _ => {
                return Err(format!(
                    "{method} has no parameter {name:?}: PUT has ttl_ms, GET has consistency, bound_ms and at_least"
                ));
            }
        }
    }
    request.consistency = consistency_of(consistency.as_deref(), bound_ms)?;
    Ok(())
}

/// How fresh what is read must be, by the parameters `consistency` and `bound_ms`.
pub(crate) fn consistency_of(word: Option<&str>, bound_ms: Option<u64>) -> Result<Consistency, String> {
    match (word, bound_ms) {
        (None | Some("linearizable"), None) => Ok(Consistency::Linearizable),
        (Some("any"), None) => Ok(Consistency::Any),
        (Some("bounded"), Some(bound_ms)) => Ok(Consistency::Bounded(bound_ms)),
        (Some("bounded"), None) => Err("consistency=bounded: add bound_ms, in milliseconds".to_owned()),
        (None | Some("linearizable" | "any"), Some(_)) => {
            Err("bound_ms is for consistency=bounded: add that, or leave bound_ms out".to_owned())
        }
        (Some(other), _) => Err(format!("consistency={other}: choose linearizable, bounded or any")),
    }
}

fn condition(headers: &HeaderMap) -> Result<Condition, String> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    match (text(header::IF_MATCH), text(header::IF_NONE_MATCH)) {
        (None, None) => Ok(Condition::Always),
        (Some("*"), None) => Ok(Condition::Present),
        (None, Some("*")) => Ok(Condition::Absent),
        (Some(tag), None) => {
            let tagged = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).and_then(version);
            let help = "give one version in quotes, as an etag has it, or *";
            tagged.map(Condition::Version).ok_or_else(|| format!("if-match: {tag}: {help}"))
        }
        (None, Some(tag)) => {
            Err(format!("if-none-match: {tag}: only * is known, by which there must be no row"))
        }
        (Some(_), Some(_)) => Err("if-match and if-none-match contradict each other: give one".to_owned()),
    }
}

pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<Vec<u8>>, String> {
    headers.get(IDEMPOTENCY_KEY).map(|value| idempotency_name(value.as_bytes())).transpose()
}

/// The client's name for a write, if it can be one.
pub(crate) fn idempotency_name(name: &[u8]) -> Result<Vec<u8>, String> {
    match name.len() {
        0 => Err("idempotency-key is empty: give a text that no other write has".to_owned()),
        1..=IDEMPOTENCY_KEY_BYTES => Ok(name.to_vec()),
        bytes => Err(format!("idempotency-key has {bytes} bytes: the limit is {IDEMPOTENCY_KEY_BYTES}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn parsed(method: &str, uri: &str, headers: &[(&str, &str)]) -> Result<KeyRequest, String> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        key_request(&request.body(()).expect("a request").into_parts().0)
    }

    #[test]
    fn a_key_is_any_bytes() {
        let request = parsed("GET", "/v1/tables/stock/keys/a%2Fb%00%ff/c", &[]).expect("a request");
        assert_eq!(request.key.as_bytes(), b"a/b\0\xff/c");
        assert_eq!(request.target().access, Some(Access::Write));
        assert!(
            parsed("GET", "/v1/tables/stock/keys/", &[]).expect("the empty key").key.as_bytes().is_empty()
        );
        let short = parsed("GET", "/stock/a/b", &[]).expect("a request");
        assert_eq!((short.table.as_str(), short.key.as_bytes()), ("stock", &b"a/b"[..]));
        assert!(parsed("GET", "/stock", &[]).is_err() && parsed("GET", "/v1/tables/stock", &[]).is_err());
        let long = format!("/v1/tables/stock/keys/{}", "a".repeat(partage_core::limits::KEY_BYTES));
        assert!(parsed("GET", &long, &[]).is_ok());
        assert!(parsed("GET", &(long + "a"), &[]).is_err());
    }

    #[test]
    fn reads_say_how_fresh() {
        let read = |query| parsed("GET", &format!("/v1/tables/stock/keys/a?{query}"), &[]);
        let consistency = |query| read(query).map(|request| request.consistency);
        assert_eq!(consistency("consistency=linearizable"), Ok(Consistency::Linearizable));
        assert_eq!(consistency("consistency=any"), Ok(Consistency::Any));
        assert_eq!(consistency("consistency=bounded&bound_ms=20"), Ok(Consistency::Bounded(20)));
        assert_eq!(read("consistency=any").map(|request| request.target().access), Ok(Some(Access::Read)));
        assert_eq!(read("at_least=3-17").map(|request| request.at_least), Ok(17));
        for bad in ["consistency=bounded", "bound_ms=3", "consistency=none", "at_least=17", "ttl_ms=3", "x=1"]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn writes_say_when() {
        fn put(headers: &[(&str, &str)]) -> Result<KeyRequest, String> {
            parsed("PUT", "/v1/tables/stock/keys/a?ttl_ms=5", headers)
        }
        let condition = |name, value| put(&[(name, value)]).map(|request| request.condition);
        assert_eq!(put(&[]).map(|request| request.expiry()), Ok(Expiry::After(5)));
        assert_eq!(condition("if-match", "*"), Ok(Condition::Present));
        assert_eq!(condition("if-none-match", "*"), Ok(Condition::Absent));
        let version = LogPosition { epoch: Epoch(3), index: 9 };
        assert_eq!(condition("if-match", "\"3-9\""), Ok(Condition::Version(version)));
        for (name, bad) in [
            ("if-match", "3-9"),
            ("if-match", "\"3\""),
            ("if-none-match", "\"3-9\""),
            ("idempotency-key", ""),
        ] {
            assert!(put(&[(name, bad)]).is_err(), "{name}: {bad}");
        }
        assert!(put(&[("if-match", "*"), ("if-none-match", "*")]).is_err());
        assert!(parsed("GET", "/v1/tables/stock/keys/a", &[("if-match", "*")]).is_err());
        assert!(parsed("PUT", "/v1/tables/stock/keys/a?consistency=any", &[]).is_err());
    }

    #[test]
    fn another_write_under_the_same_name_has_another_fingerprint() {
        let named = |uri| parsed("PUT", uri, &[("idempotency-key", "x")]).expect("a request");
        let (one, other) = (named("/v1/tables/stock/keys/a"), named("/v1/tables/stock/keys/b"));
        let id = |request: &KeyRequest, value: &[u8]| request.request_id(Some(value)).expect("named");
        assert_eq!(id(&one, b"v"), id(&one, b"v"));
        assert_eq!(id(&one, b"v").0, id(&one, b"w").0);
        assert_ne!(id(&one, b"v").1, id(&one, b"w").1);
        assert_ne!(id(&one, b"v").1, id(&other, b"v").1);
        assert_eq!(parsed("PUT", "/v1/tables/stock/keys/a", &[]).expect("one").request_id(None), None);
    }
}
