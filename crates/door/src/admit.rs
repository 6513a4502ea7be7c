//! Whether the door admits a request, by its head alone. Pure.
//!
//! | what | answer |
//! |---|---|
//! | no `Host`, two of them, or another than the target names; two `Content-Type`; a path with `.` or `..` as a segment | 400 |
//! | `Host` is none of the listener's names ([`crate::hosts`]) | 421 |
//! | `Origin` or `Sec-Fetch-Site` names a page of another site, and no link is followed | 403 |
//! | a change without `content-type: application/json` (or gRPC's) and without `partage-request: 1` | 403 |
//!
//! A browser sends a form of another site without a preflight, but without that content type and that header.
//!
//! A link on another site, such as a wiki, may be followed: the browser shows the answer alone in its window. The other
//! site cannot read the answer, also where it opens the window by itself, and a `GET` changes nothing. The door refuses
//! a frame, since a page could lay it over its own buttons.

use crate::hosts::Hosts;
use crate::limits;
use crate::refusal::{Reason, Refusal};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Version};
use partage_wire::request::headers::REQUEST;
use std::net::IpAddr;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Which changes need the mark against other sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// All changes: the listener is for commands.
    All,
    /// Changes below this path; the service decides the form of all others.
    Below(&'static str),
    /// No change: all are requests of a service's clients.
    None,
}

/// What a listener admits.
#[derive(Debug, Clone)]
pub struct AdmissionPolicy {
    /// The names it answers to.
    pub hosts: Hosts,
    /// Origins of other sites whose pages may ask, as browsers send them; `*` for all.
    pub origins: Vec<String>,
    /// The changes that other sites must not be able to send, and so need the mark.
    pub changes: Changes,
}

impl AdmissionPolicy {
    /// Admits the request on a connection that arrived at `local`, or refuses it.
    pub fn admit(&self, parts: &Parts, local: IpAddr) -> Result<(), Refusal> {
        let host = host(parts)?;
        if count(&parts.headers, &header::CONTENT_TYPE) > 1 {
            return Err(malformed("two content-type headers", "send one"));
        }
        if has_dot_segment(parts.uri.path()) {
            return Err(malformed(
                "the path has . or .. as a segment",
                "send the path that is meant, or %2E",
            ));
        }
        let Some(host) = host else { return self.marked(parts) };
        if !self.hosts.allow(host, local) {
            return Err(Refusal::new(
                Reason::Host,
                format!("this listener does not answer to the host {:?}", shown(host)),
                "ask for it by its address, or have it started with --allowed-host",
            ));
        }
        self.same_site(parts, host)?;
        self.marked(parts)
    }

    fn same_site(&self, parts: &Parts, host: &str) -> Result<(), Refusal> {
        let headers = &parts.headers;
        let foreign = |what: String| {
            let way = "ask from a page of this listener, from no page, or have the origin allowed with \
                       --allowed-origin";
            Refusal::new(Reason::Origin, format!("a page of another site asks ({what})"), way)
        };
        let mut is_allowed = false;
        for origin in headers.get_all(header::ORIGIN) {
            let text = origin.to_str().unwrap_or_default();
            is_allowed = self.origins.iter().any(|one| one == "*" || one.eq_ignore_ascii_case(text));
            let own = text.split_once("://").is_some_and(|(_, site)| site.eq_ignore_ascii_case(host));
            if !own && !is_allowed {
                return Err(foreign(format!("origin {:?}", shown(text))));
            }
        }
        for site in headers.get_all(&SEC_FETCH_SITE) {
            let is_own = site == "same-origin" || site == "none";
            let is_allowed = is_allowed || self.origins.iter().any(|one| one == "*");
            if !is_own && !is_allowed && !is_navigation(parts) {
                let text = String::from_utf8_lossy(site.as_bytes());
                return Err(foreign(format!("sec-fetch-site {:?}", shown(&text))));
            }
        }
        Ok(())
    }

