//! Damage that may have been the doing of a writer which reused what was read.

use std::collections::HashMap;

use crate::damage::{Corruption, Place};
use crate::types::Seq;

/// Damage that is not the same differs in this, as a rule.
type Key = (Place, Option<Seq>);

/// The damage that was seen. What is seen again in a view that was built later, and still has its
/// segment, is real: no segment comes back once it was retired, so the first look was at the
/// segment's own bytes: damage must name the place of the bytes that did not check, and no other.
/// Without this, a writer that never rests would keep a reader from an answer.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    /// With the newest view that there was by then, by place and record: there may be as many as
    /// there are frames.
    seen: HashMap<Key, Vec<(Corruption, u64)>>,
}

impl Doubt {
    /// Whether all that was seen in a view was seen before the view was built. What was not is
    /// doubted: it was seen when there was the view `newest`, and none behind it.
    pub(crate) fn confirms(&mut self, damage: &[Corruption], view: u64, newest: u64) -> bool {
        let mut is_real = true;
        for found in damage {
            let there = self.seen.entry(key_of(found)).or_default();
            match there.iter().find(|(seen, _)| seen == found) {
                Some((_, at)) => is_real &= *at < view,
                None => {
                    is_real = false;
                    there.push((found.clone(), newest));
                }
            }
        }
        is_real
    }

    /// The same for one.
    pub(crate) fn confirms_one(&mut self, damage: &Corruption, view: u64, newest: u64) -> bool {
        self.confirms(core::slice::from_ref(damage), view, newest)
    }

    /// Forgets it.
    pub(crate) fn clear(&mut self) {
        self.seen.clear();
    }
}

fn key_of(found: &Corruption) -> Key {
    (found.place, found.seq)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::Damage;
    use crate::types::{LogPosition, SegmentId};

    /// A bound on the work: nothing is compared with more than what has its place.
    #[test]
    fn damage_is_compared_with_that_of_its_place_alone_however_much_there_is() {
        let at = |offset| Place::Frame(LogPosition { segment: SegmentId(1), offset });
        let of_frames = (0..20_000).map(|offset| Corruption::new(at(offset), Damage::Missing));
        let block = Corruption::new(at(8), Damage::Undecodable);
        let of_records = (0..20_000).map(|seq| block.clone().at(Some(Seq(seq))));
        let damage: Vec<_> = of_frames.chain(of_records).collect();
        let mut doubt = Doubt::default();
        assert!(!doubt.confirms(&damage, 1, 1));
        assert!(!doubt.confirms(&damage, 1, 2), "no view was built since");
        assert!(doubt.confirms(&damage, 2, 2));
        assert_eq!(doubt.seen.values().map(Vec::len).max(), Some(1));
        let other = Corruption::new(at(8), Damage::Magic);
        assert!(!doubt.confirms_one(&other, 3, 3) && doubt.confirms_one(&other, 4, 4));
        assert!(doubt.confirms(&damage, 4, 4));
    }
}
