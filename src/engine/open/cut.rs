//! A segment that is not sealed, cut into frames and gaps.

use core::ops::Range;
use std::borrow::Cow;
use std::sync::Arc;

use crate::engine::state::scan::Item;
use crate::engine::state::segment::Segment;
use crate::format::FrameKind;
use crate::format::frames::frame::{FRAME_ALIGN, FRAME_HEADER_LEN};
use crate::format::map::manifest::used_len;
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::types::LogPosition;

/// A segment, cut into items.
pub(super) struct Cut<'a> {
    pub(super) segment: &'a Arc<Segment>,
    /// Read only once, since a process that only reads may find other bytes the next time.
    pub(super) extent: Cow<'a, [u8]>,
    pub(super) items: Vec<Item>,
    /// Where the second part of a gap around the floor begins.
    pub(super) second: Option<u32>,
}

impl Cut<'_> {
    /// Cuts a gap around the floor in two: what is lost behind it was not durable, whatever is lost
    /// in front of it. Both are one loss: the next opening finds them as one gap.
    pub(super) fn split_at(&mut self, floor: LogPosition) {
        let middle = floor.offset;
        let is_around = |item: &Item| match *item {
            Item::Gap { from, to: Some(to), .. } => from < middle && middle < to,
            _ => false,
        };
        if floor.segment == self.segment.id()
            && let Some(place) = self.items.iter().position(is_around)
            && let Some(Item::Gap { to, blank, .. }) = self.items.get_mut(place)
        {
            let behind = Item::Gap { from: middle, to: to.replace(middle), blank: *blank };
            self.items.insert(place + 1, behind);
            self.second = Some(middle);
        }
    }

    /// The items, with a gap that was cut in two as one.
    pub(super) fn losses(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| Some(item.offset()) != self.second)
    }

    /// Leaves out what is not in front of the floor, as if nothing had been written there.
    pub(super) fn end_at(&mut self, floor: LogPosition) {
        self.items.retain(|item| self.segment.position(item.offset()) < floor);
        let from = match self.items.last() {
            Some(Item::Frame(lexed)) => lexed.end(),
            Some(Item::Gap { .. }) => return,
            None => SEGMENT_HEADER_LEN,
        };
        self.items.push(Item::Gap { from, to: None, blank: true });
    }

    /// Whether a SEAL frame can have been where the frames end: more bytes than a header were
    /// written there. Pages that were lost leave none, or the beginning of a header.
    pub(super) fn may_have_lost_seal(&self) -> bool {
        let end = self.items.last().map_or(0, Item::offset);
        self.written().saturating_sub(end) as usize > FRAME_HEADER_LEN
    }

    /// Where what was written ends. A frame whose end was not stored extends as far as its header
    /// says.
    pub(super) fn written(&self) -> u32 {
        match self.items.last() {
            Some(Item::Gap { from, blank: false, .. }) => {
                let data = self.extent.get(..self.segment.data_end()).unwrap_or(&self.extent);
                let written = used_len(data).next_multiple_of(FRAME_ALIGN);
                u32::try_from(written).unwrap_or(u32::MAX).max(*from)
            }
            last => last.map_or(SEGMENT_HEADER_LEN, Item::offset),
        }
    }

    /// The ranges behind the end, as far as anything was written.
    pub(super) fn behind(&self, end: u32) -> Vec<Range<u32>> {
        let starts = self.items.iter().map(Item::offset);
        let pieces = starts.clone().zip(starts.skip(1).chain([self.written()]));
        let ranges = pieces.map(|(start, next)| start..next);
        ranges.filter(|at| at.start >= end && !at.is_empty()).collect()
    }
}

/// Whether this is a SEAL frame, whole or not.
pub(super) fn is_seal(item: &Item) -> bool {
    item.frame().is_some_and(|lexed| lexed.header.kind == FrameKind::Seal)
}
