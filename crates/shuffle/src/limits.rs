//! The numbers of this crate that no setting changes. Those that a caller may change are in [`crate::store::StoreSettings`]. Times are in milliseconds.

/// How often a read looks for a batch whose file was written anew meanwhile.
pub(crate) const READ_LOOKS: usize = 3;
