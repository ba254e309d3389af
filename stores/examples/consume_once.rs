//! An approval that is used at most once, however many workers try, also after a crash.

use std::error::Error;

use runlog_stores::consume_once::{ConsumeError, ConsumeOnce};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("consume-once-{}.runlog", std::process::id()));
    let log = runlog::Options::new().open(&path)?;
    let approvals = ConsumeOnce::new(&log);
    approvals.consume("approval-7", "worker-1")?;
    match approvals.consume("approval-7", "worker-2") {
        Err(ConsumeError::AlreadyConsumed(earlier)) => println!("{} has used it", earlier.by),
        other => return Err(format!("it was used twice: {other:?}").into()),
    }
    log.close()?;
    std::fs::remove_file(&path)?;
    Ok(())
}
