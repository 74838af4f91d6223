//! The record as strangers see it: what the program recorded of decisions on a lab is accepted by code that nobody here wrote, and whatever
//! is done to it afterwards is noticed, with its place.
//!
//! Everything here is about the real program, a real lab and a real file. What never enters: the mathematics of the log (the tests of
//! `converger-ledger`), and what is decided.

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
