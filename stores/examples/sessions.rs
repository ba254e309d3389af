//! Sessions of agents behind an asynchronous store: a task awaits each save, which then survives
//! power loss, and many saves share one sync.

use std::error::Error;

use runlog_stores::sessions::{EngineSessionStore, SessionStore};
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("sessions-{}.runlog", std::process::id()));
    let log = runlog::Options::new().open(&path)?;
    let store: EngineSessionStore = EngineSessionStore::new(&log);
    tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
        store.save(&json!({ "id": "s-1", "messages": ["tea?"] })).await?;
        store.save_trace_events("s-1", &[json!({ "kind": "tool_execution" })]).await?;
        if let Some(session) = store.load("s-1").await? {
            println!("s-1 says {}", session["messages"][0]);
        }
        store.delete("s-1").await
    })?;
    drop(store);
    log.close()?;
    std::fs::remove_file(&path)?;
    Ok(())
}
