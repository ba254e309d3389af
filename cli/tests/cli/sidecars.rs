//! What is no run is no run: sidecars are counted by kind, and credentials are never read.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::world::World;

/// A session of Claude Code with one message of its user.
fn session(id: &str) -> String {
    let message = json!({"role": "user", "content": "hello"});
    json!({"type": "user", "uuid": "u", "sessionId": id, "message": message}).to_string() + "\n"
}

fn ids(world: &World) -> Vec<String> {
    let name = |run: &Value| {
        let [agent, id] = ["agent", "run"].map(|key| run[key].as_str().unwrap_or_default());
        format!("{agent}/{id}")
    };
    let mut ids: Vec<_> = world.good(&["ls", "--all", "--json"]).json().iter().map(name).collect();
    ids.sort();
    ids
}

#[test]
fn of_the_projects_of_claude_code_only_the_sessions_are_runs() {
    let world = World::new();
    for name in
        ["-home-me-p/s1.jsonl", "-home-me-p/s1/subagents/agent-1.jsonl", "-home-me-q/s2.jsonl"]
    {
        world.write(&format!("projects/{name}"), session("s1"));
    }
    for name in [
        "-home-me-p/s1/tool-results/toolu_1.txt",
        "-home-me-p/s1/tool-results/shot.png",
        "-home-me-p/s1/subagents/agent-1.meta.json",
        "-home-me-p/sessions-index.json",
        "-home-me-p/memory/MEMORY.md",
        "-home-me-p/memory/topics/debugging.md",
    ] {
        world.write(&format!("projects/{name}"), if name.ends_with("png") { "\0" } else { "{}" });
    }
    let ran = world.good(&["import", "--create", "projects"]);
    let wanted =
        ["-home-me-p/s1", "-home-me-p/s1/subagents/agent-1", "-home-me-q/s2"].map(str::to_owned);
    assert_eq!(ids(&world), wanted);
    let said = "passed over 6 files: tool results 2, metadata 1, indexes 1, memories 2; \
                --all-files imports them\n";
    assert!(ran.text().contains(said), "{ran:?}");
    let report = world.good(&["import", "projects", "--json"]).json();
    let sidecars = report.iter().find(|event| event["event"] == "sidecars").expect("told");
    let kinds = json!({"indexes": 1, "memories": 2, "metadata": 1, "tool_results": 2});
    assert_eq!((&sidecars["files"], &sidecars["kinds"]), (&json!(6), &kinds));
    // All of them, if the user wants them: a picture is still no text.
    let ran = world.run(&["import", "projects", "--all-files"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.text().contains("not recognised projects/-home-me-p/s1/tool-results/shot.png"));
    assert_eq!(ids(&world).len(), 8);
}

#[test]
fn a_picture_that_is_passed_over_and_a_damaged_line_have_exit_codes_of_their_own() {
    let world = World::new();
    world.write("a/s.jsonl", "{}\n");
    world.write("a/shot.png", b"\x89PNG\r\n\x1a\n\0");
    let ran = world.good(&["import", "--create", "a"]);
    assert!(ran.text().contains("passed over 1 file: media 1; "), "{ran:?}");
    world.write("a/s.jsonl", "{}\n{\"a\":\n");
    let ran = world.damaged(&["import", "a"]);
    assert!(ran.text().contains("a/s.jsonl:2: torn off within a JSON value"), "{ran:?}");
    // A picture that the user names is not what the user thinks.
    let ran = world.run(&["import", "a/shot.png"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.text().contains("not recognised a/shot.png"), "{ran:?}");
}

#[test]
fn of_a_job_only_the_trajectories_are_runs() {
    let world = World::new();
    let trajectory = json!({"schema_version": "ATIF-v1.2", "session_id": "s", "agent": {},
        "steps": [{"step_id": 1, "source": "user", "message": "do it"}]});
    for task in ["job/task__a", "job/task__b"] {
        world.write(&format!("{task}/agent/trajectory.json"), trajectory.to_string());
        for name in [
            "agent/codex.txt",
            "agent/setup/stdout.txt",
            "agent/install.sh.log",
            "config.json",
            "result.json",
            "trial.log",
            "verifier/reward.txt",
            "verifier/test-stdout.txt",
        ] {
            world.write(&format!("{task}/{name}"), "{}");
        }
    }
    world.write("job/result.json", "{}");
    world.write("job/config.json", "{}");
    let ran = world.good(&["import", "--create", "job"]);
    assert_eq!(ids(&world), ["task__a/agent/trajectory", "task__b/agent/trajectory"]);
    assert!(ran.text().contains("job files 18; --all-files imports them"), "{ran:?}");
}

/// Goal: a file that holds credentials is not even opened. Method: only its owner could open it.
#[test]
fn credentials_are_never_read_whatever_the_options() {
    let world = World::new();
    world.write("home/sessions/2026/s.jsonl", "{}\n");
    for name in ["auth.json", ".credentials.json", "certificates/server.pem", "sessions/.env"] {
        world.write(&format!("home/{name}"), "{\"token\":\"sk-secret\"}");
        let path = world.path(&format!("home/{name}"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o000)).expect("no permissions");
    }
    for options in [&["import", "--create", "home"][..], &["import", "home", "--all-files"]] {
        let ran = world.good(options);
        assert!(ran.text().contains("credentials ") || !options.contains(&"--all-files"));
        assert_eq!(ids(&world), ["home/s"]);
    }
    let store = fs::read(world.store()).expect("the store");
    assert!(memchr::memmem::find(&store, b"sk-secret").is_none());
    let ran = world.run(&["import", "home/auth.json", "--all-files"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("credentials, which are never read"), "{ran:?}");
}

#[test]
fn of_the_home_of_a_program_only_the_sessions_are_imported() {
    let world = World::new();
    for name in [
        ".codex/sessions/2026/09/01/rollout-1.jsonl",
        ".codex/archived_sessions/rollout-2.jsonl",
        ".codex/history.jsonl",
        ".codex/config.toml",
        ".codex/log/codex-tui.log",
        ".claude/projects/-home-me/s.jsonl",
        ".claude/history.jsonl",
        ".claude/todos/t.json",
    ] {
        world.write(name, "{}\n");
    }
    let ran = world.good(&["import", "--create", ".codex", ".claude"]);
    assert_eq!(ids(&world), ["-home-me/s", "codex/rollout-1", "codex/rollout-2"]);
    assert!(ran.text().contains("program files 5"), "{ran:?}");
}

#[test]
fn a_session_that_was_put_away_is_the_same_run_and_its_copy_is_none() {
    let world = World::new();
    let line = |n: u32| format!("{{\"n\":{n}}}\n");
    let away = "deleted.2026-03-05T00-00-00.000Z";
    world.write("main/sessions/s0.jsonl.reset.2026-03-04T00-00-00.000Z", line(0));
    world.write("main/sessions/s1.jsonl", line(1) + &line(2));
    world.write(&format!("main/sessions/s1.jsonl.{away}"), line(1));
    world.write("main/sessions/s1.jsonl.lock", "{\"pid\":1}");
    world.write("main/sessions/sessions.json", "{\"agent:main\":{\"sessionId\":\"s1\"}}");
    let ran = world.good(&["import", "--create", "main"]);
    assert_eq!(ids(&world), ["main/s0", "main/s1"]);
    for said in ["indexes 1", "locks 1", "copies 1"] {
        assert!(ran.text().contains(said), "{said}: {ran:?}");
    }
    // The original goes: what was its copy is the session now.
    fs::remove_file(world.path("main/sessions/s1.jsonl")).expect("removed");
    world.write(&format!("main/sessions/s1.jsonl.{away}"), line(1) + &line(2));
    world.good(&["import", "main"]);
    assert_eq!(ids(&world), ["main/s0", "main/s1"]);
}
