//! One run from intent to evidence, as a library: open an environment, recover, observe, plan, judge, record, admit, apply, report.
//!
//! The command line, and later the daemon, the agent and MCP, call this and render what it returns. It never prints, reads a terminal, parses
//! arguments, handles signals or ends the process; `cargo xtask tidy` checks that. Progress arrives as [`RunEvent`]s.
//!
//! Every row lists what the module itself must not use.
//!
//! | module | purpose | must not reach |
//! |---|---|---|
//! | [`config`] | Parses converger.toml into a validated `Config`; reads no secret before it is needed. | network, store |
//! | [`files`] | Reads inputs and writes artifacts: bounded, and complete or not at all. | network, store |
//! | [`host`] | `Host`: wall clock, run ids, acting user and machine identity of a run, passed in by the caller. | network, store |
//! | [`machine`] | The birth marks of the guest that this process runs in (G3). | network, store |
//! | `cluster_identity` | Compares the cluster that answers with the one that an environment stands for. | engine |
//! | [`state_dir`] | `StateDirectory`: the open store and its witness. | adapters, engine |
//! | [`author`] | Who writes, when and why. | network, store |
//! | [`holds`] | Sets and ends holds of guests and freezes of environments. | engine |
//! | [`operation_resolution`], [`environment_rename`] | Writes that people make under the lock of an environment. | adapters, engine |
//! | [`ledger_prune`], [`ledger_rekey`] | Removes old readings; replaces the signing key. | adapters, engine |
//! | [`store_backup`], [`store_restore`] | Copies the store to a verified file; puts such a file in place of the store. | adapters, engine |
//! | [`ledger_key`], [`witness`] | The signing key, and the copy of the last checkpoint on other storage. | adapters, engine |
//! | [`ledger_reader`] | Reads ledger and journal without opening them for writing. | adapters, engine |
//! | [`state_check`], [`entry_check`] | Verifies a store: hashes, entries, journal and file. | adapters, engine |
//! | [`reader`] | `EnvironmentReader`: observes and plans without writing (G4, G5). | engine, actuator, store writer |
//! | [`environment`] | `Environment`: one locked environment with one executor; recovers, starts runs, reloads, closes. | HTTP, SQL, files |
//! | [`run`] | `Run` and `ApprovedRun`: one run from plan to report. | adapters, SQL, files |
//! | [`record`] | Writes what a run decided to the ledger before the caller learns of it (G10). | adapters, engine |
//! | [`executor`] | Connects the engine to an environment; has the only `impl Actuator for`. | config, planning, ledger |
//! | [`stop`] | `StopHandle`: requests to stop, and why. | store, adapters, signals of the system |
//! | [`report`] | `RunReport` and the `converger.result/1` document. Pure. | I/O, clock |
//! | [`request_key`] | Idempotency keys of requests: their scope, and what an earlier request with the same key did. | network, clock |
//! | [`event`] | `RunEvent`, `EventSink` and the bounded `EventBus`. Data and one channel. | store, network, clock |
//! | [`error`] | `RuntimeError`: message, code and remedy. | I/O, clock |
//! | [`expected_plan`] | Compares a new plan with one that was saved. | network, store |
//! | [`run_clock`] | The clock that the engine waits with. | network, store |
//! | `recovery_timeout`, `slow_response` | How long a response may take in recovery, and when a slow one is announced. | config, store |

pub mod author;
mod cluster_identity;
pub mod config;
pub mod entry_check;
pub mod environment;
pub mod environment_rename;
pub mod error;
pub mod event;
pub mod executor;
pub mod expected_plan;
pub mod files;
pub mod holds;
pub mod host;
pub mod ledger_key;
pub mod ledger_prune;
pub mod ledger_reader;
pub mod ledger_rekey;
pub mod machine;
pub mod operation_resolution;
pub mod reader;
pub mod record;
mod recovery_timeout;
pub mod report;
pub mod request_key;
pub mod run;
pub mod run_clock;
mod slow_response;
pub mod state_check;
pub mod state_dir;
pub mod stop;
pub mod store_backup;
pub mod store_restore;
pub mod witness;

pub use author::{Author, Reason};
pub use config::{Config, ConfigError, ConfigSource};
pub use environment::{Environment, Opened, Recovered, StartedRun};
pub use error::{RuntimeError, RuntimeFault};
pub use event::{EventBus, EventSink, EventStream, RunEvent};
pub use expected_plan::ExpectedPlan;
pub use host::Host;
pub use ledger_reader::{LedgerLocation, LedgerReader};
pub use reader::{EnvironmentReader, ObservationSource, Observed, Planned};
pub use report::{RecoveryReport, RunEnd, RunReport};
pub use request_key::{RepeatedRequest, scope_key};
pub use run::{ApprovedRun, Question, Run, RunAdmission, RunRequest};
pub use state_dir::{StateDirectory, StateLocation};
pub use stop::{StopCause, StopHandle};
