//! Parses text into [`Desired`]: keys, types, and constraints between the guests of one file.

use super::config::{self, ConfigDraft as Config};
use super::order::{self, DependencyEdge};
use super::origin::{self, NewGuest, OriginDraft};
use super::{Desired, DesiredGuest, RestartPolicy, StopMethod, VERSION, ValueForm};
use crate::birth_marks::{self, MarksDraft};
use crate::document::{
    DecodeAborted as End, Diagnostic, Diagnostics, DocumentDecoder, DocumentReader, EventSource, Notation, Span, decode, is_decimal, quote,
};
use crate::guest::{EnvironmentName, GuestIdentity, GuestKind, GuestName, RunState, Vmid};

pub(super) fn parse(bytes: &[u8], notation: Notation, form: ValueForm) -> Result<Desired, Diagnostics> {
    let desired_draft = decode(bytes, notation, DesiredDecoder(form))?;
    let Some(environment) = desired_draft.environment else { return Err(Diagnostics::default()) };
    Ok(Desired { environment, guests: desired_draft.guests.into(), order: desired_draft.order, unselected: Box::default() })
}

pub(super) const KEYS: [&str; 3] = ["version", "environment", "guests"];
pub(super) const GUEST_KEYS: [&str; 11] =
    ["vmid", "kind", "name", "state", "config", "restart", "after", "stop", "stop_timeout", "identity", "from"];
const NORMAL_KEYS: [&str; 11] =
    ["vmid", "kind", "name", "state", "config", "restart", "after", "stop", "stop_timeout_secs", "identity", "from"];

/// What was read so far.
#[derive(Default)]
struct DesiredDraft {
    environment: Option<EnvironmentName>,
    guests: Vec<DesiredGuest>,
    /// The position of each guest's id.
    spans: Vec<(Vmid, Span)>,
    edges: Vec<DependencyEdge>,
    order: Option<Box<[u32]>>,
}

struct DesiredDecoder(ValueForm);

impl DocumentDecoder<DesiredDraft> for DesiredDecoder {
    fn decode<'t, S: EventSource<'t>>(self, reader: &mut DocumentReader<'t, S>) -> Result<DesiredDraft, End> {
        let mut desired_draft = DesiredDraft::default();
        if reader.peek_end()? {
            let fault = Diagnostic::new(Span::at(0), "the file declares nothing");
            reader.report(fault.with_help("begin with `version: 1`, `environment: <name>` and `guests:`"))?;
            return Ok(desired_draft);
        }
        let mut scratch = Config::with_form(self.0);
        let seen = reader.read_fields("the file", &KEYS, |reader, key, _| match key {
            0 => check_version(reader),
            1 => read_environment(reader, &mut desired_draft),
            _ => reader.read_items("guests", |reader| read_guest(reader, &mut desired_draft, &mut scratch)).map(|_| ()),
        })?;
        if let Some(seen) = seen {
            reader.require_keys(&seen, "the file", &KEYS, &[0, 1, 2])?;
        }
        check_guests(reader, &mut desired_draft)?;
        Ok(desired_draft)
    }
}

fn check_version<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<(), End> {
    match reader.read_integer("`version`", 0, u64::MAX)? {
        Some((number, span)) if number != VERSION => {
            let fault = Diagnostic::new(span, format!("version {number} is not known to this program"));
            reader.report(fault.with_help(format!("this program reads version {VERSION}")))
        }
        _ => Ok(()),
    }
}

fn read_environment<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, desired_draft: &mut DesiredDraft) -> Result<(), End> {
    let Some((text, span)) = reader.read_text("`environment`")? else { return Ok(()) };
    desired_draft.environment = EnvironmentName::new(&text);
    if desired_draft.environment.is_none() {
        let fault = Diagnostic::new(span, format!("{} is not the name of an environment", quote(&text)));
        reader.report(fault.with_help("use lower-case letters, digits, `-` and `_`, at most 64"))?;
    }
    Ok(())
}

