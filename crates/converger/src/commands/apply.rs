//! `apply`: the walk to its end. Plans on a fresh reading, asks, hands the approved plan to the engine, and says what became of it.
//!
//! What never enters: what is sent and when. That is the engine's.

mod ask;
mod board;
mod brief;
mod pace;
mod record;
mod result;
mod saved;
mod silence;
mod way;

use std::io::{self, IsTerminal as _, Write as _};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use converger_adapters::proxmox::client::{Client, Turn};
use converger_adapters::proxmox::hand::Hand as ProxmoxHand;
use converger_adapters::proxmox::observe::Needs;
use converger_core::apply::{Answer, Ask, Cause, End as Fate, History, OperationId, Place, RunId};
use converger_core::approve::{Admission, Admitted, ApprovedPlan, Confirmation, Mode, Refused, admit, objections};
use converger_core::artifact::{Narrowed, Provenance, RecordedPlan};
use converger_core::contract;
use converger_core::desired::Desired;
use converger_core::failure::Code;
use converger_core::guest::EnvironmentName;
use converger_core::plan::Verdict;
use converger_core::refusal::Refusal;
use converger_core::safety::{Judged, SafePlan};
use converger_engine::driver::{Engine, EngineError, Hand, Report, Settings, Signal, worst};
use converger_engine::schedule::OnFailure;
use converger_store::{Remembered, SqliteStore};
use futures_util::future::{Either, select};
use tokio::sync::watch;

use super::endings::Endings;
use super::memory::{self, Memory};
use super::spine::{self, Ground, Outcome, Seen};
use super::{Stop, shown};
use crate::cli::Apply;
use crate::config::Config;
use crate::exit::End;
use crate::{config, files, progress, render, screen, state};
use ask::{Person, Said};
pub(super) use board::UNDER_WAY;
use board::{Board, Subject};
use brief::Silent;
use pace::Pace;
use record::Recorded;
use result::Told;
use silence::Silence;
use way::Way;

pub(super) fn apply(arguments: &Apply) -> Result<End, Stop> {
    super::contract_kept(&contract::check())?;
    ask::is_sound(arguments)?;
    if let Some(path) = &result::place(arguments) {
        super::not_an_input(path, &arguments.source, arguments.plan.as_ref())?;
        result::has_place(path)?;
    }
    let ground = spine::ground(&arguments.source, &arguments.choice)?;
    match &arguments.source.look.replay {
        Some(_) => recorded(arguments, ground),
        None => live(arguments, ground),
    }
}

/// A recording shows how things were, and is never acted on (G7).
fn recorded(arguments: &Apply, ground: Ground) -> Result<End, Stop> {
    let desired = &ground.desired;
    let seen = spine::read(&arguments.source.look, &ground.config, desired.environment(), &desired.scope(), Needs::of(desired))?;
    let Outcome { judged, origin, provenance } = spine::judged(ground, seen, Remembered::default());
    let judged = judged.refused_for(Refusal::replay_not_appliable());
    super::show_outcome(&Outcome { judged, origin, provenance }, arguments.json, false)
}

fn live(arguments: &Apply, ground: Ground) -> Result<End, Stop> {
    let environment = ground.desired.environment().clone();
    let connection = ground.config.connection.as_ref().ok_or_else(|| spine::unconfigured(&environment))?;
    let pace = Pace::new(connection.clock);
    let mode = connection.mode.ok_or_else(|| undecided(arguments, &environment))?;
    // What cannot be used is found out before anything is asked of the cluster.
    let saved = arguments.plan.as_deref().map(saved::read).transpose()?;
    let memory = memory::to_write(arguments.source.look.config.as_deref(), &environment)?;
    let ended = driven(arguments, ground, mode.into(), saved.as_ref(), &memory, pace);
    // Whatever came of it: what the ledger has by now is told on.
    match (ended, memory.attest()) {
        (Ok(end), told) => told.map(|()| end),
        (Err(stop), Ok(())) => Err(stop),
        // Neither is kept from whoever has to know; the worse one decides.
        (Err(stop), Err(told)) => Err(told.after(stop)),
    }
}

