//! Facts about Proxmox that no recording shows, each as a named test against the lab: running
//! containers, migration, high availability, releases 7 and 8, faults, worlds from files and seeds.
//!
//! Must not repeat what `replay` already proves.

mod access;
mod agent;
mod backups;
mod clones;
mod cluster;
mod config;
mod containers;
mod disks;
mod docs;
mod faults;
mod firewall;
mod flavours;
mod ha;
mod lab;
mod migration;
mod pools;
mod power;
mod random_requests;
mod reading;
mod replication;
mod response_forms;
mod snapshots;
mod storage_space;
mod tasks;
mod users;
mod wire;
mod worlds;
