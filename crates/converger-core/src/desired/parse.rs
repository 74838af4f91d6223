//! From text to [`Desired`]: keys, types, and what must hold between the guests of one file.

use super::config::{self, Draft as Config};
use super::order::{self, Edge};
use super::{Desired, DesiredGuest, Form, Restart, Stop, VERSION};
use crate::document::{Decode, Diagnostic, Diagnostics, Notation, Reader, Source, Span, Stop as End, decode, is_decimal, quoted};
use crate::guest::{EnvironmentName, GuestName, Kind, RunState, Vmid};
use crate::marks::{self, Marks};

pub(super) fn parse(bytes: &[u8], notation: Notation, form: Form) -> Result<Desired, Diagnostics> {
    let drafts = decode(bytes, notation, File(form))?;
    let Some(environment) = drafts.environment else { return Err(Diagnostics::default()) };
    Ok(Desired { environment, guests: drafts.guests.into(), order: drafts.order })
}

pub(super) const KEYS: [&str; 3] = ["version", "environment", "guests"];
pub(super) const GUEST_KEYS: [&str; 10] =
    ["vmid", "kind", "name", "state", "config", "restart", "after", "stop", "stop_timeout", "identity"];
const NORMAL_KEYS: [&str; 10] = ["vmid", "kind", "name", "state", "config", "restart", "after", "stop", "stop_timeout_secs", "identity"];

/// What has been read so far.
#[derive(Default)]
struct Drafts {
    environment: Option<EnvironmentName>,
    guests: Vec<DesiredGuest>,
    /// The place of each guest's id, beside `guests`.
    places: Vec<(Vmid, Span)>,
    edges: Vec<Edge>,
    order: Option<Box<[u32]>>,
}

struct File(Form);

impl Decode<Drafts> for File {
    fn decode<'t, S: Source<'t>>(self, reader: &mut Reader<'t, S>) -> Result<Drafts, End> {
        let mut drafts = Drafts::default();
        if reader.is_empty()? {
            let fault = Diagnostic::new(Span::at(0), "the file declares nothing");
            reader.report(fault.help("begin with `version: 1`, `environment: <name>` and `guests:`"))?;
            return Ok(drafts);
        }
        let mut scratch = Config::of(self.0);
        let seen = reader.fields("the file", &KEYS, |reader, key, _| match key {
            0 => version(reader),
            1 => environment(reader, &mut drafts),
            _ => reader.items("guests", |reader| guest(reader, &mut drafts, &mut scratch)).map(|_| ()),
        })?;
        if let Some(seen) = seen {
            reader.required(&seen, "the file", &KEYS, &[0, 1, 2])?;
        }
        together(reader, &mut drafts)?;
        Ok(drafts)
    }
}

fn version<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<(), End> {
    match reader.integer("`version`", 0, u64::MAX)? {
        Some((number, span)) if number != VERSION => {
            let fault = Diagnostic::new(span, format!("version {number} is not known to this program"));
            reader.report(fault.help(format!("this program reads version {VERSION}")))
        }
        _ => Ok(()),
    }
}

fn environment<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, drafts: &mut Drafts) -> Result<(), End> {
    let Some((text, span)) = reader.text("`environment`")? else { return Ok(()) };
    drafts.environment = EnvironmentName::new(&text);
    if drafts.environment.is_none() {
        let fault = Diagnostic::new(span, format!("{} is not the name of an environment", quoted(&text)));
        reader.report(fault.help("use lower-case letters, digits, `-` and `_`, at most 64"))?;
    }
    Ok(())
}

/// The parts of a guest that were read without a fault.
#[derive(Default)]
struct Draft {
    vmid: Option<(Vmid, Span)>,
    kind: Option<Kind>,
    name: Option<GuestName>,
    state: Option<RunState>,
    restart: Option<Restart>,
    after: Vec<(Vmid, Span)>,
    stop: Option<Stop>,
    stop_timeout_secs: Option<u32>,
    identity: Option<(Marks, Span)>,
}

fn guest<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, drafts: &mut Drafts, config: &mut Config) -> Result<(), End> {
    let mut draft = Draft::default();
    config.clear();
    let form = config.form();
    let keys = if form == Form::Normal { &NORMAL_KEYS } else { &GUEST_KEYS };
    let seen = reader.fields("a guest", keys, |reader, key, span| {
        match key {
            0 => draft.vmid = vmid(reader, "`vmid`")?,
            1 => draft.kind = word(reader, "`kind`", &Kind::WORDS, &Kind::ALL)?,
            2 => draft.name = name(reader)?,
            3 => draft.state = word(reader, "`state`", &["running", "stopped"], &[RunState::Running, RunState::Stopped])?,
            4 => config::read(reader, config)?,
            5 => draft.restart = word(reader, "`restart`", &["never", "when-needed"], &[Restart::Never, Restart::WhenNeeded])?,
            6 => draft.after = after(reader)?,
            7 => draft.stop = word(reader, "`stop`", &["shutdown", "hard"], &[Stop::Shutdown, Stop::Hard])?,
            8 if form == Form::Normal => draft.stop_timeout_secs = plain_seconds(reader)?,
            8 => draft.stop_timeout_secs = seconds(reader)?,
            _ => draft.identity = marks::read(reader)?.map(|marks| (marks, span)),
        }
        Ok(())
    })?;
    let Some(seen) = seen else { return Ok(()) };
    reader.required(&seen, "a guest", keys, &[0, 1])?;
    if seen.key(2).is_none() && seen.key(9).is_none() {
        let fault = Diagnostic::new(seen.span, "a guest lacks the key `name`");
        reader.report(fault.help("the name may be left out only where `identity` pins the guest"))?;
    }
    finish(reader, drafts, draft, config)
}

