//! `--disk-nearly-full` and `--disk-full` of nodes that store on their disks.

use crate::output::Failure;
use partage_worker::DiskLimits;

/// Reads a share of a disk: above 0, 1 at most.
///
/// # Errors
/// It is none; says what is.
pub fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "give a share above 0, and 1 at most, as 0.95".to_owned())
}

/// The limits of a node, where `default` has those that no flag gives.
///
/// # Errors
/// The disk would be full before it is nearly full.
pub fn disk_limits(
    nearly_full: Option<f64>,
    full: Option<f64>,
    default: DiskLimits,
) -> Result<DiskLimits, Failure> {
    let full = full.unwrap_or(default.full);
    let nearly_full = nearly_full.unwrap_or(default.nearly_full.min(full));
    // One that is no limit says nothing about the other.
    if nearly_full > full && nearly_full < 1.0 {
        return Err(Failure::usage(format!(
            "--disk-nearly-full {nearly_full} is above --disk-full {full}: a disk is nearly full before it is full"
        )));
    }
    Ok(DiskLimits { nearly_full, full })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_the_disk_are_shares_in_their_order() {
        for default in [partage_table::DISK_LIMITS, partage_shuffle::DISK_LIMITS] {
            let limits = |nearly_full, full| disk_limits(nearly_full, full, default).ok();
            assert_eq!(limits(None, None), Some(default));
            assert_eq!(limits(None, Some(0.5)), Some(DiskLimits { nearly_full: 0.5, full: 0.5 }));
            assert_eq!(limits(Some(1.0), Some(1.0)), Some(DiskLimits::NONE));
            assert_eq!(limits(Some(1.0), None), Some(DiskLimits { nearly_full: 1.0, full: default.full }));
            assert_eq!(limits(Some(0.9), Some(0.8)), None);
        }
        assert_eq!(share("0.5"), Ok(0.5));
        for bad in ["0", "-1", "1.1", "NaN", "95%", ""] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