/// The walk from a first reading to the result, with a store that may be written to.
fn driven(arguments: &Apply, ground: Ground, mode: Mode, saved: Option<&saved::Saved>, memory: &Memory, pace: Pace) -> Result<End, Stop> {
    let environment = ground.desired.environment().clone();
    let connection = ground.config.connection.as_ref().ok_or_else(|| spine::unconfigured(&environment))?;
    let _lock = memory.lock(&environment)?;
    let needs = || Ok::<_, Stop>(Needs::of(&ground.desired).afresh(&memory.remembered(&environment)?.changed));
    let proxmox = spine::connect(&environment, &ground.config)?.with_needs(needs()?);
    let (proxmox, report) = spine::take(proxmox, &environment, &ground.desired.scope())?;
    let hand = Arc::new(proxmox.hand(&report.place).map_err(|error| Stop::failed(error.to_string()))?);
    let silence = Arc::new(Silence::new(connection.clock));
    // Time is moved by answers on a lab's own clock: nobody waits for one there.
    let silent = (connection.clock == config::Clock::Real).then(Silent::default);
    let back = Arc::new(Live { hand: Arc::clone(&hand), silence: Arc::clone(&silence), silent });
    let live = Arc::new(Live { hand, silence, silent: None });
    let at_once = ground.config.at_once;
    let back = engine(back, memory, arguments, &ground.config, pace.clone());
    let engine = engine(live, memory, arguments, &ground.config, pace.clone());
    let (signal, began) = signals(memory, arguments.timeout, pace)?;
    // What became of what was under way is found out before anything new is planned.
    let recovered = recover(&back, memory, &environment, &signal)?;
    if !arguments.json {
        result::tell_recovered(&environment, &recovered)?;
    }
    let report = match recovered.operations() {
        [] => report,
        _ => spine::take(proxmox.with_needs(needs()?), &environment, &ground.desired.scope())?.1,
    };
    // Whatever could not be found out, because the run is being left, keeps its guest.
    let mut remembered = memory.remembered(&environment)?;
    remembered.writes = memory.writes(&environment, spine::undeclared_pending(&ground.desired, &report.reading))?;
    // It outweighs a refusal: what is refused is known.
    let is_held = is_held(&recovered, &remembered, &ground.desired);
    let is_new = |history: &&History| !recovered.operations().iter().any(|told| told.operation.id == *history.id());
    let untold: String = remembered.unsettled.iter().filter(is_new).map(render::unsettled).collect();
    let _ = write!(anstream::stderr(), "{}", screen::err(&untold));
    let refused = if is_held { End::Held } else { End::Refused };
    let config = ground.config.snapshot.clone();
    let outcome = spine::judged(ground, Seen { observation: report.reading, provenance: Provenance::Live }, remembered);
    // All that is decided from here on is in the ledger before anybody is told of it.
    let recorded = record::begin(memory, &outcome.judged, config, run_id()?)?;
    let person = Person { memory, signal: signal.clone() };
    let told = Told { environment: &environment, run: &recorded, at_once, recovered: &recovered, is_held };
    let approved = match decided(arguments, outcome, mode, saved, &person, &recorded) {
        Ok(Some(approved)) => approved,
        not => {
            let fate = not.as_ref().err().map_or(Fate::Refused, Stop::fate);
            recorded.ended(fate);
            let written = told.not_carried_out(arguments, fate);
            return match not {
                Err(stop) => Err(stop.beside(refused)),
                Ok(_) => written.map(|()| refused),
            };
        }
    };
    // Whoever puts an older copy back while this goes on is found out: what it is about to do is known elsewhere before it does it.
    if let Err(stop) = memory.attest() {
        recorded.ended(Fate::Failed);
        let _ = told.not_carried_out(arguments, Fate::Failed);
        return Err(stop.beside(refused));
    }
    let left_out = left_out(&approved);
    began.store(true, Ordering::SeqCst);
    let report = carry_out(&engine, memory, approved, recorded.run(), &signal)?;
    told.carried_out(arguments, &report, left_out)?;
    // What was left of an earlier run and is settled by now does not speak about this one.
    let held = if is_held { Fate::Held } else { Fate::Done };
    // Who was left out was refused before anything began: that says nothing about how the others ended.
    match worst([report.end(), held].into_iter()) {
        Fate::Done if left_out > 0 => Ok(End::Refused),
        fate => Ok(end(fate)),
    }
}

