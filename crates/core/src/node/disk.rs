//! How much of its disk a node may use, and when it is at a limit of that.

use crate::limits::DISK_HYSTERESIS;

/// How much of the disk of a node may be used: shares of what the file system of its folder has for such processes, 0 to 1.
/// They are of the whole file system, so what else is there counts, too. A limit of 1 is none: then only the system says that
/// there is no room.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskLimits {
    /// From here on nothing new is placed on the node.
    pub nearly_full: f64,
    /// From here on the node does what it does on a full disk, such as refusing writes.
    pub full: f64,
}

impl DiskLimits {
    /// No limits: the node uses what there is.
    pub const NONE: DiskLimits = DiskLimits { nearly_full: 1.0, full: 1.0 };
}

/// Which limits the disk is at. It is below one again when [`DISK_HYSTERESIS`] less is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AtLimits {
    /// Whether [`DiskLimits::nearly_full`] is reached: the node gets no new replicas.
    pub nearly_full: bool,
    /// Whether [`DiskLimits::full`] is reached: the node refuses writes.
    pub full: bool,
}

impl AtLimits {
    /// Which limits it is at when this share of it is used, 0 to 1.
    #[must_use]
    pub fn look(self, limits: DiskLimits, used: f64) -> AtLimits {
        let is_at = |limit: f64, was: bool| {
            let limit_now = if was { (limit - DISK_HYSTERESIS).max(limit / 2.0) } else { limit };
            limit < 1.0 && used >= limit_now
        };
        AtLimits {
            nearly_full: is_at(limits.nearly_full, self.nearly_full),
            full: is_at(limits.full, self.full),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_until_a_hundredth_less_is_used() {
        let limits = DiskLimits { nearly_full: 0.95, full: 0.98 };
        let mut at = AtLimits::default();
        let mut look = |used| {
            at = at.look(limits, used);
            (at.nearly_full, at.full)
        };
        assert_eq!(look(0.9499), (false, false));
        assert_eq!((look(0.95), look(0.945), look(0.939)), ((true, false), (true, false), (false, false)));
        assert_eq!((look(0.98), look(0.975)), ((true, true), (true, true)));
        assert_eq!((look(0.969), look(0.979)), ((true, false), (true, false)));
        assert_eq!((look(1.0), look(0.0)), ((true, true), (false, false)));
        assert_eq!(AtLimits::default().look(DiskLimits::NONE, 1.0), AtLimits::default());
    }
}
