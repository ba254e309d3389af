//! Work on many things by all processors, of which the results come in the order of the things.

use std::num::NonZero;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::failure::Failure;

/// How many things are under way for each thread.
const UNDER_WAY: usize = 2;

/// How often [`in_order_watched`] calls while there is no result.
const MOMENT: Duration = Duration::from_millis(100);

/// Calls `make` with each thing of `next`, on all processors, and `take` with each result, in the
/// order of the things. It ends at the first failure: one of `next` comes behind the results of the
/// things before it.
pub(crate) fn in_order<T: Send, R: Send>(
    next: impl FnMut() -> Result<Option<T>, Failure> + Send,
    make: impl Fn(T) -> R + Sync,
    mut take: impl FnMut(R) -> Result<(), Failure>,
) -> Result<(), Failure> {
    in_order_watched(next, make, |result| result.map_or(Ok(()), &mut take))
}

/// As [`in_order`]; also calls `take` without a result whenever a moment has passed.
pub(crate) fn in_order_watched<T: Send, R: Send>(
    mut next: impl FnMut() -> Result<Option<T>, Failure> + Send,
    make: impl Fn(T) -> R + Sync,
    mut take: impl FnMut(Option<R>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let (give, things) = sync_channel::<(T, SyncSender<R>)>(threads * UNDER_WAY);
    let (line_up, turns) = sync_channel::<Receiver<R>>(threads * UNDER_WAY);
    let (things, make) = (Mutex::new(things), &make);
    thread::scope(|scope| {
        let things = &things;
        for _ in 0..threads {
            scope.spawn(move || {
                let next = || things.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok((thing, done)) = next() {
                    // Perhaps the result is not wanted any more.
                    let _ = done.send(make(thing));
                }
            });
        }
        let lists = scope.spawn(move || {
            while let Some(thing) = next()? {
                let (done, turn) = sync_channel(1);
                if line_up.send(turn).is_err() || give.send((thing, done)).is_err() {
                    break;
                }
            }
            Ok(())
        });
        let mut taken = Ok(());
        'turns: while let Ok(turn) = turns.recv() {
            loop {
                let result = match turn.recv_timeout(MOMENT) {
                    Ok(result) => Some(result),
                    Err(RecvTimeoutError::Timeout) => None,
                    // Its thread has panicked, which the scope tells.
                    Err(RecvTimeoutError::Disconnected) => break 'turns,
                };
                let is_result = result.is_some();
                taken = take(result);
                if taken.is_err() {
                    break 'turns;
                }
                if is_result {
                    break;
                }
            }
        }
        drop(turns);
        let failed = lists.join().unwrap_or(Ok(()));
        taken.and(failed)
    })
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
        let spin = |number: u32| {
            // Some take longer than those behind them.
            (0..(number % 7) * 1000).fold(number, |sum, at| std::hint::black_box(sum + at - at))
        };
        let done = in_order(numbers(500), spin, |number| {
            taken.push(number);
            Ok(())
        });
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
            |number| number,
            |number| {
                taken.push(number);
                Ok(())
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
            |number| number,
            |_| {
                taken += 1;
                if taken == 3 { Err(Failure::said("full".to_owned())) } else { Ok(()) }
            },
        );
        assert!(done.is_err());
        assert_eq!(taken, 3);
    }
}
