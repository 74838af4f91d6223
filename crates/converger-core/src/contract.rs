//! Placeholder until vectors exist.
