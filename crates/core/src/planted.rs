//! Planted bugs: each switches one invariant off, so that the simulator can prove that it would notice.
//!
//! Without the feature `planted-bugs`, which nothing but `tests/sim` asks for, [`is`] is a constant `false` and nothing
//! can be planted. With it, nothing is until a test plants a bug for its own thread.

/// An invariant that is switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Planted {
    /// O2: a leader that is to leave goes on writing under its old epoch while it drains.
    O2,
    /// O4: a worker counts its lease from the answer, not from the question.
    O4,
    /// O5: the next owner does not wait for the last one.
    O5,
    /// O8: children open without waiting for their parents.
    O8,
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use super::Planted;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
    }

    /// Plants a bug for this thread, or takes it out.
    pub fn plant(bug: Option<Planted>) {
        PLANTED.set(bug);
    }

    /// Whether `bug` is planted.
    pub fn is(bug: Planted) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted-bugs")]
pub use switch::{is, plant};

/// Whether `bug` is planted: never, in a product.
#[cfg(not(feature = "planted-bugs"))]
pub const fn is(_bug: Planted) -> bool {
    false
}
