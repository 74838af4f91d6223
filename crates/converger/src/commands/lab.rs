//! `converger lab`: serves a simulated cluster from a file or a seed until Ctrl-C.

mod connection_info;
mod lab_directory;
mod recorder;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use converger_core::failure::FailureCode;
use converger_lab::server::{ClockMode, LabCertificates, LabServer, RequestWatcher, ServeError, ServedExchange, ServedNode, ServerOptions};
use converger_lab::{Flavour, RequestRecord, SeededBadDay, WorldSize, WorldSpec};

use super::signals::StopSignals;
use super::{CommandError, finish_output};
use crate::cli::LabArgs;
use crate::exit_status::ExitStatus;
use crate::render::{self, apply_style};
use crate::{files, output, verbosity};
use connection_info::LabConnectionInfo;
use lab_directory::LabDirectory;
pub(super) use lab_directory::is_lab_config;
use recorder::{RequestRecorder, ResponseForm};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

const WORLD_BYTES_MAX: usize = 64 << 20;

pub(super) async fn run_lab(arguments: &LabArgs) -> Result<ExitStatus, CommandError> {
    let spec = load_setting(arguments)?;
    let clock = arguments.clock.map_or(ClockMode::Real { speed: arguments.speed }, |step_ms| ClockMode::Virtual { step_ms });
    // Created before anything is written or listened on, so that faults of the file are reported first.
    let world = LabServer::build_world(&spec, clock).map_err(|error| world_error(arguments, &error))?;
    let directory = arguments.into.as_deref().map(|into| LabDirectory::claim(into, arguments.overwrite.overwrite)).transpose()?;
    let new = || create_identity(&spec);
    let identity = directory.as_ref().map_or_else(new, |directory| directory.load_or_create_identity(new))?;
    let invitation = LabConnectionInfo::new(&spec, &identity, clock);
    let recorder = arguments.record.as_deref().map(|path| RequestRecorder::open(path, arguments.overwrite.overwrite)).transpose()?;
    let watcher = request_watcher(spec.flavour, !verbosity::is_quiet(), recorder.clone());
    let options = ServerOptions { listen: SocketAddr::new(LOOPBACK, arguments.port), clock, identity, watcher };
    let server = LabServer::bind_world(world, options).await.map_err(|error| serve_error(&error))?;
    let served_nodes: Vec<ServedNode> = server.served_nodes().cloned().collect();
    if let Some(directory) = &directory {
        invitation.write_files(directory, &served_nodes)?;
    }
    let (world, mut endings) = (server.world(), StopSignals::listen()?);
    let text = invitation.render(&served_nodes, directory.as_ref());
    finish_output(io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()), ExitStatus::Done)?;
    server.run(wait_for_end(&mut endings, recorder.as_deref())).await;
    if let Some(directory) = &directory {
        directory.remove_card();
    }
    let requests = world.lock().requests();
    output::print_notice(&format!("\n{}", apply_style(render::DIM, format!("the lab ended after {requests} requests"))));
    recorder.and_then(|recorder| recorder.write_fault()).map_or(Ok(ExitStatus::Done), Err)
}

fn load_setting(arguments: &LabArgs) -> Result<WorldSpec, CommandError> {
    let flavour = arguments.flavour.map(Flavour::try_from).transpose().map_err(CommandError::input_error)?;
    let bad_day = arguments.bad_day.map(|seed| SeededBadDay { seed, ..SeededBadDay::default() });
    let Some(path) = &arguments.world else {
        let scale = WorldSize { nodes: arguments.nodes, guests: arguments.guests };
        let mut spec = WorldSpec::from_seed(arguments.seed, scale, flavour.unwrap_or_default());
        spec.faults.bad_day = bad_day;
        return Ok(spec);
    };
    let mut spec = WorldSpec::from_yaml(&read_world_file(path)?).map_err(|fault| world_file_error(path, &fault))?;
    spec.flavour = flavour.unwrap_or(spec.flavour);
    spec.faults.bad_day = bad_day.or(spec.faults.bad_day);
    Ok(spec)
}