    fn marked(&self, parts: &Parts) -> Result<(), Refusal> {
        let concerned = match self.changes {
            Changes::All => true,
            Changes::Below(path) => parts.uri.path().starts_with(path),
            Changes::None => false,
        };
        let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(&parts.method);
        if !concerned || reads || is_marked(&parts.headers) {
            return Ok(());
        }
        Err(Refusal::new(
            Reason::Unmarked,
            format!("{} changes something, and a page of another site could have sent it", parts.method),
            "add the header `content-type: application/json` (with JSON), or `partage-request: 1`",
        ))
    }
}

/// Whether a browser asks for the page that a window shows next: a link was followed. No page can set these headers.
fn is_navigation(parts: &Parts) -> bool {
    let is_only = |name: &HeaderName, value: &str| {
        let mut values = parts.headers.get_all(name).iter();
        values.next().is_some_and(|first| first == value) && values.next().is_none()
    };
    [Method::GET, Method::HEAD].contains(&parts.method)
        && is_only(&SEC_FETCH_MODE, "navigate")
        && is_only(&SEC_FETCH_DEST, "document")
}

/// Another site's form has none of these.
fn is_marked(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    kind.eq_ignore_ascii_case(b"application/json")
        || kind.len() >= 16 && kind[..16].eq_ignore_ascii_case(b"application/grpc")
        || headers.get(&REQUEST).is_some_and(|value| value == "1")
}

/// The authority that the request is for; none only before HTTP/1.1, which needs no `Host`.
fn host(parts: &Parts) -> Result<Option<&str>, Refusal> {
    let mut told = parts.headers.get_all(header::HOST).iter();
    let (told, further) = (told.next(), told.next());
    if further.is_some() {
        return Err(malformed("two host headers", "send one"));
    }
    let told = told.map(|value| value.to_str().map_err(|_| malformed("host is no text", "send a name")));
    let told = told.transpose()?;
    let target = parts.uri.authority().map(http::uri::Authority::as_str);
    match (target, told) {
        (Some(target), Some(told)) if !target.eq_ignore_ascii_case(told) => {
            Err(malformed("the target and host name two hosts", "name one"))
        }
        (Some(host), _) | (None, Some(host)) => Ok(Some(host)),
        (None, None) if parts.version <= Version::HTTP_10 => Ok(None),
        (None, None) => Err(malformed("no host header", "send one")),
    }
}

/// Whether a segment is `.` or `..`, which some programs resolve and others do not.
pub fn has_dot_segment(path: &str) -> bool {
    path.contains("/.") && path.split('/').any(|segment| segment == "." || segment == "..")
}

fn malformed(what: &str, way_out: &'static str) -> Refusal {
    Refusal::new(Reason::Malformed, what, way_out)
}

fn count(headers: &HeaderMap, name: &HeaderName) -> usize {
    headers.get_all(name).iter().count()
}

