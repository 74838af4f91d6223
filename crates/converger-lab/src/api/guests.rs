//! `/nodes/{node}/qemu` and `/nodes/{node}/lxc`: guests of both kinds share these rooms, and what
//! differs is data.
//!
//! What never enters here: the work of tasks.

mod clone;
mod config;
mod create;
mod destroy;
mod disk;
mod inside;
mod migrate;
mod power;
mod restore;
mod snapshot;
mod status;

use super::Route;

pub(super) const ROUTES: &[Route] = &[
    ("GET", "/nodes/{node}/{kind}", status::list),
    ("POST", "/nodes/{node}/{kind}", create::create),
    ("GET", "/nodes/{node}/{kind}/{vmid}", status::index),
    ("DELETE", "/nodes/{node}/{kind}/{vmid}", destroy::destroy),
    ("GET", "/nodes/{node}/{kind}/{vmid}/config", config::read),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/config", config::put),
    ("POST", "/nodes/{node}/{kind}/{vmid}/config", config::post),
    ("GET", "/nodes/{node}/{kind}/{vmid}/pending", config::pending),
    ("GET", "/nodes/{node}/{kind}/{vmid}/status", status::verbs),
    ("GET", "/nodes/{node}/{kind}/{vmid}/status/current", status::current),
    ("POST", "/nodes/{node}/{kind}/{vmid}/status/start", power::start),
    ("POST", "/nodes/{node}/{kind}/{vmid}/status/stop", power::stop),
    ("POST", "/nodes/{node}/{kind}/{vmid}/status/shutdown", power::shutdown),
    ("POST", "/nodes/{node}/{kind}/{vmid}/status/reboot", power::reboot),
    ("POST", "/nodes/{node}/{kind}/{vmid}/status/reset", power::reset),
    ("POST", "/nodes/{node}/{kind}/{vmid}/status/suspend", power::suspend),
    ("POST", "/nodes/{node}/{kind}/{vmid}/status/resume", power::resume),
    ("POST", "/nodes/{node}/{kind}/{vmid}/clone", clone::clone),
    ("POST", "/nodes/{node}/{kind}/{vmid}/template", create::template),
    ("GET", "/nodes/{node}/{kind}/{vmid}/migrate", migrate::read),
    ("POST", "/nodes/{node}/{kind}/{vmid}/migrate", migrate::migrate),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/unlink", config::unlink),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/resize", disk::resize),
    ("POST", "/nodes/{node}/{kind}/{vmid}/move_disk", disk::move_disk),
    ("POST", "/nodes/{node}/{kind}/{vmid}/move_volume", disk::move_disk),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent", inside::commands),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/info", inside::ask),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-host-name", inside::ask),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-osinfo", inside::ask),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-time", inside::ask),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-timezone", inside::ask),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-users", inside::ask),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-vcpus", inside::ask),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-fsinfo", inside::ask),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/network-get-interfaces", inside::ask),
    ("POST", "/nodes/{node}/qemu/{vmid}/agent/ping", inside::ask),
    ("POST", "/nodes/{node}/qemu/{vmid}/agent/fstrim", inside::ask),
    ("GET", "/nodes/{node}/{kind}/{vmid}/feature", inside::feature),
    ("GET", "/nodes/{node}/lxc/{vmid}/interfaces", inside::interfaces),
    ("GET", "/nodes/{node}/{kind}/{vmid}/snapshot", snapshot::list),
    ("POST", "/nodes/{node}/{kind}/{vmid}/snapshot", snapshot::take),
    ("GET", "/nodes/{node}/{kind}/{vmid}/snapshot/{snapname}", snapshot::index),
    ("DELETE", "/nodes/{node}/{kind}/{vmid}/snapshot/{snapname}", snapshot::delete),
    ("GET", "/nodes/{node}/{kind}/{vmid}/snapshot/{snapname}/config", snapshot::read),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/snapshot/{snapname}/config", snapshot::describe),
    ("POST", "/nodes/{node}/{kind}/{vmid}/snapshot/{snapname}/rollback", snapshot::rollback),
];
