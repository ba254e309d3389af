//! Retention: planning the deletions among 100,000 runs of 50 agents.

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use runlog::retention::{Candidate, Inventory, plan};
use runlog::{AgentId, Limits, Retention, RunNo, RunStatus, Timestamp};

const RUNS: u64 = 100_000;
const AGENTS: u64 = 50;
const IN_PROGRESS: u64 = 64;
/// The bytes of 30 records of 256 B with their headers.
const BYTES: u64 = 30 * (256 + 48);
/// A run starts each second, and takes up to an hour.
const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3600;

fn name(agent: u64) -> AgentId {
    AgentId::new(&format!("agent-{agent}")).unwrap()
}

/// The run with this number: agents alternate, ends are unordered, and each 16th run failed.
fn candidate(number: u64) -> Candidate {
    let created_at = i64::try_from(number).unwrap() * SECOND;
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    let took = i64::try_from(scattered).unwrap() % (HOUR * SECOND);
    let status = match number {
        _ if number >= RUNS - IN_PROGRESS => RunStatus::InProgress,
        _ if number.is_multiple_of(16) => RunStatus::Failed,
        _ => RunStatus::Completed,
    };
    let mut run = Candidate::new(RunNo(number), status);
    (run.created_at, run.ended_at) = (Timestamp(created_at), Timestamp(created_at + took));
    (run.bytes, run.held) = (BYTES, number.is_multiple_of(1000));
    run
}

/// The runs by agent, or in the order of their numbers.
fn inventory(by_agent: bool) -> Inventory {
    let agents: Vec<AgentId> = (0..AGENTS).map(name).collect();
    let mut runs = Inventory::with_capacity(usize::try_from(RUNS).unwrap());
    for place in 0..RUNS {
        let per_agent = RUNS / AGENTS;
        let (agent, nth) = if by_agent {
            (place / per_agent, place % per_agent)
        } else {
            (place % AGENTS, place / AGENTS)
        };
        runs.push(&agents[usize::try_from(agent).unwrap()], candidate(nth * AGENTS + agent));
    }
    runs
}

fn policies() -> [(&'static str, Retention); 4] {
    let day = Duration::from_secs(86_400);
    let failed = Limits::new().keep_newest(1000).max_age(90 * day);
    let several = Retention::new()
        .keep_newest(1000)
        .max_age(day)
        .max_bytes(RUNS / 4 * BYTES)
        .for_status(RunStatus::Failed, failed)
        .for_agent(name(7), Limits::new().keep_newest(10).max_bytes(5 * BYTES))
        .protect_newest(true);
    [
        ("newest 100", Retention::new().keep_newest(100)),
        ("a day", Retention::new().max_age(day)),
        ("a quarter of the bytes", Retention::new().max_bytes(RUNS / 4 * BYTES)),
        ("everything at once", several),
    ]
}

fn plans(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan 100,000 runs of 50 agents");
    group.sample_size(20);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for by_agent in [true, false] {
        let order = if by_agent { "agent by agent" } else { "as started" };
        group.bench_function(format!("inventory, {order}"), |bencher| {
            bencher.iter(|| inventory(by_agent));
        });
        let runs = inventory(by_agent);
        let now = Timestamp(i64::try_from(RUNS).unwrap() * SECOND);
        for (limits, policy) in policies() {
            group.bench_function(format!("{limits}, {order}"), |bencher| {
                bencher.iter(|| plan(&policy, now, &runs).unwrap());
            });
        }
    }
    group.finish();
}

criterion_group!(benches, plans);
criterion_main!(benches);
