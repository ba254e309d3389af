//! A table in a file that gets its name once it is whole.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use tempfile::NamedTempFile;

use crate::error::ExportError;

/// How many encoded bytes a group of rows has before it is written.
const GROUP_BYTES: usize = 64 << 20;

/// The time zone of all times.
pub(crate) const UTC: &str = "UTC";

/// A column of times.
pub(crate) fn time(name: &str, nullable: bool) -> Field {
    let kind = DataType::Timestamp(TimeUnit::Nanosecond, Some(UTC.into()));
    Field::new(name, kind, nullable)
}

/// A table that is being written. It is removed unless it is published.
#[derive(Debug)]
pub(crate) struct Table {
    path: PathBuf,
    schema: Arc<Schema>,
    writer: ArrowWriter<NamedTempFile>,
}

/// A table that is whole and has no name yet.
#[derive(Debug)]
pub(crate) struct Whole {
    path: PathBuf,
    file: NamedTempFile,
}

impl Table {
    pub(crate) fn create(
        folder: &Path,
        name: &str,
        fields: Vec<Field>,
    ) -> Result<Self, ExportError> {
        let path = folder.join(name);
        let failed = |source| ExportError::File { path: folder.to_path_buf(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        if path.symlink_metadata().is_ok() {
            return Err(ExportError::Exists(path));
        }
        let file = tempfile::Builder::new().prefix(".runlog-parquet").tempfile_in(folder);
        let file = file.map_err(failed)?;
        let schema = Arc::new(Schema::new(fields));
        let level = parquet::basic::ZstdLevel::default();
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(level))
            .set_created_by(concat!("runlog-parquet ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let writer = ArrowWriter::try_new(file, Arc::clone(&schema), Some(properties));
        match writer {
            Ok(writer) => Ok(Self { path, schema, writer }),
            Err(source) => Err(ExportError::Parquet { path, source }),
        }
    }

    /// Writes rows: a column for each field, in their order.
    pub(crate) fn write(&mut self, columns: Vec<ArrayRef>) -> Result<(), ExportError> {
        let failed = |source| ExportError::Parquet { path: self.path.clone(), source };
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns);
        self.writer.write(&batch.map_err(|error| failed(error.into()))?).map_err(failed)?;
        if self.writer.in_progress_size() >= GROUP_BYTES {
            self.writer.flush().map_err(failed)?;
        }
        Ok(())
    }

    /// Writes the end of the table and syncs it.
    pub(crate) fn finish(self) -> Result<Whole, ExportError> {
        let Self { path, writer, .. } = self;
        let file = match writer.into_inner() {
            Ok(file) => file,
            Err(source) => return Err(ExportError::Parquet { path, source }),
        };
        match file.as_file().sync_all() {
            Ok(()) => Ok(Whole { path, file }),
            Err(source) => Err(ExportError::File { path, source }),
        }
    }
}

impl Whole {
    /// Gives the file its name, unless something has it, and makes that durable.
    pub(crate) fn publish(self) -> Result<(), ExportError> {
        let Self { path, file } = self;
        if let Err(failed) = file.persist_noclobber(&path) {
            return Err(match failed.error.kind() {
                std::io::ErrorKind::AlreadyExists => ExportError::Exists(path),
                _ => ExportError::File { path, source: failed.error },
            });
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| ExportError::File { path, source })
    }
}