/// Whether it is not known what became of something: of what was left of an earlier run, or of a guest that is declared.
fn is_held(recovered: &Report, remembered: &Remembered, desired: &Desired) -> bool {
    let of_recovered = recovered.operations().iter().any(|reported| reported.outcome.end() == Fate::Held);
    of_recovered || remembered.unsettled.iter().any(|history| desired.scope().has(history.operation.guest.vmid))
}

fn undecided(arguments: &Apply, environment: &EnvironmentName) -> Stop {
    let file = config::path(arguments.source.look.config.as_deref()).map(|path| files::shown(&path)).unwrap_or_default();
    Stop::input(format!("nothing says who decides in the environment `{environment}`"))
        .code(Code::ConfigInvalid)
        .help(format!("write `mode = \"solo\"` (one person) or `mode = \"shared\"` (whoever asks does not approve) into {file}"))
}

/// A hand of the engine at a Proxmox endpoint: the one place where the two meet.
struct Live {
    hand: Arc<ProxmoxHand<Client>>,
    silence: Arc<Silence>,
    /// Of whoever comes back after a crash: nodes that are not waited for again.
    silent: Option<Silent>,
}

impl Hand for Live {
    type Turn = Turn;

    async fn turn(&self, place: Place) -> Result<Turn, Cause> {
        self.hand.turn(&place).await
    }

    async fn send(&self, turn: Turn, ask: Ask) -> Answer {
        self.silence.watched(self.hand.send(turn, &ask)).await
    }

    async fn ask(&self, ask: Ask) -> Answer {
        let answer = self.silence.watched(self.hand.ask(&ask));
        match &self.silent {
            Some(silent) => silent.waited(brief::node(&ask), answer).await,
            None => answer.await,
        }
    }
}

type Driver = Engine<Live, SqliteStore, Pace>;

fn engine(hand: Arc<Live>, memory: &Memory, arguments: &Apply, config: &Config, pace: Pace) -> Driver {
    let on_failure = if arguments.fail_fast { OnFailure::Stop } else { OnFailure::GoOn };
    let settings = Settings { limits: config.at_once, on_failure, patience: config.patience };
    Engine::new(hand, Arc::new(memory.store.clone()), Arc::new(pace), settings)
}

/// Ctrl-C and SIGTERM: the first begins nothing new, the second leaves at once. A time limit is a first one.
fn signals(memory: &Memory, timeout: Option<u64>, pace: Pace) -> Result<(watch::Receiver<Signal>, Began), Stop> {
    let (sender, receiver) = watch::channel(Signal::GoOn);
    let began = Began::default();
    let endings = {
        let _inside = memory.runtime.enter();
        Endings::listen()?
    };
    memory.runtime.spawn(hear(endings, sender, timeout, pace, Arc::clone(&began)));
    watch_over(receiver.clone())?;
    Ok((receiver, began))
}

/// Whether anything may have been sent.
type Began = Arc<AtomicBool>;

async fn hear(mut endings: Endings, sender: watch::Sender<Signal>, timeout: Option<u64>, pace: Pace, began: Began) {
    let is_late = match timeout {
        Some(seconds) => matches!(select(pin!(pace.after(seconds)), pin!(endings.next())).await, Either::Left(_)),
        None => {
            endings.next().await;
            false
        }
    };
    // What was asked for is done before it is talked about: a screen, or a thread for it, may not be had.
    let _ = sender.send(Signal::Drain);
    say(match (is_late, began.load(Ordering::SeqCst)) {
        (true, true) => "the time of `--timeout` is over: nothing new is begun; what is under way goes on (Ctrl-C leaves at once)",
        (true, false) => "the time of `--timeout` is over: nothing was sent, and nothing will be",
        (false, true) => "nothing new is begun; what is under way goes on (Ctrl-C again leaves at once)",
        (false, false) => "nothing was sent, and nothing will be (Ctrl-C again leaves at once)",
    });
    endings.next().await;
    let _ = sender.send(Signal::Quit);
    sender.closed().await;
}

