//! Arguments that begin with a hyphen and are no options.
//!
//! Claude Code names each project like `-home-u-app`, and so ids, folders and texts begin with
//! hyphens. clap takes them for options; with `allow_hyphen_values` it takes options for them. So
//! the command orders such a command line first: options with their values, `--`, and the rest.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};

/// How similar an unknown option is to a known one if it is mistyped, from 0 to 1.
const SIMILAR: f64 = 0.85;

/// The arguments so that clap reads them, the name of the program first.
pub(crate) fn ordered(command: &mut Command, arguments: Vec<OsString>) -> Vec<OsString> {
    if !arguments.iter().skip(1).any(begins_with_hyphen) {
        return arguments;
    }
    // Each command gets the options of all.
    command.build();
    in_order(command, &arguments).unwrap_or(arguments)
}

fn begins_with_hyphen(argument: &OsString) -> bool {
    argument.as_encoded_bytes().starts_with(b"-")
}

/// The kinds of arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No option: a command, or the value of a place.
    Value,
    /// A flag, or an option with its value.
    Whole,
    /// An option whose value is the next argument.
    Takes,
    /// An option whose value may be the next argument.
    MayTake,
    /// An option that the command does not have.
    Unknown,
}

/// The arguments in order; `None` if nothing is to be done, or nothing can be.
fn in_order(mut command: &Command, arguments: &[OsString]) -> Option<Vec<OsString>> {
    let mut rest = arguments.iter().skip(1).peekable();
    let (mut options, mut values) = (vec![arguments.first()?.clone()], Vec::new());
    let (mut is_in_command, mut has_hyphens) = (false, false);
    while let Some(argument) = rest.next() {
        if argument == "--" {
            values.extend(rest.by_ref().cloned());
            break;
        }
        let kind = kind_of(command, argument);
        let takes_next = |next: &&OsString| match kind {
            Kind::Takes => matches!(kind_of(command, next), Kind::Value | Kind::Unknown),
            Kind::MayTake => !begins_with_hyphen(next),
            _ => false,
        };
        if let Some(next) = rest.next_if(takes_next) {
            has_hyphens |= begins_with_hyphen(next);
            let mut joined = argument.clone();
            joined.push("=");
            joined.push(next);
            options.push(joined);
        } else if kind != Kind::Value {
            options.push(argument.clone());
        } else if is_in_command {
            has_hyphens |= begins_with_hyphen(argument) && argument != "-";
            values.push(argument.clone());
        } else {
            command = command.find_subcommand(argument)?;
            is_in_command = true;
            options.push(argument.clone());
        }
    }
    if !has_hyphens || values.len() > places(command) {
        return None;
    }
    options.push("--".into());
    options.extend(values);
    Some(options)
}

/// How many values without an option the command takes.
fn places(command: &Command) -> usize {
    let most = |arg: &Arg| match arg.get_action() {
        ArgAction::Append => usize::MAX,
        _ => arg.get_num_args().map_or(1, |number| number.max_values()),
    };
    command.get_positionals().map(most).fold(0, usize::saturating_add)
}

fn kind_of(command: &Command, argument: &OsString) -> Kind {
    // Bytes that are not UTF-8 are no option.
    let text = argument.to_str().unwrap_or_default();
    if let Some(long) = text.strip_prefix("--") {
        return kind_of_long(command, long);
    }
    match text.strip_prefix('-') {
        Some(letters) if !letters.is_empty() => kind_of_short(command, letters),
        _ => Kind::Value,
    }
}

fn kind_of_long(command: &Command, long: &str) -> Kind {
    let (name, value) =
        long.split_once('=').map_or((long, None), |(name, rest)| (name, Some(rest)));
    if let Some(found) = command.get_arguments().find(|arg| names(arg).contains(&name)) {
        return if value.is_some() { Kind::Whole } else { taking(found) };
    }
    let is_similar =
        |arg: &Arg| names(arg).iter().any(|known| strsim::jaro_winkler(known, name) >= SIMILAR);
    // `AGENT/RUN` is an id, and a pattern is any text that is like no option.
    let takes_text = command.get_positionals().any(|arg| arg.get_id() == "pattern");
    let is_text = takes_text && !command.get_arguments().any(is_similar);
    if name.contains('/') || is_text { Kind::Value } else { Kind::Unknown }
}

fn names(arg: &Arg) -> Vec<&str> {
    arg.get_long_and_visible_aliases().unwrap_or_default()
}

/// Options of one letter each. The last may be followed by its value.
fn kind_of_short(command: &Command, letters: &str) -> Kind {
    let is_one = letters.chars().nth(1).is_none();
    for (at, letter) in letters.char_indices() {
        let found = command.get_arguments().find(|arg| arg.get_short() == Some(letter));
        let rest = letters.get(at + letter.len_utf8()..).unwrap_or_default();
        match found.map(|arg| (taking(arg), arg.get_action())) {
            Some((Kind::Whole, ArgAction::Help | ArgAction::Version)) if !is_one => {
                return text(command);
            }
            Some((Kind::Whole, _)) => {}
            Some((kind, _)) if rest.is_empty() => return kind,
            // All of these take numbers.
            Some(_) if rest.starts_with(|next: char| next.is_ascii_digit() || next == '=') => {
                return Kind::Whole;
            }
            None if is_one => return Kind::Unknown,
            _ => return text(command),
        }
    }
    Kind::Whole
}

/// Other text is a value, where the command takes one.
fn text(command: &Command) -> Kind {
    if places(command) > 0 { Kind::Value } else { Kind::Unknown }
}

fn taking(arg: &Arg) -> Kind {
    match arg.get_num_args() {
        _ if !arg.get_action().takes_values() => Kind::Whole,
        Some(number) if number.min_values() == 0 => Kind::MayTake,
        _ => Kind::Takes,
    }
}
