//! Where a state is cut into parts. Pure: bytes in, places out.
//!
//! A cut depends on the bytes around it, and hardly on anything in front of them. So two similar
//! states have most parts in common, wherever they differ.
//!
//! There are three kinds of cuts:
//! - behind a value of the JSON that is not nested deeply and at least [`SMALL`] long, such as a
//!   message: bytes that are appended behind it begin a new part;
//! - where a rolling checksum of the last 64 bytes has a certain form, about once in 2 KiB of long
//!   texts and of many small values;
//! - after [`LARGE`] bytes in any case.

use crate::digest::mixed;

/// The shortest part, except for the last one.
const SMALLEST: usize = 256;

/// A cut follows a value of at least this length. The checksum cuts no shorter part.
const SMALL: usize = 1 << 10;

/// The longest part; the end of a character may exceed it.
const LARGE: usize = 16 << 10;

/// The deepest nesting of a value that is followed by a cut: an object in a list in an object.
const SHALLOW: u32 = 3;

/// So many zero bits at the top of the checksum make a cut.
const ZEROS: u32 = 11;

/// The fewest parts of a node, except for the last one of a state.
const FEW: usize = 4;

/// The most parts of a node.
const MANY: usize = 128;

/// One name in so many ends its node.
const OF: u64 = 32;

/// The number that each byte adds to the checksum.
const GEAR: [u64; 256] = gear();

const fn gear() -> [u64; 256] {
    let (mut table, mut place, mut state) = ([0; 256], 0, 0_u64);
    while place < 256 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        table[place] = mixed(state);
        place += 1;
    }
    table
}

/// The most parts that a state of so many bytes has.
pub(super) fn most_parts(len: u64) -> u64 {
    len / SMALLEST as u64 + 1
}

/// The ends of the parts of a state. The bytes behind the last end are not a part yet.
pub(super) fn cuts(state: &[u8]) -> Vec<usize> {
    let mut cuts = Vec::new();
    let (mut begin, mut checksum, mut json) = (0, 0_u64, Json::default());
    for (place, &byte) in state.iter().enumerate() {
        let end = place + 1;
        checksum = (checksum << 1).wrapping_add(GEAR[usize::from(byte)]);
        let ends_value = json.step(byte, end);
        // The second to fourth bytes of a character.
        if state.get(end).is_some_and(|next| next & 0xc0 == 0x80) && end - begin < LARGE + 4 {
            continue;
        }
        let len = end - begin;
        let here = ends_value && len >= SMALLEST
            || len >= SMALL && checksum.leading_zeros() >= ZEROS
            || len >= LARGE;
        if here {
            cuts.push(end);
            begin = end;
        }
    }
    cuts
}

/// The state of a scan through JSON. It also accepts bytes that are not JSON.
#[derive(Default)]
struct Json {
    in_text: bool,
    escaped: bool,
    depth: u32,
    /// Where the last value ended that was not nested deeply.
    last: usize,
}

impl Json {
    /// Whether a long value that is not nested deeply ends behind this byte.
    fn step(&mut self, byte: u8, end: usize) -> bool {
        let ends = if self.in_text {
            let closes = byte == b'"' && !self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
            self.in_text = !closes;
            closes
        } else {
            match byte {
                b'"' => self.in_text = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            matches!(byte, b'}' | b']')
        };
        if !ends || self.depth > SHALLOW {
            return false;
        }
        let len = end - self.last;
        self.last = end;
        len >= SMALL
    }
}

/// The ends of the nodes of these names, the last of which is the end of the names.
pub(super) fn node_cuts(names: &[u64]) -> Vec<usize> {
    let (mut cuts, mut begin) = (Vec::new(), 0);
    for (place, name) in names.iter().enumerate() {
        let len = place + 1 - begin;
        if len >= FEW && name % OF == 0 || len == MANY || place + 1 == names.len() {
            cuts.push(place + 1);
            begin = place + 1;
        }
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a state.
    fn parts(state: &[u8]) -> Vec<&[u8]> {
        let mut parts = Vec::new();
        let mut begin = 0;
        for end in cuts(state) {
            parts.push(&state[begin..end]);
            begin = end;
        }
        parts.push(&state[begin..]);
        parts
    }

    /// Letters of which none tells the next.
    fn text(len: usize, seed: u64) -> String {
        let letter =
            |place| char::from(b'a' + u8::try_from(mixed(place ^ seed << 32) % 26).unwrap());
        (0..len as u64).map(letter).collect()
    }

    #[test]
    fn what_is_appended_to_a_list_leaves_the_parts_in_front_as_they_are() {
        let message = |seed| format!("{{\"role\":\"user\",\"content\":\"{}\"}}", text(4000, seed));
        let state = |count| {
            let messages: Vec<String> = (0..count).map(message).collect();
            format!("{{\"messages\":[{}],\"count\":{count}}}", messages.join(","))
        };
        for count in 1..20 {
            let (old, new) = (state(count), state(count + 1));
            let (old, new) = (parts(old.as_bytes()), parts(new.as_bytes()));
            let same = old.iter().zip(&new).take_while(|(left, right)| left == right).count();
            assert_eq!(same, old.len() - 1, "only the end of the old state is another part");
            let fresh: usize = new[same..].iter().map(|part| part.len()).sum();
            assert!(fresh < 4500, "{fresh} bytes of new parts for one message");
        }
    }

    #[test]
    fn a_change_in_the_middle_changes_a_few_parts() {
        let old = text(200_000, 7);
        let mut new = old.clone();
        new.replace_range(100_000..100_003, "seventeen");
        let (old, new) = (parts(old.as_bytes()), parts(new.as_bytes()));
        let changed = new.iter().filter(|part| !old.contains(part)).count();
        assert!(changed <= 3, "{changed} of {} parts", new.len());
        assert!(new.len() > 40 && new.len() < 120, "{} parts", new.len());
    }

    #[test]
    fn parts_are_the_state_and_neither_short_nor_long_whatever_it_is() {
        let states = [
            Vec::new(),
            vec![0; 100_000],
            vec![b'['; 100_000],
            vec![b'"'; 100_000],
            vec![0x80; 100_000],
            "\u{1f980}".repeat(30_000).into_bytes(),
            "[\"\\\\\",\"\\\"\"]".repeat(3000).into_bytes(),
        ];
        for state in states {
            let parts = parts(&state);
            assert_eq!(parts.concat(), state);
            let (_, whole) = parts.split_last().unwrap();
            for part in whole {
                assert!((SMALLEST..=LARGE + 4).contains(&part.len()), "{} bytes", part.len());
            }
            assert!(parts.len() as u64 <= most_parts(state.len() as u64));
            if std::str::from_utf8(&state).is_ok() {
                assert!(parts.iter().all(|part| std::str::from_utf8(part).is_ok()));
            }
        }
    }

    #[test]
    fn nodes_are_fewer_than_their_names() {
        let names: Vec<u64> = (0..100_000).map(mixed).collect();
        for count in [1, 3, 4, 5, 17, 1000, 100_000] {
            let cuts = node_cuts(&names[..count]);
            assert_eq!(cuts.last(), Some(&count));
            assert!(cuts.len() <= count / FEW + 1, "{} nodes of {count}", cuts.len());
        }
        assert!(node_cuts(&[]).is_empty());
        assert_eq!(node_cuts(&[0; 10]), [4, 8, 10]);
    }
}