/// Ends the program some time after it was told to leave, or after a second signal that nobody heard, by a thread of its own: whatever the rest
/// of it waits for, an answer or a screen, it can be ended. Being killed loses nothing: the journal knows what was under way.
fn watch_over(mut signal: watch::Receiver<Signal>) -> Result<(), Stop> {
    let runtime = spine::runtime()?;
    let mut endings = {
        let _inside = runtime.enter();
        Endings::listen()?
    };
    let watch = move || {
        runtime.block_on(async {
            let twice = pin!(async {
                endings.next().await;
                endings.next().await;
            });
            // After `--timeout` the first signal is the second word.
            let left = pin!(async { signal.wait_for(|signal| *signal == Signal::Quit).await.is_ok() });
            if let Either::Right((false, twice)) = select(twice, left).await {
                twice.await;
            }
            tokio::time::sleep(LEAVING).await;
        });
        std::process::exit(End::Held.number().into());
    };
    thread::Builder::new().spawn(watch).map(drop).map_err(|error| spine::no_thread(&error))
}

/// Says something, unless the terminal takes no lines: nothing waits long for a screen.
fn say(line: &'static str) {
    // Whoever draws on the screen shows it there, above what turns.
    let is_told = mention(line);
    progress::settle(SAYING);
    let _ = is_told.map(|is_told| is_told.recv_timeout(SAYING));
}

/// Says something, and waits for nobody who shows it. Where it is shown by a thread of its own, that tells when it has.
fn mention(line: &'static str) -> Option<mpsc::Receiver<()>> {
    if progress::spoken(line) {
        return None;
    }
    let (told, is_told) = mpsc::channel();
    let spoken = thread::Builder::new().spawn(move || {
        let _ = writeln!(anstream::stderr(), "{line}");
        let _ = told.send(());
    });
    // Where there is no thread it is not said: whatever waits for a screen here hears no second signal.
    spoken.is_ok().then_some(is_told)
}

/// How long a line may take to be taken by a terminal.
const SAYING: Duration = Duration::from_millis(300);

/// How long whoever leaves may take to say what is known.
const LEAVING: Duration = Duration::from_secs(2);

fn recover(engine: &Driver, memory: &Memory, environment: &EnvironmentName, signal: &watch::Receiver<Signal>) -> Result<Report, Stop> {
    let unsettled = memory.wait(engine.unsettled(environment)).map_err(|error| memory::failed(&error))?;
    if unsettled.is_empty() {
        return Ok(Report::default());
    }
    record::recovery(memory, environment, unsettled.iter().map(|history| history.id().clone()).collect())?;
    let count = render::counted(u64::try_from(unsettled.len()).unwrap_or(u64::MAX), "operation");
    let _ = writeln!(anstream::stderr(), "finding out what became of {count} of an earlier run");
    let board = Board::new(Subject::Past, unsettled.len());
    Ok(memory.wait(engine.recover(unsettled, signal.clone(), |notice| board.notice(&notice))))
}

/// Whether the plan is carried out. Nothing: it was refused, and shown why.
fn decided(
    arguments: &Apply,
    outcome: Outcome,
    mode: Mode,
    saved: Option<&saved::Saved>,
    person: &Person<'_>,
    recorded: &Recorded<'_>,
) -> Result<Option<ApprovedPlan>, Stop> {
    let narrowed = if arguments.choice.only.is_empty() { Narrowed::No } else { Narrowed::Yes };
    let stale = saved.map(|saved| saved.stale(outcome.judged.plan(), narrowed)).transpose()?;
    if let Some(stale) = stale.flatten() {
        recorded.refused(std::slice::from_ref(&stale))?;
        return Err(Stop::refused(&stale));
    }
    approved(arguments, outcome, mode, person, recorded)
}