/// The parts of a guest that were read without a fault.
#[derive(Default)]
struct GuestDraft {
    vmid: Option<(Vmid, Span)>,
    kind: Option<GuestKind>,
    name: Option<GuestName>,
    state: Option<RunState>,
    restart: Option<RestartPolicy>,
    after: Vec<(Vmid, Span)>,
    stop: Option<StopMethod>,
    stop_timeout_secs: Option<u32>,
    identity: Option<(MarksDraft, Span)>,
    from: Option<OriginDraft>,
}

fn read_guest<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    desired_draft: &mut DesiredDraft,
    config: &mut Config,
) -> Result<(), End> {
    let mut draft = GuestDraft::default();
    config.clear();
    let form = config.form();
    let keys = if form == ValueForm::Normal { &NORMAL_KEYS } else { &GUEST_KEYS };
    let seen = reader.read_fields("a guest", keys, |reader, key, span| {
        match key {
            0 => draft.vmid = read_vmid(reader, "`vmid`")?,
            1 => draft.kind = read_keyword(reader, "`kind`", &GuestKind::WORDS, &GuestKind::ALL)?,
            2 => draft.name = read_name(reader)?,
            3 => draft.state = read_keyword(reader, "`state`", &["running", "stopped"], &[RunState::Running, RunState::Stopped])?,
            4 => config::read_config(reader, config)?,
            5 => {
                draft.restart =
                    read_keyword(reader, "`restart`", &["never", "when-needed"], &[RestartPolicy::Never, RestartPolicy::WhenNeeded])?
            }
            6 => draft.after = read_after(reader)?,
            7 => draft.stop = read_keyword(reader, "`stop`", &["shutdown", "hard"], &[StopMethod::Shutdown, StopMethod::Hard])?,
            8 if form == ValueForm::Normal => draft.stop_timeout_secs = read_seconds(reader)?,
            8 => draft.stop_timeout_secs = read_duration(reader)?,
            9 => draft.identity = birth_marks::read_marks(reader)?.map(|marks| (marks, span)),
            _ => draft.from = origin::read_origin(reader, form)?,
        }
        Ok(())
    })?;
    config::report_unknown_keys(reader, config, draft.kind)?;
    let Some(seen) = seen else { return Ok(()) };
    reader.require_keys(&seen, "a guest", keys, &[0, 1])?;
    if seen.key_span(2).is_none() && seen.key_span(9).is_none() {
        let fault = Diagnostic::new(seen.span, "a guest lacks the key `name`");
        reader.report(fault.with_help("the name may be left out only where `identity` pins the guest"))?;
    }
    finish_guest(reader, desired_draft, draft, config)
}

/// Checks what can only be checked once the whole guest was read: its kind may come after its config.
fn finish_guest<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    desired_draft: &mut DesiredDraft,
    draft: GuestDraft,
    config: &mut Config,
) -> Result<(), End> {
    let Some((vmid, vmid_span)) = draft.vmid else { return Ok(()) };
    desired_draft.spans.push((vmid, vmid_span));
    let Some(kind) = draft.kind else { return Ok(()) };
    let settings = config::finish_config(reader, config, kind)?;
    let identity = finish_identity(reader, draft.identity, kind)?;
    let from = match draft.from {
        Some(from) => {
            let new = NewGuest { vmid, kind, name: draft.name.as_ref(), settings: &settings };
            origin::finish_origin(reader, from, &new)?
        }
        None => None,
    };
    desired_draft.edges.extend(draft.after.iter().map(|(on, span)| DependencyEdge { guest: vmid, on: *on, span: *span }));
    let mut after: Vec<Vmid> = draft.after.into_iter().map(|(on, _)| on).collect();
    after.sort_unstable();
    desired_draft.guests.push(DesiredGuest {
        vmid,
        kind,
        name: draft.name,
        state: draft.state,
        config: settings,
        restart: draft.restart.unwrap_or(RestartPolicy::Never),
        after: after.into(),
        stop: draft.stop.unwrap_or(StopMethod::Shutdown),
        stop_timeout_secs: draft.stop_timeout_secs.unwrap_or(DesiredGuest::STOP_TIMEOUT_SECS),
        identity: identity.map(Box::new),
        from: from.map(Box::new),
    });
    Ok(())
}

