//! Checkpoints of a thread of an agent: put, branched from an earlier one, and the latest read.

use std::error::Error;

use runlog_stores::checkpoints::{Checkpointer, TenantId, ThreadKey};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("checkpoints-{}.runlog", std::process::id()));
    let log = runlog::Options::new().open(&path)?;
    let store: Checkpointer<Vec<String>> = Checkpointer::new(&log);
    let key = ThreadKey::new(TenantId::default(), "thread-1")?;
    let first = store.checkpoint(&key, 1, vec!["boil water".into()], Some("brew".into()))?;
    store.put(&first)?;
    let branch = store.update_state(&key, &first.id, vec!["buy a kettle".into()])?;
    if let Some(latest) = store.get_latest(&key)? {
        assert_eq!(latest.id, branch);
        println!("step {}: {:?}", latest.step, latest.state);
    }
    drop(store);
    log.close()?;
    std::fs::remove_file(&path)?;
    Ok(())
}
