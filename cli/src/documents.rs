//! `runlog get`, `put`, `docs` and `del`: documents, by namespace and key.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use runlog::{ContentType, Durability, Expected, NewRecord, Timestamp, Version};
use serde::Serialize;
use serde_json::json;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::json::Payload;
use crate::limit::Limit;
use crate::message::{more, note, tell_pinned};
use crate::output::{Output, grouped, size};
use crate::store;
use crate::table::{self, Column};

/// A document, for every command that takes one.
#[derive(Debug, clap::Args)]
pub(crate) struct DocumentArgs {
    /// The namespace of the document.
    pub(crate) namespace: String,

    /// The key of the document.
    pub(crate) key: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) document: DocumentArgs,

    /// Print the bytes unchanged, and nothing else.
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) document: DocumentArgs,

    /// The file with the value [default: standard input].
    pub(crate) file: Option<PathBuf>,

    /// Create the store if there is none.
    #[arg(long)]
    pub(crate) create: bool,

    /// The content type of the value. A value that does not fit is refused.
    #[arg(long = "type", value_name = "TYPE", default_value = "bytes")]
    pub(crate) r#type: Type,

    /// Write only if there is no such document.
    #[arg(long)]
    pub(crate) if_absent: bool,

    /// Write only if the document still has this version.
    #[arg(long, value_name = "N", conflicts_with = "if_absent")]
    pub(crate) if_version: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Type {
    Bytes,
    Json,
    Text,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DocsArgs {
    /// The namespace.
    pub(crate) namespace: String,

    /// Only documents whose keys begin with this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) prefix: String,

    #[command(flatten)]
    pub(crate) limit: Limit,

    /// Continue after this key.
    #[arg(long, value_name = "KEY")]
    pub(crate) after: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DelArgs {
    #[command(flatten)]
    pub(crate) document: DocumentArgs,

    /// Leave no byte of any of its values in the file, also if it was deleted before.
    #[arg(long)]
    pub(crate) erase: bool,
}

/// A document, as `get` prints it.
#[derive(Serialize)]
struct Row<'a> {
    namespace: &'a str,
    key: &'a str,
    version: Version,
    timestamp: Timestamp,
    kind: Option<&'a str>,
    content_type: ContentType,
    payload: Payload<'a>,
}

pub(crate) fn get(args: &GetArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    let DocumentArgs { namespace, key } = &args.document;
    let found = log.docs().get(namespace, key)?;
    let document = found.ok_or_else(|| missing(&args.document))?;
    let row = Row {
        namespace,
        key,
        version: document.version(),
        timestamp: document.timestamp(),
        kind: document.kind(),
        content_type: document.content_type(),
        payload: Payload::new(document.content_type(), document.payload()),
    };
    if args.raw {
        out.raw(document.payload())?;
    } else {
        out.tell(&row, document.payload())?;
    }
    out.flush()?;
    Ok(Exit::Fine)
}

fn missing(args: &DocumentArgs) -> Failure {
    Failure::said(format!("there is no document {} in {}", args.key, args.namespace))
}

pub(crate) fn put(args: &PutArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let DocumentArgs { namespace, key } = &args.document;
    // Before a store is made for it.
    let value = value(args)?;
    let content_type = match args.r#type {
        Type::Bytes => ContentType::BYTES,
        Type::Json => ContentType::JSON,
        Type::Text => ContentType::TEXT,
    };
    let record = NewRecord::new(&value).durability(Durability::Disk).content_type(content_type);
    let expected = match args.if_version {
        _ if args.if_absent => Expected::Absent,
        Some(version) => Expected::Version(Version(version)),
        None => Expected::Anything,
    };
    let log = store::open_to_write(path, args.create)?;
    let version = log.docs().put_if(namespace, key, &record, expected)?;
    log.close()?;
    let bytes = value.len() as u64;
    let object = json!({
        "action": "put", "namespace": namespace, "key": key, "version": version, "bytes": bytes,
    });
    out.tell(&object, format!("put {key} in {namespace}, {}, version {version}", size(bytes)))?;
    Ok(Exit::Fine)
}

/// The bytes to put.
fn value(args: &PutArgs) -> Result<Vec<u8>, Failure> {
    let (name, read) = match &args.file {
        Some(file) if file.as_os_str() != "-" => (file.as_path(), File::open(file).and_then(whole)),
        _ => (Path::new("standard input"), whole(io::stdin().lock())),
    };
    let bytes = read.map_err(|source| Failure::file(name, source))?;
    let wrong = match args.r#type {
        Type::Json => {
            serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).err().map(|e| e.to_string())
        }
        Type::Text => std::str::from_utf8(&bytes).err().map(|error| error.to_string()),
        Type::Bytes => None,
    };
    match wrong {
        Some(wrong) => Err(Failure::said(format!("{} is not of that type: {wrong}", shown(name)))),
        None => Ok(bytes),
    }
}

/// All bytes, unless there are more than a store accepts: a pipe, or a file of holes, may be
/// endless.
fn whole(reader: impl io::Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(store::MAX_RECORD + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > store::MAX_RECORD {
        let message = format!("a document has at most {} bytes", grouped(store::MAX_RECORD));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

pub(crate) fn list(args: &DocsArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    let (after, wanted) = (args.after.as_deref(), args.limit.wanted());
    let page = log.docs().list(&args.namespace, &args.prefix, after, wanted)?;
    let columns = [
        Column::id("key"),
        Column::right("version"),
        Column::left("timestamp").named("WRITTEN"),
        Column::right("bytes"),
    ];
    table::list(out, &columns, &page.documents)?;
    if page.documents.is_empty() && wanted > 0 && !out.is_json() {
        note("no documents");
    }
    out.flush()?;
    if let Some(after) = page.next {
        more("documents", Some(&after), "--all");
    }
    Ok(Exit::Fine)
}

pub(crate) fn delete(args: &DelArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let DocumentArgs { namespace, key } = &args.document;
    let log = store::open_existing(path)?;
    let (mut object, action, done, pinned) = if args.erase {
        // There may be bytes of deleted values too.
        let erased = log.docs().erase(namespace, key)?;
        (json!(erased), "erase", "erased", erased.pinned_extents)
    } else if log.docs().delete(namespace, key)? {
        (json!({}), "delete", "deleted", 0)
    } else {
        return Err(missing(&args.document));
    };
    log.close()?;
    (object["action"], object["namespace"], object["key"]) =
        (json!(action), json!(namespace), json!(key));
    out.tell(&object, format!("{done} {key} of {namespace}"))?;
    Ok(tell_pinned(pinned))
}
