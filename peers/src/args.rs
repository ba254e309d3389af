//! The arguments of the command line.

use std::path::PathBuf;

use crate::engine::Kind;

pub(crate) const USAGE: &str = "\
Measures runlog against other engines: the same data, the same work, one run.

usage: runlog-peers [compare] [--small] [--rounds N] [--rows WORD]... [--engines NAME,...]
                    [--dir FOLDER] [--out FILE]
       runlog-peers readme, and the same words
       runlog-peers [compare | readme] --from FILE
       runlog-peers rows [--small]
       runlog-peers retention [--small] [--once] [--ours] [--dir FOLDER]
       runlog-peers repetition [--small] [--rows WORD]... [--engines NAME,...] [--dir FOLDER]
       runlog-peers commands [--small] [--rounds N] [--megabytes N] [--lookup-megabytes N]
                    [--rows WORD]... [--dir FOLDER]

  compare     appends, lookups, opening after a kill, bytes on disk (the default): a table a row
  readme      the same in one short table
  rows        the names of its rows
  retention   retention, beside SQLite
  repetition  bytes on disk of runs that repeat themselves, beside JSON Lines with zstd
  commands    the command `runlog`, which must be beside this program: lists, following, copies
              and searches beside cp and ripgrep, lookups, imports beside SQLite

  --small     less of everything: ends within a minute, and shows whether it works, not how fast
  --rounds    of each row; 5, or 3 if small
  --rows      only rows with this in their names; may be repeated
  --engines   only these: runlog, jsonl, sqlite, lmdb, redb, fjall, bare
  --dir       where the stores lie; else $RUNLOG_BENCH_DIR, else the folder for temporary files
  --out       write each row to this file, a line of JSON, as soon as it was measured
  --from      measure nothing, tell what is in a file of --out
  --once      one round
  --ours      only runlog
  --megabytes          of payload in the store for backup and search; 1,000
  --lookup-megabytes   of payload in the store for lookups; 10,000
";

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Command {
    Compare,
    Readme,
    Rows,
    Retention {
        once: bool,
        ours: bool,
    },
    Repetition,
    /// Megabytes of the stores for copies and searches, and for lookups.
    Commands {
        megabytes: [u64; 2],
    },
    Help,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Args {
    pub(crate) command: Command,
    pub(crate) small: bool,
    pub(crate) rounds: Option<usize>,
    /// Only rows whose names contain one of these; all rows if it is empty.
    pub(crate) rows: Vec<String>,
    pub(crate) engines: Vec<Kind>,
    pub(crate) dir: PathBuf,
    pub(crate) out: Option<PathBuf>,
    pub(crate) from: Option<PathBuf>,
}

impl Args {
    /// # Errors
    /// A message about invalid arguments.
    pub(crate) fn parse(words: &[String]) -> Result<Self, String> {
        let dir = std::env::var_os("RUNLOG_BENCH_DIR").map(PathBuf::from);
        let mut args = Self {
            command: Command::Compare,
            small: false,
            rounds: None,
            rows: Vec::new(),
            engines: Kind::ALL.to_vec(),
            dir: dir.unwrap_or_else(std::env::temp_dir),
            out: None,
            from: None,
        };
        let (mut once, mut ours, mut sizes) = (false, false, [None, None]);
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word {
                "compare" => args.command = Command::Compare,
                "readme" => args.command = Command::Readme,
                "rows" => args.command = Command::Rows,
                "retention" => args.command = Command::Retention { once: false, ours: false },
                "repetition" => args.command = Command::Repetition,
                "commands" => args.command = Command::Commands { megabytes: [0; 2] },
                "--help" | "-h" => args.command = Command::Help,
                "--small" => args.small = true,
                "--once" => once = true,
                "--ours" => ours = true,
                "--rounds" => args.rounds = Some(rounds(value()?)?),
                "--megabytes" => sizes[0] = Some(megabytes(value()?)?),
                "--lookup-megabytes" => sizes[1] = Some(megabytes(value()?)?),
                "--rows" => args.rows.push(value()?.to_owned()),
                "--engines" => args.engines = engines(value()?)?,
                "--dir" => args.dir = PathBuf::from(value()?),
                "--out" => args.out = Some(PathBuf::from(value()?)),
                "--from" => args.from = Some(PathBuf::from(value()?)),
                other => return Err(format!("{other} is not known")),
            }
        }
        if let Command::Retention { .. } = args.command {
            args.command = Command::Retention { once, ours };
        } else if once || ours {
            return Err("--once and --ours are for retention".to_owned());
        }
        if let Command::Commands { megabytes } = &mut args.command {
            let usual = if args.small { [20, 20] } else { [1_000, 10_000] };
            *megabytes = [sizes[0].unwrap_or(usual[0]), sizes[1].unwrap_or(usual[1])];
        } else if sizes != [None, None] {
            return Err("--megabytes and --lookup-megabytes are for commands".to_owned());
        }
        let measures = matches!(args.command, Command::Compare | Command::Readme);
        if !measures && (args.out.is_some() || args.from.is_some()) {
            return Err("--out and --from are for compare and readme".to_owned());
        }
        if args.out.is_some() && args.from.is_some() {
            return Err("with --from nothing is measured, so there is nothing for --out".to_owned());
        }
        Ok(args)
    }

    pub(crate) fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|word| row.contains(word.as_str()))
    }
}

fn rounds(word: &str) -> Result<usize, String> {
    word.parse().ok().filter(|rounds| *rounds > 0).ok_or(format!("{word} is no number of rounds"))
}

fn megabytes(word: &str) -> Result<u64, String> {
    let number = word.parse().ok().filter(|number| *number > 0);
    number.ok_or(format!("{word} is no number of megabytes"))
}

fn engines(words: &str) -> Result<Vec<Kind>, String> {
    let named = |name: &str| Kind::named(name).ok_or(format!("{name} is no engine"));
    words.split(',').map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Args, String> {
        Args::parse(&words.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn rows_and_engines_can_be_chosen() {
        let args = parse("--small --rows trace --rows disk --engines runlog,lmdb").unwrap();
        assert_eq!(args.engines, [Kind::Ours, Kind::Lmdb]);
        assert!(args.small && args.wants("trace among 5 runs") && args.wants("disk, 256 B"));
        assert!(!args.wants("append, 256 B"));
        assert!(parse("--rounds 2").unwrap().wants("anything"));
    }

    #[test]
    fn retention_is_a_command_of_its_own() {
        let args = parse("retention --small --once").unwrap();
        assert_eq!(args.command, Command::Retention { once: true, ours: false });
        assert!(parse("--once").is_err());
    }

    #[test]
    fn the_sizes_of_the_stores_for_commands_can_be_chosen() {
        let asked = |words| match parse(words).unwrap().command {
            Command::Commands { megabytes } => megabytes,
            other => panic!("{other:?}"),
        };
        assert_eq!(asked("commands"), [1_000, 10_000]);
        assert_eq!(asked("commands --lookup-megabytes 500"), [1_000, 500]);
        assert!(parse("commands --megabytes -1").is_err() && parse("--megabytes 1").is_err());
    }

    #[test]
    fn the_short_table_can_be_made_from_a_file() {
        let args = parse("readme --from rows.jsonl").unwrap();
        assert_eq!((args.command, args.from), (Command::Readme, Some("rows.jsonl".into())));
        assert_eq!(parse("readme --small --out a").unwrap().out, Some("a".into()));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let retention = "retention --out a";
        let both = "--out a --from b";
        for words in [
            "--rounds 0",
            "--rounds",
            "--engines rocksdb",
            "--fast",
            "rows --from",
            retention,
            both,
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}
