//! The numbers of this crate that no setting changes. Those that a caller may change are in [`crate::store::StoreSettings`] and [`crate::log::DecisionSettings`]. Times are in milliseconds.

/// Answers that wait for the disk, for each slot.
pub(crate) const LOGGED_WAITING: usize = 256;
/// How often a read looks for a batch whose file was written anew meanwhile.
pub(crate) const READ_LOOKS: usize = 3;
