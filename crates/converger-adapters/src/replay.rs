//! The observer of recordings. It reads `current.json` from a file or from standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use converger_core::desired::{GuestSelection, Scope};
use converger_core::document::TEXT_BYTES_MAX;
use converger_core::guest::EnvironmentName;
use converger_core::observe::{self, Scoped};

use crate::{ObserveError, Observer};

/// A source of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordingObserver {
    /// A file.
    File(PathBuf),
    /// Standard input, which can be read once.
    Stdin,
}

impl RecordingObserver {
    fn source_name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Stdin => "standard input".into(),
        }
    }

    fn read_bytes(&self) -> Result<Vec<u8>, ObserveError> {
        let read = match self {
            Self::File(path) => File::open(path).and_then(read_bounded),
            Self::Stdin => read_bounded(io::stdin().lock()),
        };
        let bytes = read.map_err(|source| ObserveError::Unreadable { endpoint: self.source_name(), source })?;
        if bytes.len() > TEXT_BYTES_MAX {
            return Err(ObserveError::TooLarge { endpoint: self.source_name() });
        }
        Ok(bytes)
    }
}

/// Reads at most one byte more than the limit, which is enough to detect an oversized source.
fn read_bounded(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(TEXT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Observer for RecordingObserver {
    async fn observe(&self, environment: &EnvironmentName, scope: &Scope) -> Result<Scoped, ObserveError> {
        self.observe_selected(environment, &scope.clone().into())
    }
}

impl RecordingObserver {
    /// Reads the selected guests.
    ///
    /// # Errors
    /// There is no observation, or it is of another environment.
    pub fn observe_selected(&self, environment: &EnvironmentName, selection: &GuestSelection) -> Result<Scoped, ObserveError> {
        let bytes = self.read_bytes()?;
        let observation = match observe::parse(&bytes) {
            Ok(observation) => observation,
            Err(diagnostics) => return Err(ObserveError::Malformed { endpoint: self.source_name(), bytes, diagnostics }),
        };
        if observation.environment != *environment {
            let (found, wanted) = (observation.environment.to_string(), environment.to_string());
            return Err(ObserveError::OtherEnvironment { endpoint: self.source_name(), found, wanted });
        }
        let scope = selection.resolve(observation.candidate_ids());
        Ok(observation.into_scoped(&scope))
    }
}
