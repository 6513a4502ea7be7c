//! What a request asks for, read from its path, query and headers. Pure.
//!
//! The first segment is the dataset, all after it the key, percent-decoded: a key may hold any bytes, also `/`, `..`
//! and NUL. It is looked up and never becomes a path of a file, so there is nothing to be escaped from.

use super::refusal::Refusal;
use std::borrow::Cow;

/// What the path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target<'a> {
    /// `/`: the status of all datasets.
    Home,
    /// `/-/name`: a page of the server itself.
    Own(&'a str),
    /// `/dataset` or `/dataset/`: the status of a dataset, a scan, or many keys.
    Dataset(&'a str),
    /// `/dataset/key`: the value of a key.
    Key(&'a str, Cow<'a, [u8]>),
}

/// Headers that change how a value is sent, as they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wants<'a> {
    pub range: Option<&'a [u8]>,
    pub if_range: Option<&'a [u8]>,
    pub if_none_match: Option<&'a [u8]>,
    pub accept_encoding: Option<&'a [u8]>,
    /// The header `partage-at-least`: the answer must not be of an earlier version than this.
    pub at_least: Option<&'a [u8]>,
}

/// A request for the value of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRequest<'a> {
    /// Whether the client wants the head of the answer alone.
    pub is_head: bool,
    /// The name of the dataset, as it stands in the path.
    pub dataset: &'a str,
    /// The key that is asked for, percent-decoded.
    pub key: Cow<'a, [u8]>,
    /// A peer asks, for this version, and is not sent on.
    pub by_peer: Option<Cow<'a, str>>,
    /// How the value is wanted.
    pub wants: Wants<'a>,
}

/// Reads the path of a request.
pub fn target(path: &str) -> Result<Target<'_>, Refusal> {
    let Some(path) = path.strip_prefix('/') else {
        return Err(Refusal::bad("path", "the path does not begin with /", "put one before it"));
    };
    if path.is_empty() {
        return Ok(Target::Home);
    }
    let (dataset, key) = path.split_once('/').unwrap_or((path, ""));
    match (dataset, key) {
        ("-", own) => Ok(Target::Own(own)),
        (dataset, "") => Ok(Target::Dataset(dataset)),
        (dataset, key) => Ok(Target::Key(dataset, decoded(key.as_bytes())?)),
    }
}

/// Percent-decoded. What is no escape is refused: a `%` that is meant is written `%25`.
fn decoded(text: &[u8]) -> Result<Cow<'_, [u8]>, Refusal> {
    if !text.contains(&b'%') {
        return Ok(Cow::Borrowed(text));
    }
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        if !rest.get(at + 1..at + 3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit)) {
            let what = "a % is not followed by two hexadecimal digits";
            return Err(Refusal::bad("escape", what, "write it as %25"));
        }
        rest = &rest[at + 3..];
    }
    Ok(percent_encoding::percent_decode(text).into())
}

/// The fields of a query in their order, decoded as those of a form are: `+` is a blank.
pub fn fields(query: &str) -> Result<Vec<(&str, Vec<u8>)>, Refusal> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value: Vec<u8> = value.bytes().map(|byte| if byte == b'+' { b' ' } else { byte }).collect();
            Ok((name, decoded(&value)?.into_owned()))
        })
        .collect()
}

/// The version that a peer names in the query, if it is one: `proxy=version`. Other fields do not count for a key.
pub fn by_peer(query: Option<&str>) -> Result<Option<Cow<'_, str>>, Refusal> {
    let Some(query) = query else { return Ok(None) };
    // As peers write it.
    if let Some(version) = query.strip_prefix("proxy=")
        && version.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    {
        return Ok(Some(version).filter(|version| !version.is_empty()).map(Cow::Borrowed));
    }
    let fields = fields(query)?;
    let proxy = fields.into_iter().find(|(name, value)| *name == "proxy" && !value.is_empty());
    Ok(proxy.map(|(_, version)| String::from_utf8_lossy(&version).into_owned().into()))
}

/// A key as it stands in a path.
pub fn encoded(key: &[u8]) -> String {
    percent_encoding::percent_encode(key, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_segment_is_the_dataset_and_the_rest_the_key() {
        assert_eq!(target("/").unwrap(), Target::Home);
        assert_eq!(target("/names").unwrap(), Target::Dataset("names"));
        assert_eq!(target("/names/").unwrap(), Target::Dataset("names"));
        assert_eq!(target("/-/health").unwrap(), Target::Own("health"));
        let key = |path| match target(path).unwrap() {
            Target::Key("names", key) => key.into_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(key("/names/a/b//c"), b"a/b//c");
        assert_eq!(key("/names/../../etc/passwd"), b"../../etc/passwd");
        assert_eq!(key("/names/%2e%2E/%00%ff+"), b"../\0\xff+");
        assert!(
            matches!(target("/%2e%2e/key").unwrap(), Target::Key("%2e%2e", _)),
            "no dataset is called that"
        );
    }

    #[test]
    fn broken_escapes_are_refused() {
        for path in ["/a/%", "/a/%2", "/a/%zz", "/a/b%2"] {
            assert!(target(path).unwrap_err().text.contains("%25"), "{path}");
        }
        assert!(target("*").is_err());
    }

    #[test]
    fn a_peer_names_its_version() {
        assert_eq!(by_peer(None).unwrap(), None);
        assert_eq!(by_peer(Some("proxy=v1")).unwrap().unwrap(), "v1");
        assert_eq!(by_peer(Some("a=b&proxy=v%31")).unwrap().unwrap(), "v1");
        assert_eq!(by_peer(Some("proxy=")).unwrap(), None);
        assert_eq!(by_peer(Some("a=b")).unwrap(), None);
    }

    proptest! {
        #[test]
        fn any_key_comes_back_from_its_path(key in prop::collection::vec(any::<u8>(), 1..80)) {
            let path = format!("/d/{}", encoded(&key));
            let found = target(&path).unwrap();
            prop_assert_eq!(found, Target::Key("d", key.into()));
        }

        #[test]
        fn no_path_and_no_query_panics(path in ".*", query in ".*") {
            let _ = target(&path);
            let _ = by_peer(Some(&query));
        }
    }
}
