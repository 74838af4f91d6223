//! `/nodes/{node}/qemu` and `/nodes/{node}/lxc`. Both guest kinds share these modules; their
//! differences are data.
//!
//! What tasks do is in `task_work`.

mod agent;
mod clone;
mod cloud_init;
mod config;
mod create;
mod destroy;
mod disk;
mod migrate;
mod power;
mod restore;
mod snapshot;
mod status;

use super::ApiRoute;

pub(super) const ROUTES: &[ApiRoute] = &[
    ("GET", "/nodes/{node}/{kind}", status::list),
    ("POST", "/nodes/{node}/{kind}", create::create),
    ("GET", "/nodes/{node}/{kind}/{vmid}", status::index),
    ("DELETE", "/nodes/{node}/{kind}/{vmid}", destroy::destroy),
    ("GET", "/nodes/{node}/{kind}/{vmid}/config", config::read),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/config", config::update_now),
    ("POST", "/nodes/{node}/{kind}/{vmid}/config", config::update_in_task),
    ("GET", "/nodes/{node}/{kind}/{vmid}/pending", config::read_pending),
    ("GET", "/nodes/{node}/{kind}/{vmid}/status", status::list_verbs),
    ("GET", "/nodes/{node}/{kind}/{vmid}/status/current", status::current_status),
    ("POST", "/nodes/{node}/{kind}/{vmid}/status/start", power::start),
    ("POST", "/nodes/{node}/{kind}/{vmid}/status/stop", power::stop),
    ("POST", "/nodes/{node}/{kind}/{vmid}/status/shutdown", power::shutdown),
    ("POST", "/nodes/{node}/{kind}/{vmid}/status/reboot", power::reboot),
    ("POST", "/nodes/{node}/{kind}/{vmid}/status/reset", power::reset),
    ("POST", "/nodes/{node}/{kind}/{vmid}/status/suspend", power::suspend),
    ("POST", "/nodes/{node}/{kind}/{vmid}/status/resume", power::resume),
    ("POST", "/nodes/{node}/{kind}/{vmid}/clone", clone::clone_guest),
    ("POST", "/nodes/{node}/{kind}/{vmid}/template", create::convert_to_template),
    ("GET", "/nodes/{node}/{kind}/{vmid}/migrate", migrate::read_preconditions),
    ("POST", "/nodes/{node}/{kind}/{vmid}/migrate", migrate::start_migration),
    ("GET", "/nodes/{node}/qemu/{vmid}/cloudinit", cloud_init::read),
    ("PUT", "/nodes/{node}/qemu/{vmid}/cloudinit", cloud_init::regenerate),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/unlink", config::unlink_disks),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/resize", disk::resize),
    ("POST", "/nodes/{node}/{kind}/{vmid}/move_disk", disk::move_disk),
    ("POST", "/nodes/{node}/{kind}/{vmid}/move_volume", disk::move_disk),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent", agent::list_commands),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/info", agent::run_agent_command),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-host-name", agent::run_agent_command),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-osinfo", agent::run_agent_command),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-time", agent::run_agent_command),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-timezone", agent::run_agent_command),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-users", agent::run_agent_command),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-vcpus", agent::run_agent_command),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/get-fsinfo", agent::run_agent_command),
    ("GET", "/nodes/{node}/qemu/{vmid}/agent/network-get-interfaces", agent::run_agent_command),
    ("POST", "/nodes/{node}/qemu/{vmid}/agent/ping", agent::run_agent_command),
    ("POST", "/nodes/{node}/qemu/{vmid}/agent/fstrim", agent::run_agent_command),
    ("GET", "/nodes/{node}/{kind}/{vmid}/feature", agent::check_feature),
    ("GET", "/nodes/{node}/lxc/{vmid}/interfaces", agent::container_interfaces),
    ("GET", "/nodes/{node}/{kind}/{vmid}/snapshot", snapshot::list),
    ("POST", "/nodes/{node}/{kind}/{vmid}/snapshot", snapshot::take),
    ("GET", "/nodes/{node}/{kind}/{vmid}/snapshot/{snapname}", snapshot::index),
    ("DELETE", "/nodes/{node}/{kind}/{vmid}/snapshot/{snapname}", snapshot::delete),
    ("GET", "/nodes/{node}/{kind}/{vmid}/snapshot/{snapname}/config", snapshot::read),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/snapshot/{snapname}/config", snapshot::set_description),
    ("POST", "/nodes/{node}/{kind}/{vmid}/snapshot/{snapname}/rollback", snapshot::rollback),
];