fn shown(text: &str) -> String {
    text.chars().take(limits::SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn policy(changes: Changes) -> AdmissionPolicy {
        AdmissionPolicy { hosts: Hosts::new(["a.test"]), origins: vec!["https://app.test".into()], changes }
    }

    fn asked(policy: &AdmissionPolicy, method: &str, path: &str, headers: &[(&str, &str)]) -> Option<Reason> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        policy.admit(&parts, "10.0.0.7".parse().unwrap()).err().map(|refusal| refusal.reason)
    }

    #[test]
    fn what_can_be_understood_in_two_ways_is_malformed() {
        let policy = policy(Changes::None);
        let asked = |path: &str, headers: &[(&str, &str)]| asked(&policy, "GET", path, headers);
        assert_eq!(asked("/", &[("host", "a.test")]), None);
        for (path, headers) in [
            ("/", &[][..]),
            ("/", &[("host", "a.test"), ("host", "a.test")]),
            ("/", &[("host", "a.test"), ("content-type", "a/b"), ("content-type", "a/b")]),
            ("/a/../b", &[("host", "a.test")]),
            ("/a/./b", &[("host", "a.test")]),
            ("/a/..", &[("host", "a.test")]),
            ("http://a.test/", &[("host", "localhost")]),
        ] {
            assert_eq!(asked(path, headers), Some(Reason::Malformed), "{path} {headers:?}");
        }
        assert_eq!(asked("/a/..b/.c/d.", &[("host", "a.test")]), None);
        assert_eq!(asked("/a/%2e%2e/b", &[("host", "a.test")]), None, "a key may be two dots");
        assert_eq!(asked("http://a.test/", &[("host", "A.test")]), None);
    }

    #[test]
    fn a_page_of_another_site_is_refused_and_an_own_one_is_not() {
        let policy = policy(Changes::None);
        let asked =
            |name: &str, value: &str| asked(&policy, "GET", "/", &[("host", "a.test:80"), (name, value)]);
        assert_eq!(asked("origin", "http://a.test:80"), None);
        assert_eq!(asked("origin", "https://app.test"), None, "an operator has said so");
        for origin in ["http://a.test", "http://a.test:81", "https://evil.example", "null", ""] {
            assert_eq!(asked("origin", origin), Some(Reason::Origin), "{origin}");
        }
        assert_eq!(asked("sec-fetch-site", "same-origin"), None);
        assert_eq!(asked("sec-fetch-site", "none"), None);
        for site in ["cross-site", "same-site", "?"] {
            assert_eq!(asked("sec-fetch-site", site), Some(Reason::Origin), "{site}");
        }
    }

    #[test]
    fn a_link_on_another_site_may_be_followed_and_nothing_else() {
        let policy = policy(Changes::All);
        let asked = |method: &str, site: &str, mode: &str, dest: &str, more: (&str, &str)| {
            let fetch = [("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)];
            let headers: Vec<_> = [("host", "a.test"), more].into_iter().chain(fetch).collect();
            asked(&policy, method, "/", &headers)
        };
        let nothing = ("accept", "text/html");
        for site in ["cross-site", "same-site"] {
            assert_eq!(asked("GET", site, "navigate", "document", nothing), None, "{site}");
            assert_eq!(asked("HEAD", site, "navigate", "document", nothing), None, "{site}");
        }
        let refused = Some(Reason::Origin);
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            let marked = ("partage-request", "1");
            assert_eq!(asked(method, "cross-site", "navigate", "document", marked), refused, "{method}");
        }
        for dest in ["iframe", "frame", "embed", "object", "image", "empty", ""] {
            assert_eq!(asked("GET", "cross-site", "navigate", dest, nothing), refused, "{dest}");
        }
        for mode in ["no-cors", "cors", "websocket", ""] {
            assert_eq!(asked("GET", "cross-site", mode, "document", nothing), refused, "{mode}");
        }
        let origin = ("origin", "https://evil.example");
        assert_eq!(asked("GET", "cross-site", "navigate", "document", origin), refused);
        let framed = ("sec-fetch-dest", "iframe");
        assert_eq!(asked("GET", "cross-site", "navigate", "document", framed), refused, "two destinations");
    }

    #[test]
    fn a_rebound_name_is_refused() {
        assert_eq!(
            asked(&policy(Changes::All), "GET", "/", &[("host", "evil.example:7400")]),
            Some(Reason::Host)
        );
    }

    #[test]
    fn a_change_is_marked() {
        let (all, below) = (policy(Changes::All), policy(Changes::Below("/-/")));
        let host = ("host", "a.test");
        let marks = [
            ("content-type", "application/json"),
            ("content-type", "Application/JSON; charset=utf-8"),
            ("content-type", "application/grpc+proto"),
            ("partage-request", "1"),
        ];
        for mark in marks {
            assert_eq!(asked(&all, "POST", "/kill/d1", &[host, mark]), None, "{mark:?}");
        }
        let forms = [
            ("content-type", "text/plain"),
            ("content-type", "application/x-www-form-urlencoded"),
            ("partage-request", "0"),
            ("accept", "*/*"),
        ];
        for form in forms {
            for method in ["POST", "PUT", "DELETE", "PATCH"] {
                assert_eq!(
                    asked(&all, method, "/kill/d1", &[host, form]),
                    Some(Reason::Unmarked),
                    "{form:?}"
                );
            }
        }
        assert_eq!(asked(&all, "GET", "/", &[host]), None);
        assert_eq!(asked(&below, "POST", "/-/refresh", &[host]), Some(Reason::Unmarked));
        assert_eq!(asked(&below, "POST", "/packages", &[host]), None);
    }
}
