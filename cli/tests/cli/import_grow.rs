//! Documents that go on: a chat that is one JSON document gets its new steps appended.

use std::fs;

use runlog::NewRecord;
use serde_json::{Value, json};

use crate::world::{Ran, World};

fn chat(messages: u64, title: &str) -> String {
    let message = |n: u64| {
        let role = if n.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": format!("message {n}"),
            "usage": {"prompt_tokens": 10, "completion_tokens": 1}})
    };
    let messages: Vec<Value> = (0..messages).map(message).collect();
    let chat = json!({"title": title, "messages": messages, "updated": messages.len()});
    serde_json::to_string_pretty(&chat).expect("JSON") + "\n"
}

fn result(ran: &Ran) -> String {
    let told = ran.json();
    let run = told.iter().find(|event| event["event"] == "run").expect("told of");
    run["result"].as_str().expect("a word").to_owned()
}

fn raw(world: &World, run: &str) -> String {
    world.good(&["show", run, "--raw"]).text().to_owned()
}

#[test]
fn new_steps_of_a_document_are_appended_and_the_file_comes_back() {
    let world = World::new();
    world.write("a/c.json", chat(2, "first"));
    world.good(&["import", "--create", "a"]);
    let number = world.good(&["ls", "--json"]).json()[0]["number"].clone();
    for (messages, title) in [(3, "first"), (5, "second"), (5, "third"), (9, "third")] {
        let text = chat(messages, title);
        world.write("a/c.json", &text);
        let ran = world.good(&["import", "a", "--json"]);
        assert_eq!(result(&ran), "continued");
        assert_eq!(result(&world.good(&["import", "a", "--json"])), "already_there");
        assert_eq!(raw(&world, "c"), text);
        let roles = world.good(&["show", "c", "--json"]).json();
        let roles = roles.iter().filter(|record| record["facts"]["role"].is_string()).count();
        assert_eq!(roles as u64, messages);
        fs::remove_dir_all(world.path("out")).ok();
        world.good(&["export", "out"]);
        assert_eq!(fs::read_to_string(world.path("out/a/c.json")).expect("a file"), text);
    }
    let runs = world.good(&["ls", "--json"]).json();
    assert_eq!((runs.len(), &runs[0]["number"]), (1, &number), "it is the same run");
    let usage = world.good(&["usage", "--json"]).json();
    assert_eq!(usage.last().expect("a total")["input_tokens"], 90);
    world.good(&["verify"]);
    // What was exported is there already, also under the old name.
    fs::remove_dir_all(world.path("a")).expect("removed");
    fs::rename(world.path("out/a"), world.path("a")).expect("renamed");
    assert_eq!(result(&world.good(&["import", "a", "--json"])), "already_there");
}

#[test]
fn a_document_of_any_shape_goes_on() {
    let world = World::new();
    let step = |n: u32| format!("{{\"type\": \"user\", \"uuid\": \"u{n}\", \"sessionId\": \"s\"}}");
    let [one, two, three] = [step(1), step(2), step(3)];
    for (name, texts) in [
        ("array", [format!("[{one}]"), format!("[{one},{two}]"), format!("[{one},{two},{three}]")]),
        ("empty", ["[]".to_owned(), format!("[{one}]"), format!("[{one}, {two}]")]),
        (
            "values",
            [
                format!("{{\n}}\n{one}\n"),
                format!("{{\n}}\n{one}\n{two}\n"),
                format!("{{\n}}\n{one}\n{two}\n\n{three}\n"),
            ],
        ),
        (
            "odd",
            [
                format!("{{\"a\":1,\"messages\":[{one} , {two}],\"b\":\"\u{e9}\"}}"),
                format!("{{\"a\":2,\"messages\":[{one} , {two},{three}],\"b\":\"\u{e9}\"}}"),
                format!("{{\"messages\":[{one},{two},{three}, 7, {one}]}}"),
            ],
        ),
    ] {
        for (number, text) in texts.iter().enumerate() {
            world.write(&format!("a/{name}.json"), text);
            let ran = world.good(&["import", "--create", &format!("a/{name}.json"), "--json"]);
            let wanted = if number == 0 { "imported" } else { "continued" };
            assert_eq!(result(&ran), wanted, "{name} {number}");
            assert_eq!(raw(&world, name), *text);
        }
    }
}

#[test]
fn a_step_that_changed_is_reported_and_the_run_stays() {
    let world = World::new();
    let text = chat(3, "first");
    world.write("a/c.json", &text);
    world.good(&["import", "--create", "a"]);
    world.write("a/c.json", chat(4, "first").replace("message 1", "another"));
    for _ in 0..2 {
        let ran = world.run(&["import", "a"]);
        assert_eq!(ran.code, Some(1));
        assert!(ran.stderr.contains("differs from step 2 on; --replace"), "{ran:?}");
        assert_eq!(raw(&world, "c"), text);
    }
    world.write("a/c.json", chat(2, "first"));
    let ran = world.run(&["import", "a"]);
    assert!(ran.stderr.contains("differs from step 3 on; --replace"), "{ran:?}");
}

/// Goal: an import that is cut short while a document goes on loses nothing, and is finished by
/// the next one. Method: the records that it appended first, made by hand.
#[test]
fn an_import_that_was_cut_short_in_a_document_that_goes_on_is_finished() {
    let world = World::new();
    let text = chat(2, "first");
    world.write("a/c.json", &text);
    world.good(&["import", "--create", "a"]);
    let grown = chat(4, "second");
    let document: Value = serde_json::from_str(&grown).expect("JSON");
    let start = grown.find("message 2").expect("a step");
    let start = grown[..start].rfind('{').expect("its begin");
    let end = start + grown[start..].find("\n    }").expect("its end") + "\n    }".len();
    assert_eq!(
        serde_json::from_str::<Value>(&grown[start..end]).expect("JSON"),
        document["messages"][2]
    );
    let log = world.open();
    let writer = log.writer("c").expect("a writer");
    let step = NewRecord::json(&grown.as_bytes()[start..end]).kind("messages");
    let _ = writer.append_record(&step).expect("a record");
    drop(writer);
    log.close().expect("closed");
    world.write("a/c.json", &grown);
    assert_eq!(result(&world.good(&["import", "a", "--json"])), "continued");
    assert_eq!(raw(&world, "c"), grown);
    let records = world.good(&["show", "c", "--json"]).json();
    let steps = records.iter().filter(|record| record["kind"] == "messages").count();
    assert_eq!(steps, 4);
}

#[test]
fn a_document_that_goes_on_after_its_run_was_ended_by_hand_gets_late_records() {
    let world = World::new();
    world.write("a/c.json", chat(2, "first"));
    world.good(&["import", "--create", "a"]);
    world.good(&["end", "c", "--status", "completed"]);
    let text = chat(3, "first");
    world.write("a/c.json", &text);
    assert_eq!(result(&world.good(&["import", "a", "--json"])), "continued");
    assert_eq!(raw(&world, "c"), text);
    let runs = world.good(&["ls", "--json"]).json();
    assert_eq!(runs[0]["status"], "completed");
}
