//! Finds the run of an argument: a run id, an id with `--agent`, `AGENT/RUN` as it is printed, or
//! the beginning of any of these that only one run has.

use std::io::{self, IsTerminal as _};

use runlog::{Error, ReadLog, RunQuery, RunRef, RunSummary};

use crate::failure::Failure;

/// How many candidates are named.
const NAMED: usize = 8;

/// How many runs with similar names are suggested.
const SUGGESTED: usize = 3;

/// How similar a name must be to be suggested, from 0 to 1.
const SIMILAR: f64 = 0.8;

/// A run, for every command that takes one.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The run: its id or AGENT/RUN, or a beginning of these that no other run has.
    pub(crate) run: String,

    /// The agent of the run, needed if several agents have a run with this id.
    #[arg(long)]
    pub(crate) agent: Option<String>,
}

impl RunArgs {
    /// The run as the store takes it.
    pub(crate) fn named(&self) -> RunRef<'_> {
        match &self.agent {
            Some(agent) => RunRef::from((agent.as_str(), self.run.as_str())),
            None => RunRef::from(self.run.as_str()),
        }
    }
}

/// The run that the arguments name, for a command that reads it.
///
/// A run of exactly this id comes first. If there is none and no agent is named, each slash may be
/// the one between agent and run, since ids may hold slashes as well. Then come the runs whose ids
/// begin with the text, and of `AGENT/RUN` those whose names do.
pub(crate) fn run(log: &impl ReadLog, args: &RunArgs) -> Result<RunSummary, Failure> {
    by_name(log, args, true)
}

/// The same for a command that changes the run: the beginning of an id is enough only on a
/// terminal. In a script that runs twice, it may by then be the beginning of another run.
pub(crate) fn run_to_change(log: &impl ReadLog, args: &RunArgs) -> Result<RunSummary, Failure> {
    by_name(log, args, io::stdin().is_terminal())
}

fn by_name(
    log: &impl ReadLog,
    args: &RunArgs,
    takes_beginnings: bool,
) -> Result<RunSummary, Failure> {
    let missing = match log.run(args.named()) {
        Err(error) if error.is_not_found() => error,
        Err(Error::Ambiguous { run, agents }) => {
            let candidates = agents.iter().map(|agent| format!("{agent}/{run}")).collect();
            return Err(ambiguous(Error::Ambiguous { run, agents }.to_string(), candidates));
        }
        other => return Ok(other?),
    };
    if args.agent.is_none()
        && let Some(found) = by_slash(log, args)?
    {
        return Ok(found);
    }
    let (mut found, candidates) = similar(log, args)?;
    match found.len() {
        1 if takes_beginnings => Ok(found.remove(0)),
        n @ (0 | 1) => {
            let hint = "; to change a run takes its whole id, unless standard input is a terminal";
            let message = format!("{missing}{}", if n == 1 { hint } else { "" });
            Err(Failure::NoRun { message, is_ambiguous: false, candidates })
        }
        n => {
            let more = if n > NAMED { "more than " } else { "" };
            let n = n.min(NAMED);
            let message = format!("{more}{n} runs have names that begin with {}", args.run);
            Err(ambiguous(message, candidates))
        }
    }
}

fn ambiguous(message: String, candidates: Vec<String>) -> Failure {
    Failure::NoRun { message, is_ambiguous: true, candidates }
}

/// As other commands print it, and as an argument that is found.
fn name(run: &RunSummary) -> String {
    format!("{}/{}", run.agent, run.run)
}

/// The run of exactly this `AGENT/RUN`.
fn by_slash(log: &impl ReadLog, args: &RunArgs) -> Result<Option<RunSummary>, Failure> {
    let mut found = Vec::new();
    for (at, _) in args.run.match_indices('/') {
        let (agent, run) = (&args.run[..at], &args.run[at + 1..]);
        match log.run((agent, run)) {
            Ok(summary) => found.push(summary),
            Err(error) if error.is_not_found() || matches!(error, Error::InvalidId { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if found.len() > 1 {
        let message = format!(
            "{} names several runs, by different agents; name the agent by --agent",
            args.run
        );
        return Err(ambiguous(message, found.iter().map(name).collect()));
    }
    Ok(found.pop())
}

/// The runs whose ids begin with the text, up to one more than are named; if there is none, those
/// whose `AGENT/RUN` does. And their names; if there are none, those that are most similar.
fn similar(log: &impl ReadLog, args: &RunArgs) -> Result<(Vec<RunSummary>, Vec<String>), Failure> {
    let text = args.run.as_str();
    let has_slash = text.contains('/');
    let query = args.agent.iter().fold(RunQuery::new(), |query, agent| query.agent(agent));
    let (mut by_id, mut by_both, mut nearest) = (Vec::new(), Vec::new(), Vec::new());
    for run in log.runs(&query) {
        let run = run?;
        let (id, both) = (run.run.as_str(), name(&run));
        if id.starts_with(text) && !text.is_empty() {
            by_id.push(run);
            if by_id.len() > NAMED {
                break;
            }
        } else if has_slash && args.agent.is_none() && both.starts_with(text) {
            by_both.push(run);
            by_both.truncate(NAMED + 1);
        } else if by_id.is_empty() {
            let by_name = if has_slash { strsim::jaro_winkler(text, &both) } else { 0.0 };
            suggest(&mut nearest, likeness(text, id).max(by_name), both);
        }
    }
    let found = if by_id.is_empty() { by_both } else { by_id };
    let mut names: Vec<String> = found.iter().take(NAMED).map(name).collect();
    if names.is_empty() {
        names = nearest.into_iter().map(|(_, name)| name).collect();
    }
    Ok((found, names))
}

/// How similar a name is to what the user typed.
fn likeness(text: &str, name: &str) -> f64 {
    let is_within = text.len() > 2 && name.contains(text);
    if is_within { 1.0 } else { strsim::jaro_winkler(text, name) }
}

/// Keeps the most similar names; of equal ones those that come first.
fn suggest(nearest: &mut Vec<(f64, String)>, likeness: f64, name: String) {
    let place = nearest.partition_point(|(other, _)| *other >= likeness);
    if likeness >= SIMILAR && place < SUGGESTED {
        nearest.insert(place, (likeness, name));
        nearest.truncate(SUGGESTED);
    }
}

/// That an agent has runs; else it is an error that names similar ones.
pub(crate) fn agent(log: &impl ReadLog, agent: &str) -> Result<(), Failure> {
    if !log.list_runs(&RunQuery::new().agent(agent).limit(1))?.runs.is_empty() {
        return Ok(());
    }
    let mut nearest = Vec::new();
    for known in log.agents(None, usize::MAX)? {
        let known = known.to_string();
        suggest(&mut nearest, likeness(agent, &known), known);
    }
    let (message, candidates) = (format!("no agent {agent} has runs"), nearest.into_iter());
    let candidates = candidates.map(|(_, name)| name).collect();
    Err(Failure::NoRun { message, is_ambiguous: false, candidates })
}
