//! Facts about Proxmox that no recording shows, each as a named test against the lab: containers that
//! run, moves, high availability, releases 7 and 8, faults, worlds from files and seeds.
//!
//! What never enters here: what the replay proves already.

mod access;
mod backups;
mod cluster;
mod config;
mod containers;
mod disks;
mod docs;
mod faults;
mod firewall;
mod flavours;
mod ha;
mod inside;
mod lab;
mod migration;
mod people;
mod pools;
mod power;
mod reading;
mod shapes;
mod tasks;
mod walk;
mod wire;
mod worlds;
