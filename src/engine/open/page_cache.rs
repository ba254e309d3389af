//! Whether the page cache has survived, whatever the boot id says.

use crate::engine::open::cut::{Cut, is_seal};
use crate::engine::state::scan::{Item, truncation_marker};
use crate::types::LogPosition;

/// Whether a kill can have left these segments: the last frame torn, at most one hole, which is
/// damage, and a SEAL frame, or that hole, at the end of each segment but the last. Otherwise the
/// page cache did not survive, whatever the boot id says (R4).
pub(super) fn is_left_by_a_kill(cuts: &[Cut<'_>], floor: LogPosition) -> bool {
    let Some(last) = cuts.iter().rposition(|cut| cut.items.iter().any(Item::is_valid)) else {
        return true;
    };
    let mut holes = 0;
    for (number, cut) in cuts.iter().enumerate().take(last + 1) {
        if cut.segment.id() < floor.segment {
            continue;
        }
        // An earlier recovery that came to another conclusion has put it into the superblocks.
        if truncation_marker(&cut.items).is_some() {
            continue;
        }
        let closed = cut.items.iter().position(is_seal);
        if closed.is_none() && number < last && !cut.may_have_lost_seal() {
            return false;
        }
        // After a kill, frames follow a SEAL frame only if all of it was written.
        let sealed = match closed {
            None if number < last => Some(cut.items.len()),
            closed => closed.map(|seal| seal + usize::from(number < last)),
        };
        let end = sealed.or_else(|| cut.items.iter().rposition(Item::is_valid)).unwrap_or(0);
        let above = |item: &&Item| cut.segment.position(item.offset()) >= floor;
        let log = cut.items.get(..end).unwrap_or_default();
        holes += log.iter().filter(above).filter(|item| !item.is_valid()).count();
    }
    holes <= 1
}
