//! The doctor in the lab: every finding in a world that has the fault and in one that does not, on every release; and the table of
//! privileges, with exactly which each verb works.

mod doctor_lab;
mod environment_faults;
mod privileges;
mod remedy_lines;
mod verbs;

#[path = "../lab/sent_change.rs"]
mod sent_change;
#[path = "../lab/wire.rs"]
mod wire;
