//! The blocks marked `hex` in the specification.

/// A line of a `hex` block: `1000: 52 4c 4f 47  what it is`.
struct HexLine<'a> {
    at: usize,
    bytes: Vec<u8>,
    comment: &'a str,
}

impl<'a> HexLine<'a> {
    fn parse(line: &'a str) -> Self {
        let (at, rest) = line.split_once(": ").expect(line);
        let (hex, comment) = rest.split_once("  ").unwrap_or((rest, ""));
        let byte = |text: &str| u8::from_str_radix(text, 16).expect(line);
        Self {
            at: usize::from_str_radix(at.trim_start(), 16).expect(line),
            bytes: hex.split(' ').map(byte).collect(),
            comment: comment.trim_start(),
        }
    }

    fn with(&self, store: &[u8]) -> String {
        let bytes = &store[self.at..self.at + self.bytes.len()];
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:5x}: {:<47}  {}", self.at, hex.join(" "), self.comment).trim_end().to_owned()
    }
}

/// The specification with the bytes of its `hex` blocks taken from a store.
pub(super) fn with_bytes_of(text: &str, store: &[u8]) -> (String, usize) {
    let (mut out, mut within, mut shown) = (String::new(), false, 0);
    for line in text.lines() {
        match line {
            "```hex" => within = true,
            "```" => within = false,
            _ if within => {
                let hex = HexLine::parse(line);
                shown += hex.bytes.len();
                out += &hex.with(store);
                out.push('\n');
                continue;
            }
            _ => {}
        }
        out += line;
        out.push('\n');
    }
    (out, shown)
}
