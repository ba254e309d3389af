//! Files that no program wrote: whatever is in them, each is named, and each that becomes a run
//! comes back byte for byte.

use serde_json::json;

use crate::world::World;

/// Random numbers that are the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % n
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn space(&mut self) -> &'static str {
        self.pick(&["", "", "", " ", "\n", "\r\n\t", "  \n"])
    }

    fn string(&mut self) -> String {
        let letters = ["a", "\u{e9}", "\\n", "\\u0041", "\\\"", "]", "{", ",", "\u{1f980}"];
        (0..self.below(4)).map(|_| self.pick(&letters)).collect()
    }

    /// A JSON value with the keys that documents have, at places where they have them and others.
    fn json(&mut self, depth: usize) -> String {
        let keys = [
            "messages",
            "trajectory",
            "history",
            "steps",
            "samples",
            "events",
            "transcript",
            "role",
            "content",
            "type",
            "event",
            "info",
            "exit_status",
            "eval",
            "status",
            "schema_version",
            "sessionId",
            "agent",
            "timestamp",
            "payload",
            "record",
        ];
        let words = [
            "\"user\"",
            "\"ATIF-v1\"",
            "\"success\"",
            "\"submitted\"",
            "\"document\"",
            "\"unterminated-line\"",
            "\"raw\"",
            "\"ended\"",
            "\"2026-01-02T03:04:05Z\"",
            "1e400",
            "-0",
            "null",
            "true",
        ];
        let (open, close) = match (depth, self.below(5)) {
            (0, _) | (_, 0) => return self.pick(&words).to_owned(),
            (_, 1 | 2) => ("[", "]"),
            _ => ("{", "}"),
        };
        let mut text = format!("{open}{}", self.space());
        for number in 0..self.below(5) {
            if number > 0 {
                text += &[self.space(), ",", self.space()].concat();
            }
            if open == "{" {
                let key =
                    if self.below(9) == 0 { self.string() } else { self.pick(&keys).to_owned() };
                text += &["\"", &key, "\"", self.space(), ":", self.space()].concat();
            }
            text += &self.json(depth - 1);
        }
        text + self.space() + close
    }

    /// A file of one of many kinds.
    fn file(&mut self) -> Vec<u8> {
        let mut bytes = match self.below(4) {
            0 | 1 => (self.space().to_owned() + &self.json(6) + self.space()).into_bytes(),
            2 => (0..self.below(8))
                .flat_map(|_| {
                    let line = self.json(3).replace(['\n', '\r'], "")
                        + self.pick(&["\n", "\r\n", "\n\n", ""]);
                    line.into_bytes()
                })
                .collect(),
            _ => {
                let parts: [&[u8]; 10] = [
                    b"{",
                    b"}\n",
                    b"[",
                    b"]",
                    b"\"",
                    b"\n",
                    b"\0",
                    b"\xff",
                    "\u{feff}".as_bytes(),
                    b"PK\x03\x04",
                ];
                (0..self.below(20)).flat_map(|_| self.pick(&parts).to_vec()).collect()
            }
        };
        match self.below(8) {
            // Cut, or with a mark of the byte order.
            0 => bytes.truncate(self.below(bytes.len() + 1)),
            1 => bytes = ["\u{feff}".as_bytes(), &bytes].concat(),
            _ => {}
        }
        bytes
    }
}

#[test]
fn whatever_is_in_a_file_it_is_named_and_comes_back_byte_for_byte() {
    let world = World::new();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let endings = ["jsonl", "json", "traj", "traj.json", "eval", "txt", "log", "ndjson"];
    let files: Vec<(String, Vec<u8>)> = (0..400)
        .map(|number| (format!("{number}.{}", random.pick(&endings)), random.file()))
        .collect();
    for (name, bytes) in &files {
        world.write(&format!("a/{name}"), bytes);
    }
    let told = world.damaged(&["import", "--create", "a", "--skip-unknown", "--json"]).json();
    let (mut runs, mut unknown) = (0, 0);
    for (name, bytes) in &files {
        let file = format!("a/{name}");
        let mut events = told.iter().filter(|event| event["file"] == file.as_str());
        let event = events.find(|event| event["event"] != "damaged_line").expect("it is named");
        if event["event"] == "unknown" {
            unknown += 1;
            continue;
        }
        assert_eq!(event["event"], "run", "{event}");
        runs += 1;
        let run = event["run"].as_str().expect("a run");
        let shown = world.good(&["show", run, "--raw"]).stdout;
        let lossy = String::from_utf8_lossy;
        assert!(shown == *bytes, "{event}: {:?} is {:?}", lossy(bytes), lossy(&shown));
        world.good(&["show", run, "--json"]);
    }
    // Several are imported at a time, and told in the order of their names.
    let named = told.iter().filter(|event| event["event"] != "damaged_line");
    let order: Vec<&str> = named.filter_map(|event| event["file"].as_str()).collect();
    assert!(order.is_sorted(), "{order:?}");
    assert!(runs > 200 && unknown > 20, "{runs} runs, {unknown} not recognised");
    let again = world.damaged(&["import", "a", "--skip-unknown", "--json"]).json();
    let sums = again.last().expect("sums");
    assert_eq!((&sums["already_there"], &sums["errors"]), (&json!(runs), &json!(0)));
    world.good(&["verify"]);
}
