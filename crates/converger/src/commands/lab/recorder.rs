//! `--record`: writes every request as a line of JSON into a file that only this user may read.
//!
//! A file that is not a record is not replaced, and a record that cannot be written ends the lab, because an incomplete record misleads. Of a
//! response only its status is recorded, and whether it has the documented form.

use std::fs::{self, File, Metadata};
use std::io::{self, BufRead as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use converger_core::failure::FailureCode;
use converger_lab::{Flavour, LabRequest, LabResponse, RequestRecord, verify_response};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::CommandError;
use crate::files;

/// Words in the names of parameters whose values are secret.
const SECRET_WORDS: [&str; 6] = ["password", "secret", "ticket", "otp", "challenge", "response"];

/// The longest line of a record.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Larger responses are not checked, because that would take too long.
const CHECKED_BYTES_MAX: usize = 256 << 10;

/// Whether a response has the form that the official API documentation describes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResponseForm {
    /// It has the documented form.
    Documented,
    /// It is not from a method, but from the server itself, a proxy or a fault.
    Raw,
    /// It is too large to be checked.
    Unchecked,
    /// Its form is not documented.
    Undocumented(String),
}

impl ResponseForm {
    pub(super) fn classify(flavour: Flavour, request: &LabRequest, answer: &LabResponse) -> Self {
        if answer.body.len() > CHECKED_BYTES_MAX {
            return Self::Unchecked;
        }
        match verify_response(flavour, request, answer) {
            Ok(Some(_)) => Self::Documented,
            Ok(None) => Self::Raw,
            Err(fault) => Self::Undocumented(fault),
        }
    }

    fn label(&self) -> &str {
        match self {
            Self::Documented => "documented",
            Self::Raw => "raw",
            Self::Unchecked => "unchecked",
            Self::Undocumented(fault) => fault,
        }
    }
}

/// The file of a record, or the error that ended it.
pub(super) struct RequestRecorder {
    path: PathBuf,
    file: Mutex<Result<File, io::Error>>,
    failed: Notify,
}

impl RequestRecorder {
    /// Creates the file, or truncates an existing record.
    pub(super) fn open(path: &Path, overwrite: bool) -> Result<Arc<Self>, CommandError> {
        // If the reader of a pipe stopped, the lab would block.
        let is_pipe = |file_metadata: Metadata| file_metadata.file_type().is_fifo() || file_metadata.file_type().is_socket();
        if fs::metadata(path).is_ok_and(is_pipe) {
            let error = io::Error::other("it is a pipe or a socket, and not a regular file");
            return Err(write_error(path, &error).with_help("name a new file with --record"));
        }
        let open = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = open.map_err(|error| write_error(path, &error))?;
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            if !overwrite && !is_record(&file) {
                let text = format!("{} exists and is not a record of a lab; it is not replaced", files::display_path(path));
                return Err(CommandError::input_error(text)
                    .with_code(FailureCode::FileTaken)
                    .with_help("name a new file with --record, or add `--overwrite` to replace it"));
            }
            file.set_len(0).and_then(|()| io::Seek::rewind(&mut &file)).map_err(|error| write_error(path, &error))?;
        }
        Ok(Arc::new(Self { path: path.to_owned(), file: Mutex::new(Ok(file)), failed: Notify::new() }))
    }

    /// Writes a line at once, so that a concurrent reader never sees half of it.
    pub(super) fn write_record(&self, record: &RequestRecord, form: &ResponseForm) {
        let RequestRecord { at_ms, entry, method, path, user, status } = record;
        let path = redact_query(path);
        let form = form.label();
        let line = json!({ "at_ms": at_ms, "form": form, "node": entry, "method": method, "path": path, "user": user, "status": status });
        let mut file = self.lock();
        let Ok(open) = file.as_mut() else { return };
        if let Err(error) = open.write_all(format!("{line}\n").as_bytes()) {
            *file = Err(error);
            self.failed.notify_one();
        }
    }

    /// Completes when a line could not be written.
    pub(super) async fn wait_for_failure(&self) {
        self.failed.notified().await;
    }

    /// The error that kept a line from being written.
    pub(super) fn write_fault(&self) -> Option<CommandError> {
        let file = self.lock();
        file.as_ref().err().map(|error| write_error(&self.path, error).with_help("the lab ended, because its record is incomplete"))
    }

    fn lock(&self) -> MutexGuard<'_, Result<File, io::Error>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a file is empty, or begins like a record.
