//! A whole agent without a network: a model that says what is written down, a tool, and plugins
//! that make the loop tell of them.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt, iter};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::clark::plugin::{ToolGate, ToolGateContext};
use super::clark::{
    AgentBuilder, AgentContext, AgentMessage, AgentTool, AssistantContent, ContextTransform,
    EventObserver, LoopConfig, Plugin, PluginCapabilities, RunIdentity, StopReason, StreamEvent,
    StreamFn, StreamRequest, ToolCall, ToolError, ToolRegistry, ToolResult, ToolUpdateSink,
    TransformContext, UserContent, run,
};

/// Says one message after the other.
struct Script(Mutex<VecDeque<AgentMessage>>);

#[async_trait]
impl StreamFn for Script {
    async fn stream(
        &self,
        _request: StreamRequest,
        _signal: CancellationToken,
    ) -> BoxStream<'static, StreamEvent> {
        let message = self.0.lock().unwrap().pop_front().expect("the script goes on");
        let partial = message.clone();
        iter([StreamEvent::Start { partial }, StreamEvent::Done { message }]).boxed()
    }
}

struct Kettle;

#[async_trait]
impl AgentTool for Kettle {
    fn name(&self) -> &'static str {
        "kettle"
    }

    fn description(&self) -> &'static str {
        "Boils water."
    }

    fn parameters_schema(&self) -> Value {
        json!({"type": "object"})
    }

    async fn execute(
        &self,
        _id: &str,
        args: Value,
        _signal: CancellationToken,
        update: ToolUpdateSink,
    ) -> Result<ToolResult, ToolError> {
        let _ = update.send(ToolResult::text("getting warm"));
        match args["litres"].as_u64() {
            Some(litres) => Ok(ToolResult::text(format!("{litres} l at 100 \u{b0}C"))),
            None => Err(ToolError::Execution("how much?".into())),
        }
    }
}

/// Leaves all messages as they are.
struct Unchanging;

impl Plugin for Unchanging {
    fn name(&self) -> &'static str {
        "unchanging"
    }

    fn capabilities(&self) -> PluginCapabilities {
        PluginCapabilities::context_transform()
    }
}

#[async_trait]
impl ContextTransform for Unchanging {
    async fn transform(
        &self,
        messages: Vec<AgentMessage>,
        _context: &TransformContext<'_>,
    ) -> Vec<AgentMessage> {
        messages
    }
}

/// Lets one tool through.
struct Only(&'static str);

impl Plugin for Only {
    fn name(&self) -> &'static str {
        self.0
    }

    fn capabilities(&self) -> PluginCapabilities {
        PluginCapabilities::tool_gate()
    }
}

#[async_trait]
impl ToolGate for Only {
    async fn next_turn_tool_allowlist(
        &self,
        _context: ToolGateContext<'_>,
    ) -> Option<HashSet<String>> {
        Some([self.0.to_owned()].into())
    }

    fn conflict_priority(&self) -> i32 {
        i32::from(self.0 == "kettle")
    }
}

fn says(content: AssistantContent, stop_reason: StopReason) -> AgentMessage {
    AgentMessage::Assistant {
        content,
        stop_reason,
        error_message: None,
        timestamp: None,
        usage: None,
    }
}

fn calls(id: &str, arguments: Value) -> AgentMessage {
    let call = ToolCall { id: id.into(), name: "kettle".into(), arguments };
    let content = AssistantContent::with_tool_calls(Some("Water first.".into()), vec![call]);
    says(content, StopReason::ToolUse)
}

/// What is asked.
pub(super) fn question() -> AgentMessage {
    AgentMessage::User { content: UserContent::Text("Tea, please.".into()), timestamp: None }
}

/// An agent that makes tea, and somebody who watches.
pub(super) fn tea(observer: Arc<dyn EventObserver>) -> LoopConfig {
    let script = [
        calls("call-1", json!({})),
        calls("call-2", json!({"litres": 1})),
        says(AssistantContent::text("Here it is."), StopReason::EndTurn),
    ];
    AgentBuilder::new()
        .stream(Arc::new(Script(Mutex::new(script.into()))))
        .tools(ToolRegistry::new().with(Arc::new(Kettle)))
        .context_transform(Unchanging)
        .tool_gate_arc(Arc::new(Only("kettle")))
        .tool_gate_arc(Arc::new(Only("teapot")))
        .event_observer_arc(observer)
        .model_id("scripted")
        .build()
        .unwrap()
}

/// Lets the agent make tea.
pub(super) async fn make_tea(identity: RunIdentity, observer: Arc<dyn EventObserver>) {
    let context = AgentContext::new("You make tea.").with_identity(identity);
    run(vec![question()], context, &tea(observer), CancellationToken::new()).await.unwrap();
}
