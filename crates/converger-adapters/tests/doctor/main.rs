//! The doctor at the bed of the lab: every finding against a world that has it and one that has not, on every release; and the
//! table of privileges, with which each verb works and without any one of which it does not.

mod doctor_lab;
mod environment_faults;
mod privileges;
mod remedy_lines;
mod verbs;

#[path = "../lab/wire.rs"]
mod wire;