/// The birth marks of a guest of this kind.
pub(super) fn finish_identity<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    draft: Option<(MarksDraft, Span)>,
    kind: GuestKind,
) -> Result<Option<GuestIdentity>, End> {
    let Some((marks, span)) = draft else { return Ok(None) };
    let names_any = marks.has_any_key();
    let identity = marks.into_identity(kind, reader)?;
    if !names_any {
        let fault = Diagnostic::new(span, "`identity` pins nothing");
        reader.report(fault.with_help("name at least one birth mark, or remove the key"))?;
    }
    Ok(Some(identity))
}

/// Checks constraints between guests: unique ids, `after` names declared guests, no cycle.
fn check_guests<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, desired_draft: &mut DesiredDraft) -> Result<(), End> {
    desired_draft.guests.sort_by_key(|guest| guest.vmid);
    desired_draft.spans.sort_by_key(|(vmid, span)| (*vmid, *span));
    for pair in desired_draft.spans.windows(2) {
        if let [(first, first_span), (second, second_span)] = pair
            && first == second
        {
            let fault =
                Diagnostic::new(*second_span, format!("guest {second} is declared twice")).with_related(*first_span, "first declared here");
            reader.report(fault.with_help("ids are unique in an environment, over both kinds"))?;
        }
    }
    match order::dependency_order(&desired_draft.guests, &desired_draft.edges, |vmid| {
        desired_draft.spans.binary_search_by_key(&vmid, |(own, _)| *own).is_ok()
    }) {
        Ok(order) => desired_draft.order = order,
        Err(faults) => faults.into_iter().try_for_each(|fault| reader.report(fault))?,
    }
    Ok(())
}

pub(super) fn read_vmid<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, what: &str) -> Result<Option<(Vmid, Span)>, End> {
    let number = reader.read_integer(what, u64::from(Vmid::MIN), u64::from(Vmid::MAX))?;
    Ok(number.and_then(|(number, span)| Vmid::new(number).map(|vmid| (vmid, span))))
}

fn read_keyword<'t, S: EventSource<'t>, T: Copy>(
    reader: &mut DocumentReader<'t, S>,
    what: &str,
    words: &[&str],
    values: &[T],
) -> Result<Option<T>, End> {
    Ok(reader.read_keyword(what, words)?.and_then(|(index, _)| values.get(index).copied()))
}

fn read_name<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<GuestName>, End> {
    let Some((text, span)) = reader.read_text("`name`")? else { return Ok(None) };
    if let Some(name) = GuestName::new(&text) {
        return Ok(Some(name));
    }
    let fault = Diagnostic::new(span, format!("{} is not a guest's name", quote(&text)));
    reader.report_none(fault.with_help("Proxmox accepts letters, digits and `-`, in parts joined by dots, at most 255 characters"))
}

fn read_after<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Vec<(Vmid, Span)>, End> {
    let mut ids: Vec<(Vmid, Span)> = Vec::new();
    reader.read_items("`after`", |reader| {
        let Some((vmid, span)) = read_vmid(reader, "an id in `after`")? else { return Ok(()) };
        ids.push((vmid, span));
        Ok(())
    })?;
    ids.sort_unstable();
    for pair in ids.windows(2) {
        if let [(first, first_span), (second, second_span)] = pair
            && first == second
        {
            let fault = Diagnostic::new(*second_span, format!("{second} is named twice in `after`"));
            reader.report(fault.with_related(*first_span, "first named here"))?;
        }
    }
    Ok(ids)
}

const SECS_MAX: u32 = 86_400;

fn read_seconds<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<u32>, End> {
    let secs = reader.read_integer("`stop_timeout_secs`", 1, u64::from(SECS_MAX))?;
    Ok(secs.and_then(|(secs, _)| u32::try_from(secs).ok()))
}

/// Parses `90s` or `5m`. A plain number is rejected because its unit would be ambiguous.
fn read_duration<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<u32>, End> {
    let Some((scalar, span)) = reader.read_scalar("`stop_timeout`", "a time such as 90s or 5m")? else { return Ok(None) };
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
            let fault = Diagnostic::new(span, format!("{} is not a time between 1s and 1440m", quote(&scalar.text)));
            reader.report_none(fault.with_help("write seconds or minutes with their unit, such as 90s or 5m"))
        }
    }
}