/// Shows the plan, asks, and admits it.
fn approved(
    arguments: &Apply,
    outcome: Outcome,
    mode: Mode,
    person: &Person<'_>,
    recorded: &Recorded<'_>,
) -> Result<Option<ApprovedPlan>, Stop> {
    let refused = if arguments.partial { Refused::IsLeftOut } else { Refused::StopsAll };
    let (now_ms, age_secs_max, provenance) = (state::now_ms(), Admission::AGE_SECS_MAX, outcome.provenance);
    let mut admission = Admission { mode, provenance, confirmation: Confirmation::None, refused, now_ms, age_secs_max };
    // What stands against it whatever is said: then nobody is asked.
    let (is_objected, is_asked) = match &outcome.judged {
        Judged::Safe(safe) => (!objections(safe, &admission).is_empty(), ask::is_asked(arguments, safe, mode)),
        Judged::Refused(_) => (true, false),
    };
    if !arguments.json {
        super::show_outcome(&outcome, false, false)?;
    }
    // Standard output may be for the result, or lead into a file; nobody says yes to what was not shown where the question is.
    if is_asked && !is_objected && (arguments.json || !io::stdout().is_terminal()) {
        let text = render::report_text(&outcome.judged, &outcome.origin, false);
        let shown = text.and_then(|text| write!(anstream::stderr(), "{}", screen::err(&text)));
        shown.map_err(|error| Stop::failed(format!("the plan cannot be shown, so that nobody is asked: {error}")))?;
    }
    let safe = match outcome.judged {
        Judged::Safe(safe) => safe,
        Judged::Refused(plan) => {
            let judged = Judged::Refused(plan);
            let causes: Vec<Refusal> = judged.judgement().refusals().iter().chain(judged.plan().refusals()).cloned().collect();
            return recorded.admitted(&admission, &causes).map(|()| None);
        }
    };
    if let Err(stop) = ask::nothing_is_refused(&safe, refused) {
        let Admitted::Refused(causes) = admitted(safe, &admission)? else { return Err(stop) };
        return recorded.admitted(&admission, &causes).and(Err(stop));
    }
    let way = Way::of(arguments, &safe, mode)?;
    if !arguments.json && !is_objected {
        told(&way.digest_line())?;
    }
    let Said { confirmation, declined } = ask::confirmation(arguments, &safe, mode, person)?;
    admission.confirmation = confirmation;
    // Somebody may have thought about the answer for an hour.
    admission.now_ms = state::now_ms();
    match admitted(safe, &admission)? {
        Admitted::Approved(approved) => recorded.admitted(&admission, &[]).map(|()| Some(approved)),
        Admitted::Refused(refusals) => {
            recorded.admitted(&admission, &refusals)?;
            // Whoever said no knows why.
            if let Some(stop) = declined {
                return Err(stop);
            }
            let text: String = refusals.iter().map(render::refusal).collect();
            let _ = write!(anstream::stderr(), "\n{}", screen::err(&format!("{text}{}", way.on(&refusals))));
            Ok(None)
        }
    }
}

fn admitted(safe: SafePlan, admission: &Admission) -> Result<Admitted, Stop> {
    admit(safe, admission).map_err(|error| Stop::failed(format!("the plan cannot be written: {error}")))
}

fn carry_out(engine: &Driver, memory: &Memory, plan: ApprovedPlan, run: &RunId, signal: &watch::Receiver<Signal>) -> Result<Report, Stop> {
    let steps = plan.plan().verdicts().iter().map(|verdict| if let Verdict::Steps(steps) = verdict { steps.len() } else { 0 });
    let board = Board::new(Subject::Steps, steps.sum());
    let ids = |number: usize| OperationId::new(&format!("{}-{number}", run.as_str()));
    let driven = engine.apply(plan, run.clone(), ids, Vec::new(), signal.clone(), |notice| board.notice(&notice));
    memory.wait(driven).map_err(|error| match error {
        EngineError::Store(error) => memory::failed(&error),
        EngineError::NoIds | EngineError::OtherRun(_) => Stop::failed(error.to_string()),
    })
}

/// How many guests are refused and left out.
fn left_out(approved: &ApprovedPlan) -> u64 {
    let refused = approved.plan().verdicts().iter().filter(|verdict| matches!(verdict, Verdict::Refused(_)));
    u64::try_from(refused.count()).unwrap_or(u64::MAX)
}

/// An id that no other run has: the time, and what the system calls random.
fn run_id() -> Result<RunId, Stop> {
    let random = state::random().map_err(Stop::failed)?;
    RunId::new(&format!("{:x}-{:08x}", state::now_ms() / 1000, random & u64::from(u32::MAX)))
        .ok_or_else(|| Stop::failed("the clock is beyond all bounds"))
}

fn end(fate: Fate) -> End {
    match fate {
        Fate::Done => End::Done,
        Fate::Failed | Fate::NotRun => End::Failed,
        Fate::Refused => End::Refused,
        Fate::Held => End::Held,
    }
}

pub(super) fn told(text: &str) -> Result<(), Stop> {
    shown(write!(anstream::stdout(), "{}", screen::out(text)), End::Done).map(drop)
}

/// What two bodies of plans do differently, guest by guest.
pub(super) fn differences(one: &serde_json::Value, other: &serde_json::Value) -> Vec<String> {
    RecordedPlan::read(one).differences(&RecordedPlan::read(other), Narrowed::No)
}
