//! What an error status means: whether the request was sent, whether etcd did it, and the error for the caller.
//!
//! In doubt it is unknown: only errors that etcd gives before it proposes anything, or as the outcome of a
//! proposal, are definite. All others after a request has left are *unknown* (C3).

use tonic::{Code, ConnectError, Status};

use crate::error::Error;

/// What went wrong with one attempt at one server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AttemptError {
    /// It did not leave, or etcd refused it before proposing it: another server may take it.
    NotDone(String),
    /// It left, and its outcome is not known.
    Unknown(String),
    /// The token is missing, has expired, or is older than the rights: sign in, then again.
    Token(String),
    /// A definite error; nothing was changed.
    Refused(Error),
}

/// etcd's errors about a token it does not take; without a token the user's name is empty.
const TOKEN: [&str; 4] = [
    "invalid auth token",
    "revision of auth store is old",
    "user name is empty",
    "revision in header is old",
];

/// Classifies a status. `location` names the target, `prefix` the keys that we need rights to.
pub(super) fn read(status: &Status, location: &str, prefix: &str) -> AttemptError {
    let what = in_words(status);
    if caused_by_connecting(status) {
        return AttemptError::NotDone(what);
    }
    // A status with a source comes from this side, of a broken stream: its code is not etcd's.
    if std::error::Error::source(status).is_some() {
        return AttemptError::Unknown(what);
    }
    if status.code() == Code::Unauthenticated || TOKEN.iter().any(|words| what.contains(words)) {
        return AttemptError::Token(what);
    }
    let says = |words: &str| what.contains(words);
    let location = location.to_owned();
    match status.code() {
        Code::Unavailable if says("no leader") => AttemptError::NotDone(what),
        // For a transaction with puts this is no outcome yet: `no_space` finds that out.
        Code::ResourceExhausted if says("database space exceeded") => AttemptError::Refused(Error::NoRoom {
            location,
            what:
                "its space quota is used up: compact and defragment it, or raise --quota-backend-bytes, then \
                   `etcdctl alarm disarm`"
                    .to_owned(),
        }),
        // Also: more requests than it can apply. It says so before it proposes anything.
        Code::ResourceExhausted => AttemptError::Refused(Error::Unavailable {
            what: format!("{location} is overloaded: {what}: ask it less, or give it a faster disk"),
        }),
        Code::PermissionDenied => AttemptError::Refused(Error::Denied {
            location,
            what: format!(
                "{what}: grant the user's role readwrite on the prefix {prefix} (`etcdctl role grant-permission \
                 --prefix`)"
            ),
        }),
        Code::InvalidArgument if says("authentication failed") => AttemptError::Refused(Error::Denied {
            location,
            what: format!("{what}: give the user and password that `etcdctl user add` was told"),
        }),
        Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::Unimplemented => {
            AttemptError::Refused(Error::Invalid { what: format!("{location} refuses the request: {what}") })
        }
        _ => AttemptError::Unknown(what),
    }
}

/// True if the session's lease is what etcd did not find.
pub(super) fn is_lease_gone(error: &Error) -> bool {
    matches!(error, Error::Invalid { what } if what.contains("requested lease not found"))
}

/// The status and all its causes.
pub(super) fn in_words(status: &Status) -> String {
    let mut words = status.message().to_owned();
    if words.is_empty() {
        words = status.code().to_string();
    }
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        cause = error.source();
    }
    words
}

fn caused_by_connecting(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: Code, words: &str) -> AttemptError {
        read(&Status::new(code, words), "etcd://h/r", "/r/")
    }

    #[test]
    fn doubt_is_the_rule() {
        for (code, words) in [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::Unknown, "raft proposal dropped"),
            (Code::Cancelled, "Timeout expired"),
            (Code::DeadlineExceeded, "context deadline exceeded"),
            (Code::OutOfRange, "decoded message length too large"),
            (Code::Internal, "stream ended"),
        ] {
            assert!(matches!(of(code, words), AttemptError::Unknown(_)), "{code:?} {words}");
        }
    }

    #[test]
    fn last_words_name_the_target_and_the_way_out() {
        for (code, words, wanted) in [
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", "alarm disarm"),
            (Code::ResourceExhausted, "etcdserver: too many requests", "overloaded"),
            (Code::PermissionDenied, "etcdserver: permission denied", "readwrite on the prefix /r/"),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                "user add",
            ),
            (Code::InvalidArgument, "etcdserver: request is too large", "too large"),
        ] {
            let AttemptError::Refused(error) = of(code, words) else { panic!("{words} is etcd's last word") };
            assert!(error.is_definite());
            let said = error.to_string();
            assert!(said.contains(wanted) && said.contains("etcd://h/r"), "{said}");
        }
        let no_lease = of(Code::NotFound, "etcdserver: requested lease not found");
        assert!(matches!(no_lease, AttemptError::Refused(error) if is_lease_gone(&error)));
    }

    #[test]
    fn a_door_that_is_closed_is_not_a_doubt() {
        assert!(matches!(of(Code::Unavailable, "etcdserver: no leader"), AttemptError::NotDone(_)));
        let refused = ConnectError(Box::new(std::io::Error::other("connection refused")));
        let status = Status::from_error(Box::new(refused));
        assert!(matches!(read(&status, "etcd://h/r", "/r/"), AttemptError::NotDone(_)));
        assert!(matches!(
            of(Code::Unauthenticated, "etcdserver: invalid auth token"),
            AttemptError::Token(_)
        ));
        assert!(matches!(
            of(Code::InvalidArgument, "etcdserver: user name is empty"),
            AttemptError::Token(_)
        ));
    }

    /// What breaks on the way back has a code of its own making, which must not be taken for etcd's.
    #[test]
    fn a_broken_stream_is_a_doubt_whatever_its_code() {
        let broken = Status::from_error(Box::new(std::io::Error::other("broken")));
        assert!(matches!(read(&broken, "etcd://h/r", "/r/"), AttemptError::Unknown(_)));
    }
}