fn is_record(file: &File) -> bool {
    let mut line = Vec::new();
    let read = io::BufReader::new(io::Read::take(file, LINE_BYTES_MAX)).read_until(b'\n', &mut line);
    let has_all = |value: Value| ["at_ms", "node", "method", "path", "user", "status"].iter().all(|key| value.get(key).is_some());
    read.is_ok() && (line.is_empty() || serde_json::from_slice(&line).is_ok_and(has_all))
}

/// A path with its query, without secret values.
pub(super) fn redact_query(path: &str) -> String {
    let Some((base_path, query)) = path.split_once('?') else { return path.to_owned() };
    let parameters = query.split(['&', ';']).map(|pair| match pair.split_once('=') {
        Some((name, _)) if is_secret_parameter(name) => format!("{name}=..."),
        _ => pair.to_owned(),
    });
    format!("{base_path}?{}", parameters.collect::<Vec<_>>().join("&"))
}

/// An encoded name counts as well, because it may be any of them.
fn is_secret_parameter(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains('%') || SECRET_WORDS.iter().any(|word| name.contains(word))
}

fn write_error(path: &Path, error: &io::Error) -> CommandError {
    CommandError::failure(format!("cannot write {}: {error}", files::display_path(path)))
        .with_code(FailureCode::FileUnwritable)
        .with_help("name a file with --record that can be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_record() -> RequestRecord {
        let path = "/access/ticket?username=root%40pam&password=hunter2&p%61ssword=hunter2".to_owned();
        RequestRecord { at_ms: 1, entry: "pve1".into(), method: "POST".into(), path, user: String::new(), status: 200 }
    }

    #[test]
    fn overwrites_only_a_record_and_keeps_it_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let world = directory.path().join("world.yaml");
        std::fs::write(&world, "nodes: { pve1: {} }\n").expect("written");
        assert!(RequestRecorder::open(&world, false).is_err(), "a world is no record");
        assert_eq!(std::fs::read_to_string(&world).expect("read"), "nodes: { pve1: {} }\n");
        let path = directory.path().join("requests.jsonl");
        for _ in 0..2 {
            RequestRecorder::open(&path, false).unwrap_or_else(|_| panic!("refused")).write_record(&sample_record(), &ResponseForm::Raw);
            let text = std::fs::read_to_string(&path).expect("read");
            assert_eq!(text.lines().count(), 1, "{text}");
            assert!(text.contains("username=root%40pam&password=...") && !text.contains("hunter2"), "{text}");
        }
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn refuses_to_record_to_a_pipe() {
        let directory = tempfile::tempdir().expect("a directory");
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
        assert!(RequestRecorder::open(&pipe, false).is_err());
    }

    #[test]
    fn reports_a_line_that_cannot_be_written() {
        let full = RequestRecorder::open(Path::new("/dev/full"), false).unwrap_or_else(|_| panic!("refused"));
        assert!(full.write_fault().is_none());
        full.write_record(&sample_record(), &ResponseForm::Raw);
        assert!(full.write_fault().is_some());
    }

    #[test]
    fn distinguishes_documented_from_undocumented_responses() {
        let request = LabRequest::new("GET", "/api2/json/version");
        let form = |status: u16, body: &str| {
            let headers = vec![("Content-Type".into(), "application/json;charset=UTF-8".into())];
            ResponseForm::classify(Flavour::V9, &request, &LabResponse { status, headers, body: body.into(), ..LabResponse::default() })
        };
        assert_eq!(form(200, r#"{"data":{"version":"9.2.3","release":"9.2","repoid":"x"}}"#), ResponseForm::Documented);
        let undocumented = form(200, r#"{"data":{"version":"9.2.3","repoid":"x"}}"#);
        assert!(undocumented.label().contains("`release` is missing"), "{undocumented:?}");
        assert_eq!(form(200, &format!("{{{}", " ".repeat(CHECKED_BYTES_MAX))), ResponseForm::Unchecked);
        assert_eq!(
            ResponseForm::classify(Flavour::V9, &request, &LabResponse { status: 595, ..LabResponse::default() }),
            ResponseForm::Raw
        );
    }
}
