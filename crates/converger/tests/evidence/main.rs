//! The record as independent parties see it: what the program recorded in a lab is accepted by third-party code, and any later change is
//! detected with its location.
//!
//! These tests use the real program, a real lab and real files. The mathematics of the log is tested in `converger-ledger`; decisions are
//! tested in the core.

#[path = "../scenarios/lab.rs"]
#[allow(dead_code, reason = "the scenarios need more of it")]
mod lab;
#[path = "../apply/stage.rs"]
#[allow(dead_code, reason = "the tests of apply need more of it")]
mod stage;

mod canary;
mod concurrent_reads;
mod copies;
mod export;
mod export_files;
mod first_signature;
mod fixture;
mod flips;
mod forge;
mod forged_decisions;
mod formats;
mod interrupted;
mod journal_rows;
mod oracle;
mod outputs;
mod reading;
mod receipts;
mod record_check;
mod rekey;
mod reproduce;
mod secrets;
mod tampering;
