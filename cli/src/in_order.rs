//! Work on many things by several threads. The results come in the order of the things.

use std::num::NonZero;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::failure::Failure;

/// How many things are under way for each thread.
const UNDER_WAY: usize = 2;

/// How often something is taken while there is no result.
const MOMENT: Duration = Duration::from_millis(100);

/// How many results of a thing wait for their turn.
const RESULTS: usize = 16;

/// Calls `make` with each thing of `next`, on all processors, and `take` with each result that it
/// gives, in the order of the things, and without one whenever a moment has passed. Each thread has
/// what `start` gives it.
///
/// It ends when `take` answers that it is enough, or at the first failure: one of `next` comes
/// after the results of the things before it. A thread with many results waits for its turn.
pub(crate) fn in_order<T: Send, R: Send, S>(
    mut next: impl FnMut() -> Result<Option<T>, Failure> + Send,
    start: impl Fn() -> S + Sync,
    make: impl Fn(&mut S, T, &mut dyn FnMut(R) -> bool) + Sync,
    mut take: impl FnMut(Option<R>) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let threads = threads();
    let (give, things) = sync_channel::<(T, SyncSender<R>)>(threads * UNDER_WAY);
    let (line_up, turns) = sync_channel::<Receiver<R>>(threads * UNDER_WAY);
    let (things, start, make) = (Mutex::new(things), &start, &make);
    thread::scope(|scope| {
        let things = &things;
        for _ in 0..threads {
            scope.spawn(move || {
                let mut state = start();
                let next = || things.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok((thing, done)) = next() {
                    // Perhaps the result is not wanted any more.
                    make(&mut state, thing, &mut |result| done.send(result).is_ok());
                }
            });
        }
        let lists = scope.spawn(move || {
            while let Some(thing) = next()? {
                let (done, turn) = sync_channel(RESULTS);
                if line_up.send(turn).is_err() || give.send((thing, done)).is_err() {
                    break;
                }
            }
            Ok(())
        });
        let mut taken = Ok(true);
        'turns: while let Ok(turn) = turns.recv() {
            loop {
                let result = match turn.recv_timeout(MOMENT) {
                    Ok(result) => Some(result),
                    Err(RecvTimeoutError::Timeout) => None,
                    // It is over, or its thread has panicked, which the scope tells.
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                taken = take(result);
                if !matches!(taken, Ok(true)) {
                    break 'turns;
                }
            }
        }
        drop(turns);
        let failed = lists.join().unwrap_or(Ok(()));
        taken.and(failed)
    })
}

/// How many threads work at once. More would wait for one another in the store.
pub(crate) fn threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get).min(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(end: u32) -> impl FnMut() -> Result<Option<u32>, Failure> + Send {
        let mut next = 0..end;
        move || Ok(next.next())
    }

    #[test]
    fn results_come_in_the_order_of_the_things() {
        let mut taken = Vec::new();
        let spin = |(): &mut (), number: u32, give: &mut dyn FnMut(u32) -> bool| {
            // Some take longer than those after them.
            let spun = |sum, at| std::hint::black_box(sum + at - at);
            give((0..(number % 7) * 1000).fold(number, spun));
        };
        let done = in_order(
            numbers(500),
            || (),
            spin,
            |number| {
                taken.extend(number);
                Ok(true)
            },
        );
        assert!(done.is_ok());
        assert_eq!(taken, (0..500).collect::<Vec<_>>());
    }

    #[test]
    fn a_failure_of_the_list_comes_behind_the_results_before_it() {
        let (mut listed, mut taken) = (numbers(10), Vec::new());
        let next = || match listed()? {
            Some(number) => Ok(Some(number)),
            None => Err(Failure::said("no more".to_owned())),
        };
        let done = in_order(
            next,
            || (),
            |(), number, give| {
                give(number);
            },
            |number| {
                taken.extend(number);
                Ok(true)
            },
        );
        assert!(done.is_err());
        assert_eq!(taken.len(), 10);
    }

    #[test]
    fn it_ends_when_a_result_cannot_be_taken() {
        let mut taken = 0;
        let done = in_order(
            numbers(u32::MAX),
            || (),
            |(), number, give| while give(number) {},
            |number| {
                taken += u32::from(number.is_some());
                if taken == 3 { Err(Failure::said("full".to_owned())) } else { Ok(true) }
            },
        );
        assert!(done.is_err());
        assert_eq!(taken, 3);
        let once = in_order(
            numbers(u32::MAX),
            || (),
            |(), number, give| while give(number) {},
            |_| Ok(false),
        );
        assert!(once.is_ok());
    }
}
