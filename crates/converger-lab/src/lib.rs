//! A Proxmox VE look-alike: `World::answer(now, request)` is a pure function of what came before.
//!
//! It answers as Proxmox VE 7, 8 and 9 do, in texts, codes, types, reason phrases, delays and traps,
//! so that a program can be tried and tested without a cluster. It uses nothing else of this
//! workspace, so that agreement with it proves something. What never enters here: a clock, entropy,
//! files, sockets; whoever runs it brings them.
//!
//! ```
//! use converger_lab::{Request, Setting, World};
//!
//! let setting = Setting::from_yaml(
//!     "nodes: { pve1: {} }
//! tokens: { 'root@pam!me': { secret: s3cret, full: true } }
//! guests: [{ vmid: 100, kind: qemu, node: pve1, name: web, state: running }]",
//! )?;
//! let mut world = World::new(&setting)?;
//! let request = Request::new("GET", "/api2/json/nodes/pve1/qemu/100/status/current").token("root@pam!me=s3cret");
//! let answer = world.answer(setting.start_ms, &request);
//! assert_eq!(answer.status, 200);
//! assert!(String::from_utf8_lossy(&answer.body).contains("\"qmpstatus\":\"running\""));
//! # Ok::<(), String>(())
//! ```

mod access;
mod api;
mod decode;
mod digest;
mod engine;
mod fault;
mod firewall;
mod flavour;
mod guest;
mod guests;
mod ha;
mod node;
mod on_write;
mod options;
mod random;
mod respond;
mod route;
mod schema;
mod sections;
#[cfg(feature = "server")]
pub mod server;
mod setting;
mod storage;
mod task;
mod text;
mod truth;
mod update;
mod verify;
mod view;
mod wire;
mod words;
mod work;
mod world;

pub use fault::{Act, BadDay, Chance, FaultPlan, Moment, Part, RequestFault, SeededDay, TaskFault, TaskTwist, Twist};
pub use flavour::Flavour;
pub use guest::Kind;
pub use setting::{
    AclSetting, GuestSetting, HaSetting, NewGuests, NodeSetting, Pace, PoolSetting, Scalar, Scale, Setting, StorageSetting, TokenSetting,
    UserSetting,
};
pub use truth::{Glance, Managed, Truth};
pub use verify::{documented_methods, verify_answer, verify_request};
pub use wire::{Answer, Face, Fate, Header, Request};
pub use world::{Record, World};