/// What can be checked once the whole guest was read: its kind may stand behind its config.
fn finish<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, drafts: &mut Drafts, draft: Draft, config: &mut Config) -> Result<(), End> {
    let Some((vmid, place)) = draft.vmid else { return Ok(()) };
    drafts.places.push((vmid, place));
    let Some(kind) = draft.kind else { return Ok(()) };
    let settings = config::finish(reader, config, kind)?;
    let identity = match draft.identity {
        Some((marks, span)) => {
            let names_any = marks.names_any();
            let identity = marks.of(kind, reader)?;
            if !names_any {
                let fault = Diagnostic::new(span, "`identity` pins nothing");
                reader.report(fault.help("name at least one birth mark, or remove the key"))?;
            }
            Some(identity)
        }
        None => None,
    };
    drafts.edges.extend(draft.after.iter().map(|(on, span)| Edge { guest: vmid, on: *on, span: *span }));
    let mut after: Vec<Vmid> = draft.after.into_iter().map(|(on, _)| on).collect();
    after.sort_unstable();
    drafts.guests.push(DesiredGuest {
        vmid,
        kind,
        name: draft.name,
        state: draft.state,
        config: settings,
        restart: draft.restart.unwrap_or(Restart::Never),
        after: after.into(),
        stop: draft.stop.unwrap_or(Stop::Shutdown),
        stop_timeout_secs: draft.stop_timeout_secs.unwrap_or(DesiredGuest::STOP_TIMEOUT_SECS),
        identity: identity.map(Box::new),
    });
    Ok(())
}

/// What must hold between guests: ids once, `after` on declared guests, no cycle.
fn together<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, drafts: &mut Drafts) -> Result<(), End> {
    drafts.guests.sort_by_key(|guest| guest.vmid);
    drafts.places.sort_by_key(|(vmid, span)| (*vmid, *span));
    for pair in drafts.places.windows(2) {
        if let [(first, first_span), (second, second_span)] = pair
            && first == second
        {
            let fault =
                Diagnostic::new(*second_span, format!("guest {second} is declared twice")).related(*first_span, "first declared here");
            reader.report(fault.help("ids are unique in an environment, over both kinds"))?;
        }
    }
    match order::of(&drafts.guests, &drafts.edges, |vmid| drafts.places.binary_search_by_key(&vmid, |(own, _)| *own).is_ok()) {
        Ok(order) => drafts.order = order,
        Err(faults) => faults.into_iter().try_for_each(|fault| reader.report(fault))?,
    }
    Ok(())
}

pub(super) fn vmid<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, what: &str) -> Result<Option<(Vmid, Span)>, End> {
    let number = reader.integer(what, u64::from(Vmid::MIN), u64::from(Vmid::MAX))?;
    Ok(number.and_then(|(number, span)| Vmid::new(number).map(|vmid| (vmid, span))))
}

fn word<'t, S: Source<'t>, T: Copy>(reader: &mut Reader<'t, S>, what: &str, words: &[&str], values: &[T]) -> Result<Option<T>, End> {
    Ok(reader.word(what, words)?.and_then(|(index, _)| values.get(index).copied()))
}

fn name<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<GuestName>, End> {
    let Some((text, span)) = reader.text("`name`")? else { return Ok(None) };
    if let Some(name) = GuestName::new(&text) {
        return Ok(Some(name));
    }
    let fault = Diagnostic::new(span, format!("{} is not a guest's name", quoted(&text)));
    reader.refuse(fault.help("Proxmox accepts letters, digits and `-`, in parts joined by dots, at most 255 characters"))
}

fn after<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Vec<(Vmid, Span)>, End> {
    let mut ids: Vec<(Vmid, Span)> = Vec::new();
    reader.items("`after`", |reader| {
        let Some((vmid, span)) = vmid(reader, "an id in `after`")? else { return Ok(()) };
        ids.push((vmid, span));
        Ok(())
    })?;
    ids.sort_unstable();
    for pair in ids.windows(2) {
        if let [(first, first_span), (second, second_span)] = pair
            && first == second
        {
            let fault = Diagnostic::new(*second_span, format!("{second} is named twice in `after`"));
            reader.report(fault.related(*first_span, "first named here"))?;
        }
    }
    Ok(ids)
}

const SECS_MAX: u32 = 86_400;

fn plain_seconds<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<u32>, End> {
    let secs = reader.integer("`stop_timeout_secs`", 1, u64::from(SECS_MAX))?;
    Ok(secs.and_then(|(secs, _)| u32::try_from(secs).ok()))
}

/// `90s` or `5m`: a bare number would leave the unit to memory.
fn seconds<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<u32>, End> {
    let Some((scalar, span)) = reader.scalar("`stop_timeout`", "a time such as 90s or 5m")? else { return Ok(None) };
    let number =
        |digits: &str, unit: u32| digits.parse::<u32>().ok().filter(|_| is_decimal(digits)).and_then(|number| number.checked_mul(unit));
    let secs = match (scalar.text.strip_suffix('s'), scalar.text.strip_suffix('m')) {
        (Some(digits), _) => number(digits, 1),
        (_, Some(digits)) => number(digits, 60),
        _ => None,
    };
    match secs {
        Some(secs) if (1..=SECS_MAX).contains(&secs) => Ok(Some(secs)),
        _ => {
            let fault = Diagnostic::new(span, format!("{} is not a time between 1s and 1440m", quoted(&scalar.text)));
            reader.refuse(fault.help("write seconds or minutes with their unit, such as 90s or 5m"))
        }
    }
}
