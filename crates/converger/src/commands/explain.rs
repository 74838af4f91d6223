//! What the program says about itself: refusal codes, fields, schemas, and its contract.

use std::io::{self, Write};

use super::{Stop, shown};
use crate::cli::Format;
use crate::exit::End;

pub(super) fn explain(_topic: Option<&str>, _json: bool) -> Result<End, Stop> {
    shown(io::stdout().flush(), End::Done)
}

pub(super) fn contract(_json: bool) -> Result<End, Stop> {
    shown(io::stdout().flush(), End::Done)
}

pub(super) fn contract_holds() -> bool {
    true
}

pub(super) fn schema(_format: Format) -> Result<End, Stop> {
    shown(io::stdout().flush(), End::Done)
}