fn world_error(arguments: &LabArgs, error: &ServeError) -> CommandError {
    match (&arguments.world, error) {
        (Some(path), ServeError::Spec(fault)) => world_file_error(path, fault),
        _ => serve_error(error),
    }
}

fn world_file_error(path: &Path, fault: &str) -> CommandError {
    invalid_world_error(format!("{} does not describe a valid lab: {fault}", files::display_path(path)))
}

fn read_world_file(path: &Path) -> Result<String, CommandError> {
    let name = files::display_path(path);
    let text = files::read_at_most(path, WORLD_BYTES_MAX).map_err(|error| {
        let stop = CommandError::input_error(format!("cannot read {name}: {error}")).with_code(FailureCode::FileUnreadable);
        stop.with_help("name a file that describes a lab, or none to generate one from a seed")
    })?;
    if text.bytes.len() > WORLD_BYTES_MAX {
        return Err(invalid_world_error(format!("{name} is larger than 64 MiB")));
    }
    String::from_utf8(text.bytes).map_err(|_| invalid_world_error(format!("{name} is not UTF-8")))
}

fn create_identity(spec: &WorldSpec) -> Result<LabCertificates, CommandError> {
    LabCertificates::new(spec.nodes.keys().map(String::as_str), LOOPBACK)
        .map_err(|error| invalid_world_error(format!("cannot create a certificate for the names of the nodes: {error}")))
}

/// The file does not describe a valid lab.
fn invalid_world_error(text: String) -> CommandError {
    CommandError::input_error(text).with_code(FailureCode::WorldInvalid).with_help("fix the file; docs/lab.md describes the format")
}

/// Who is told about every request: the terminal, a file, both or none.
fn request_watcher(flavour: Flavour, is_shown: bool, recorder: Option<Arc<RequestRecorder>>) -> Option<RequestWatcher> {
    if !is_shown && recorder.is_none() {
        return None;
    }
    Some(Arc::new(move |passed: &ServedExchange<'_>| {
        if is_shown {
            log_request(passed.record);
        }
        if let Some(recorder) = &recorder {
            recorder.write_record(passed.record, &ResponseForm::classify(flavour, passed.request, passed.answer));
        }
    }))
}

/// Waits until the lab is ended, or its record cannot be written.
async fn wait_for_end(endings: &mut StopSignals, recorder: Option<&RequestRecorder>) {
    let Some(recorder) = recorder else { return endings.next().await };
    futures_util::future::select(pin!(endings.next()), pin!(recorder.wait_for_failure())).await;
}

fn log_request(record: &RequestRecord) {
    let status = if record.status == 0 { "lost".to_owned() } else { record.status.to_string() };
    // The client chooses these words; they must not act on a terminal.
    let path = recorder::redact_query(&record.path);
    let [method, path, user] = [&record.method, &path, &record.user].map(|value| value.escape_debug().to_string());
    let line = format!("{} {method:<6} {path} {status} {user}", record.entry);
    let _ = writeln!(anstream::stderr(), "{}", apply_style(render::DIM, line));
}

fn serve_error(error: &ServeError) -> CommandError {
    match error {
        ServeError::Spec(_) => invalid_world_error(error.to_string()),
        ServeError::Ports(..) => {
            let stop = CommandError::input_error(error.to_string());
            stop.with_help("`--port` names the port of the first node; `--port 0` takes any free ports")
        }
        ServeError::Port(..) => {
            let stop = CommandError::failure(error.to_string()).with_code(FailureCode::LabUnserved);
            stop.with_help("another program may use it, perhaps another lab; `--port 0` takes any free ports")
        }
        ServeError::Certificate(_) => {
            CommandError::failure(error.to_string()).with_code(FailureCode::LabUnserved).with_help("remove lab.pem to create a new one")
        }
    }
}
