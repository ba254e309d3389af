"""What agent logs say, read by another program in another language than the one that is tested.

Prints for each file that is named one JSON object a line: its format, what each of its records
says of itself, and what its messages used. Needs nothing but Python 3.
"""

import json
import re
import sys
import zipfile

WORD = re.compile(r"[A-Za-z0-9_.:/-]{1,32}\Z")
OWN_WORDS = {"raw", "unterminated-line", "document", "runlog-envelope"}
TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+-])(\d\d):?(\d\d))\Z"
)


def nanoseconds(text):
    """RFC 3339 with an offset, in nanoseconds since 1970."""
    found = TIME.match(text) if isinstance(text, str) else None
    if not found:
        return None
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    # The day number of a date, by adding up the days of years and months.
    def is_leap(year):
        return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = sum(366 if is_leap(y) else 365 for y in range(1970, year))
    days -= sum(366 if is_leap(y) else 365 for y in range(year, 1970))
    lengths = [31, 29 if is_leap(year) else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    days += sum(lengths[: month - 1]) + day - 1
    offset = 0
    if found[9]:
        offset = int(found[10]) * 3600 + int(found[11]) * 60
        if found[9] == "-":
            offset = -offset
    seconds = days * 86400 + hour * 3600 + minute * 60 + second - offset
    return seconds * 10**9 + int((found[7] or "0").ljust(9, "0"))


def get(value, *path):
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def words(*values):
    """The values that are texts with something in them."""
    return [value for value in values if isinstance(value, str) and value]


def objects(value):
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def said(time=None, role=None, tools=(), model=None, id=None, message=None, usage=None):
    text = {"role": role, "model": model, "id": id, "message_id": message}
    facts = {name: value for name, value in text.items() if isinstance(value, str) and value}
    if time is not None:
        facts["time"] = time
    if words(*tools):
        facts["tools"] = words(*tools)
    if usage:
        facts["usage"] = usage
    return facts


def tokens(value, **names):
    """The counts of an object, by the names that its format gives them."""
    usage = {}
    for ours, path in names.items():
        count = get(value, *path.split("."))
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            usage[ours] = count
    return usage


def priced(usage, cost):
    if isinstance(cost, (int, float)) and not isinstance(cost, bool):
        usage["cost"] = cost
    return usage


# One line each.


def car(line):
    time = next((t for t in map(nanoseconds, map(line.get, CAR_TIMES)) if t is not None), None)
    usage = tokens(
        line.get("token_usage"),
        input_tokens="input_tokens",
        output_tokens="output_tokens",
        cache_read_tokens="cache_read_input_tokens",
        cache_write_tokens="cache_creation_input_tokens",
        reasoning_tokens="reasoning_tokens",
    )
    model = words(line.get("model_id"), line.get("model"))
    return said(time, tools=[line.get("tool")], model=model[0] if model else None, usage=usage)


CAR_TIMES = ("started_at", "ended_at", "recorded_at", "at")


def claude(line):
    message = line.get("message")
    uses = [p for p in objects(get(message, "content")) if p.get("type") == "tool_use"]
    usage = tokens(
        get(message, "usage"),
        input_tokens="input_tokens",
        output_tokens="output_tokens",
        cache_read_tokens="cache_read_input_tokens",
        cache_write_tokens="cache_creation_input_tokens",
    )
    return said(
        nanoseconds(line.get("timestamp")),
        get(message, "role"),
        [use.get("name") for use in uses],
        get(message, "model"),
        line.get("uuid"),
        get(message, "id"),
        usage,
    )


def codex(line):
    item = line["payload"] if isinstance(line.get("payload"), dict) else line
    calls = ("function_call", "custom_tool_call", "mcp_tool_call")
    tool = item.get("name") if item.get("type") in calls else get(item, "invocation", "tool")
    usage = tokens(
        get(item, "info", "last_token_usage"),
        input_tokens="input_tokens",
        output_tokens="output_tokens",
        cache_read_tokens="cached_input_tokens",
        reasoning_tokens="reasoning_output_tokens",
    )
    ids = words(item.get("id"), item.get("call_id"))
    time = nanoseconds(line.get("timestamp"))
    id = ids[0] if ids else None
    return said(time, item.get("role"), [tool], item.get("model"), id, None, usage)


def pi(line):
    message = line.get("message")
    calls = [p for p in objects(get(message, "content")) if p.get("type") == "toolCall"]
    usage = tokens(
        get(message, "usage"),
        input_tokens="input",
        output_tokens="output",
        cache_read_tokens="cacheRead",
        cache_write_tokens="cacheWrite",
    )
    model = words(get(message, "model"), line.get("modelId"))
    return said(
        nanoseconds(line.get("timestamp")),
        get(message, "role"),
        [call.get("name") for call in calls] + [get(message, "toolName")],
        model[0] if model else None,
        line.get("id"),
        get(message, "responseId"),
        priced(usage, get(message, "usage", "cost", "total")),
    )


def gemini(message):
    usage = tokens(
        message.get("tokens"),
        input_tokens="input",
        output_tokens="output",
        cache_read_tokens="cached",
        reasoning_tokens="thoughts",
    )
    kind = message.get("type")
    return said(
        nanoseconds(message.get("timestamp")),
        kind if kind in ("user", "gemini") else None,
        [call.get("name") for call in objects(message.get("toolCalls"))],
        message.get("model"),
        message.get("id"),
        None,
        usage,
    )


def gemini_line(line):
    if "projectHash" in line:
        return said(nanoseconds(line.get("startTime")))
    return gemini(line) if "content" in line else other_line(line)


def other_line(line):
    return said(nanoseconds(line.get("timestamp")))


def format_of_lines(values):
    for line in objects(values):
        kind, payload = line.get("type"), line.get("payload")
        if line.get("record") in ("started", "turn", "model_turn", "ended"):
            return "car"
        if kind in ("session_meta", "response_item", "event_msg", "turn_context") and payload:
            return "codex"
        if kind == "function_call" and "call_id" in line or "record_type" in line:
            return "codex"
        if "projectHash" in line and "sessionId" in line:
            return "gemini-lines"
        if "uuid" in line and "sessionId" in line or kind == "summary" and "leafUuid" in line:
            return "claude-code"
        if kind in ("system", "assistant", "user", "result") and "session_id" in line:
            return "claude-code"
        if kind == "session" and "cwd" in line or kind == "message" and get(line, "message", "role"):
            is_claw = lambda l: l.get("customType") == "model-snapshot" or l.get("type") == "leaf"
            return "openclaw" if any(map(is_claw, objects(values))) else "pi"
    return "json-lines"


LINES = {
    "car": car,
    "claude-code": claude,
    "codex": codex,
    "pi": pi,
    "openclaw": pi,
    "gemini-lines": gemini_line,
    "json-lines": other_line,
}


def word(*values):
    """The first of these that is a plain word."""
    fits = lambda value: WORD.match(value) and value not in OWN_WORDS
    return next((value for value in words(*values) if fits(value)), None)


def records_of_lines(data):
    whole = data.split(b"\n")
    rows = []
    for number, line in enumerate(whole):
        has_end = number + 1 < len(whole)
        if not has_end and not line:
            break
        try:
            value = json.loads(line.decode()) if line.strip() else None
            kind = word(value.get("record"), get(value, "payload", "type"), value.get("type")) \
                if isinstance(value, dict) else None
        except ValueError:
            value, kind = None, "raw"
        rows.append((value, kind if has_end else "unterminated-line"))
    format = format_of_lines([value for value, _ in rows])
    read = LINES[format]
    facts = [read(value) if isinstance(value, dict) else {} for value, _ in rows]
    return format, [dict(f, kind=kind) for f, (_, kind) in zip(facts, rows)]


# One document each.


def message(value):
    calls = objects(value.get("tool_calls"))
    functions = [call.get("function") for call in calls]
    tools = [get(f, "name") if isinstance(f, dict) else f for f in functions]
    if value.get("role") == "tool":
        tools += words(value.get("function"), value.get("name"))[:1]
    response = get(value, "extra", "response")
    usage = tokens(
        value.get("usage") or get(response, "usage"),
        input_tokens="prompt_tokens",
        output_tokens="completion_tokens",
        cache_read_tokens="prompt_tokens_details.cached_tokens",
        reasoning_tokens="completion_tokens_details.reasoning_tokens",
    )
    time = nanoseconds(value.get("timestamp"))
    seconds = value.get("timestamp"), get(value, "extra", "timestamp")
    for number in seconds:
        if time is None and isinstance(number, (int, float)):
            time = round(number * 1e6) * 1000
    model = words(value.get("model"), get(response, "model"))
    return said(
        time,
        value.get("role"),
        tools,
        model[0] if model else None,
        value.get("id"),
        get(response, "id"),
        usage,
    )


def inspect_event(event):
    usage = tokens(
        get(event, "output", "usage"),
        input_tokens="input_tokens",
        output_tokens="output_tokens",
        cache_read_tokens="input_tokens_cache_read",
        cache_write_tokens="input_tokens_cache_write",
        reasoning_tokens="reasoning_tokens",
    )
    tool = event.get("function") if event.get("event") == "tool" else None
    time = nanoseconds(event.get("timestamp"))
    return said(time, None, [tool], event.get("model"), event.get("uuid"), None, usage)


def inspect_steps(value):
    """The steps of a log or of a sample, in the order of its keys."""
    rows = []
    for key, inner in value.items():
        if key == "samples":
            for sample in objects(inner):
                rows += inspect_steps(sample)
        elif key == "messages":
            rows += [dict(message(m), kind="messages") for m in objects(inner)]
        elif key == "events":
            rows += [dict(inspect_event(e), kind=word(e.get("event")) or key) for e in objects(inner)]
        elif key == "transcript" and isinstance(inner, dict):
            rows += inspect_steps({"events": inner.get("events")})
    return rows


def atif(step):
    usage = tokens(
        step.get("metrics"),
        input_tokens="prompt_tokens",
        output_tokens="completion_tokens",
        cache_read_tokens="cached_tokens",
    )
    number = step.get("step_id")
    return said(
        nanoseconds(step.get("timestamp")),
        step.get("source"),
        [call.get("function_name") for call in objects(step.get("tool_calls"))],
        step.get("model_name"),
        str(number) if isinstance(number, int) else None,
        None,
        priced(usage, get(step, "metrics", "cost_usd")),
    )


def records_of_document(document, name):
    keyed = document if isinstance(document, dict) else {}
    if str(keyed.get("schema_version", "")).startswith("ATIF-"):
        steps = objects(keyed.get("steps"))
        return "atif", [dict(atif(s), kind=word(s.get("source")) or "steps") for s in steps]
    if "sessionId" in keyed and "messages" in keyed and "projectHash" in keyed:
        steps = objects(keyed["messages"])
        return "gemini", [dict(gemini(m), kind=word(m.get("type")) or "messages") for m in steps]
    if isinstance(keyed.get("eval"), dict) and "status" in keyed:
        return "inspect", inspect_steps(keyed)
    rows = []
    for key, inner in keyed.items():
        if key in ("trajectory", "history", "messages"):
            rows += [dict(message(step), kind=key) for step in objects(inner)]
    if name.endswith(".traj") and ("trajectory" in keyed or "history" in keyed):
        return "swe-agent", rows
    is_mini = name.endswith(".traj.json") or "mini" in str(keyed.get("trajectory_format"))
    if isinstance(document, list):
        rows = [dict(message(step), kind=None) for step in objects(document)]
    first = objects(keyed.get("messages") or document)[:1]
    if first and "role" in first[0]:
        return "mini-swe-agent" if is_mini else "chat", rows
    return "json", [dict(said(), kind=None) for _ in rows]


def records(path):
    with open(path, "rb") as file:
        data = file.read()
    if data.startswith(b"PK\x03\x04"):
        rows = []
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.filename.endswith(".json"):
                    value = json.loads(archive.read(member).decode())
                    rows += inspect_steps(value) if isinstance(value, dict) else []
        return "inspect-eval", rows, None
    if path.endswith((".json", ".traj")):
        document = json.loads(data.decode("utf-8-sig"))
        format, rows = records_of_document(document, path)
        return format, rows, get(document, "info", "model_stats")
    if path.endswith(".jsonl"):
        return *records_of_lines(data), None
    lines = data.split(b"\n")
    rows = [{"kind": None} for _ in lines[:-1]]
    return "text", rows + ([{"kind": "unterminated-line"}] if lines[-1] else []), None


COUNTS = [
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
]


def used(path, format, rows, whole):
    """What the messages used: each once, as the last and largest that is said of it."""
    messages, totals = {}, None
    for number, row in enumerate(rows):
        if "usage" not in row:
            continue
        if format == "codex":
            total = total_of_codex(path, number)
            if total is not None and total == totals:
                continue
            totals = total
        known = messages.setdefault(row.get("message_id", number), {})
        for name, count in row["usage"].items():
            known[name] = max(known.get(name, 0), count)
    sums = {name: sum(m.get(name, 0) for m in messages.values()) for name in COUNTS}
    sums["cost"] = sum(m.get("cost", 0) for m in messages.values())
    sums["messages"] = len(messages)
    if whole:
        names = {
            "input_tokens": "tokens_sent",
            "output_tokens": "tokens_received",
            "cost": "instance_cost",
            "messages": "api_calls",
        }
        for ours, theirs in names.items():
            sums[ours] = max(sums[ours], whole.get(theirs) or 0)
    return sums


def total_of_codex(path, number):
    with open(path, "rb") as file:
        line = file.read().split(b"\n")[number]
    return get(json.loads(line), "payload", "info", "total_token_usage")


for path in sys.argv[1:]:
    format, rows, whole = records(path)
    usage = used(path, format, rows, whole)
    print(json.dumps({"file": path, "format": format, "records": rows, "usage": usage}))
