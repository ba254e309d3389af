//! Damage that may have been the doing of a writer which reused what was read.

use crate::damage::Corruption;

/// The damage that was seen. What is seen again in a view that was built later, and still has its
/// segment, is real: no segment comes back once it was retired, so the first look was at the
/// segment's own bytes: damage must name the place of the bytes that did not check, and no other.
/// Without this, a writer that never rests would keep a reader from an answer.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    /// With the newest view that there was by then.
    seen: Vec<(Corruption, u64)>,
}

impl Doubt {
    /// Whether all that was seen in a view was seen before the view was built. What was not is
    /// doubted: it was seen when there was the view `newest`, and none behind it.
    pub(crate) fn confirms(&mut self, damage: &[Corruption], view: u64, newest: u64) -> bool {
        let mut is_real = true;
        for found in damage {
            match self.seen.iter().find(|(seen, _)| seen == found) {
                Some((_, at)) => is_real &= *at < view,
                None => {
                    is_real = false;
                    self.seen.push((found.clone(), newest));
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
