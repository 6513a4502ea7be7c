//! Offers of an older map: a coordinator that lags behind, or a coordination state that was set back.
//!
//! A router refuses both (M2), and one offer does not tell them apart. Time does: the router leaves a standby that lags
//! for another coordinator, and a next leader offers the latest map as soon as it has read the state. A state that was
//! set back stays so until a person restores it, and every coordinator offers it.
//!
//! | in a row                                                | result              |
//! |---------------------------------------------------------|---------------------|
//! | offers of older maps for less than [`limits::MAP_BACK_MS`] | [`Offer::Lags`]  |
//! | offers of older maps for as long or longer, the first time | [`Offer::Stays`] |
//! | the same again                                          | [`Offer::Known`]    |
//!
//! A coordinator that sends all its maps, and each is taken, ends the row ([`Offers::taken`]).

use crate::base::time::Millis;
use crate::limits;

/// What a refused offer of an older map means, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// This coordinator lags behind, as far as is known: another one, or the same one soon, has the latest map.
    Lags,
    /// No coordinator had the latest map for so many milliseconds: a person should look.
    Stays(u64),
    /// The same as the last time; it was reported already.
    Known,
}

/// The offers of older maps since the last coordinator whose maps were all taken.
#[derive(Debug, Clone, Copy, Default)]
pub struct Offers {
    since: Option<Millis>,
    reported: bool,
}

impl Offers {
    /// A coordinator offered an older map, which was refused.
    pub fn refused(&mut self, now: Millis) -> Offer {
        let since = *self.since.get_or_insert(now);
        let for_ms = now.since(since);
        if for_ms < limits::MAP_BACK_MS {
            Offer::Lags
        } else if std::mem::replace(&mut self.reported, true) {
            Offer::Known
        } else {
            Offer::Stays(for_ms)
        }
    }

    /// A coordinator has sent all its maps, and each was taken.
    pub fn taken(&mut self) {
        *self = Offers::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m2_an_older_map_is_an_alarm_once_and_only_when_no_coordinator_has_the_latest_for_long() {
        let mut offers = Offers::default();
        assert_eq!(offers.refused(Millis(5)), Offer::Lags);
        assert_eq!(offers.refused(Millis(4 + limits::MAP_BACK_MS)), Offer::Lags);
        assert_eq!(offers.refused(Millis(6 + limits::MAP_BACK_MS)), Offer::Stays(limits::MAP_BACK_MS + 1));
        assert_eq!(offers.refused(Millis(7 + limits::MAP_BACK_MS)), Offer::Known);
        offers.taken();
        assert_eq!(offers.refused(Millis(8 + limits::MAP_BACK_MS)), Offer::Lags, "a row of its own");
    }
}
