//! The observer of recordings: reads current.json from a file or from standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use converger_core::desired::Scope;
use converger_core::document::TEXT_BYTES_MAX;
use converger_core::guest::EnvironmentName;
use converger_core::observe::{self, Scoped};

use crate::{ObserveError, Observer};

/// Where a recording is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replay {
    /// In a file.
    File(PathBuf),
    /// On standard input, which can be read once.
    Stdin,
}

impl Replay {
    fn place(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Stdin => "standard input".into(),
        }
    }

    fn bytes(&self) -> Result<Vec<u8>, ObserveError> {
        let read = match self {
            Self::File(path) => File::open(path).and_then(bounded),
            Self::Stdin => bounded(io::stdin().lock()),
        };
        let bytes = read.map_err(|source| ObserveError::Unreadable { place: self.place(), source })?;
        if bytes.len() > TEXT_BYTES_MAX {
            return Err(ObserveError::TooLarge { place: self.place() });
        }
        Ok(bytes)
    }
}

/// At most one byte more than is accepted: enough to know that it is too much.
fn bounded(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(TEXT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Observer for Replay {
    async fn observe(&self, environment: &EnvironmentName, scope: &Scope) -> Result<Scoped, ObserveError> {
        let bytes = self.bytes()?;
        let observation = match observe::parse(&bytes) {
            Ok(observation) => observation,
            Err(diagnostics) => return Err(ObserveError::Malformed { place: self.place(), bytes, diagnostics }),
        };
        if observation.environment != *environment {
            let (found, wanted) = (observation.environment.to_string(), environment.to_string());
            return Err(ObserveError::OtherEnvironment { place: self.place(), found, wanted });
        }
        Ok(observation.within(scope))
    }
}
