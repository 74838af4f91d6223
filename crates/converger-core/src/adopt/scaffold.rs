//! Writes a desired state for guests that are not declared yet, exactly as observed, so that adopting it changes nothing.
//!
//! Each value is formatted and parsed again before it is included. A value that desired.yaml cannot express (an old boot order, a value out
//! of bounds) is omitted with the parser's message. Omitted too is what this program must not manage: a run-state that high availability
//! owns, values with a pending change, and tags that hold the guest. Finally the whole text is planned on the same observation; if the plan
//! is not empty, the text is not returned.
//!
//! Must not guess: a guest that was not fully read is refused, and with it the whole text.

use std::fmt::Write;
use std::sync::Arc;

use super::{drop_blank_marks, has_marks};
use crate::desired::{self, DesiredGuest, RestartPolicy, Scope, StopMethod};
use crate::document::{Notation, literal_block_lines, to_yaml_comment, to_yaml_scalar};
use crate::guest::{GuestIdentity, GuestKind, GuestName, Vmid};
use crate::normalize::{BootOrder, Field, FieldRole, FieldRule, FieldValue, StartupOrder, TABLE, is_met, read_with};
use crate::observe::{ObservedGuest, PendingChange, Reading, Scoped, Seen, TagCase};
use crate::plan::{self, Verdict};
use crate::policy::{HOLD_TAG, Rules};
use crate::refusal::Refusal;

/// The result of adopting guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scaffold {
    /// A desired state.
    Declared {
        /// desired.yaml.
        text: String,
        /// The guests, sorted by id.
        guests: Vec<AdoptedGuest>,
    },
    /// At least one guest cannot be adopted, so nothing is written.
    Refused {
        /// Refusals that concern the whole observation.
        refusals: Vec<Refusal>,
        /// The guests that cannot be adopted, sorted by id.
        guests: Vec<UnadoptableGuest>,
    },
}

/// A guest that is now declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptedGuest {
    /// Its id.
    pub vmid: Vmid,
    /// Its kind.
    pub kind: GuestKind,
    /// Its observed name.
    pub name: Box<str>,
    /// What was observed and is not declared.
    pub left_out: Vec<OmittedField>,
    /// The birth marks that its kind can have and that it does not have.
    pub absent: Vec<&'static str>,
}

/// Something that was observed and is not declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OmittedField {
    /// The key.
    pub key: Box<str>,
    /// Why.
    pub reason: String,
}

/// A guest that cannot be adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnadoptableGuest {
    /// Its id.
    pub vmid: Vmid,
    /// All reasons.
    pub refusals: Vec<Refusal>,
}

/// Declares the guests with these ids as observed.
///
/// # Guarantees
/// The text parses and declares exactly these guests, and planning it on the same observation gives no step and no refusal.
///
/// # Refuses
/// All guests, if one of them is missing, unknown, on an offline node or not fully read, or has neither birth marks nor a name that can be
/// declared; or if the observation has no quorum or is incomplete.
#[must_use]
pub fn scaffold(observation: &Scoped, ids: &Scope) -> Scaffold {
    let run = plan::observation_refusals(observation);
    let mut text = file_header(observation, ids);
    let (mut adopted, mut unadopted) = (Vec::new(), Vec::new());
    for vmid in ids.ids().iter().copied() {
        match adopt_guest(vmid, observation) {
            Ok((guest, lines)) => {
                text.push_str(if adopted.is_empty() { "" } else { "\n" });
                text.push_str(&lines);
                adopted.push(guest);
            }
            Err(refusals) => unadopted.push(UnadoptableGuest { vmid, refusals }),
        }
    }
    if run.is_empty() && unadopted.is_empty() {
        unadopted = find_unconverged(&text, observation, ids);
    }
    if run.is_empty() && unadopted.is_empty() {
        return Scaffold::Declared { text, guests: adopted };
    }
    Scaffold::Refused { refusals: run, guests: unadopted }
}

fn file_header(observation: &Scoped, ids: &Scope) -> String {
    let taken_at = observation.taken_at.as_deref().map(|time| format!(" at {time}")).unwrap_or_default();
    let lines = [
        format!("Guests of {} as observed{taken_at}, written by `converger init`. Adopting them changes nothing.", observation.environment),
        "Only what is listed is managed: remove a line to stop managing its value.".to_owned(),
        "`converger explain fields` lists the config keys. A guest can also have `restart: when-needed`, `after`, `stop` and `stop_timeout`.".to_owned(),
    ];
    let comments: String = lines.iter().map(|line| to_yaml_comment(line) + "\n").collect();
    let guests = if ids.ids().is_empty() { " []" } else { "" };
    format!(
        "{comments}version: {}\nenvironment: {}\n\nguests:{guests}\n",
        desired::VERSION,
        to_yaml_scalar(observation.environment.as_str())
    )
}

/// The guest and its lines in the text.
fn adopt_guest(vmid: Vmid, observation: &Scoped) -> Result<(AdoptedGuest, String), Vec<Refusal>> {
    let (row, state) = match observation.presence(vmid, observation.find(vmid)) {
        Seen::Missing => return Err(vec![Refusal::guest_missing()]),
        Seen::Unknown(cause) => return Err(vec![Refusal::guest_unknown(cause)]),
        Seen::Present(row, state) => (row, state),
    };
    let FullReading { name, identity, pending, values } = require_full_reading(row, observation)?;
    let mut builder = GuestTextBuilder::new(row, observation.tag_case);
    match GuestName::new(name) {
        Some(_) => builder.push_line(&format!("name: {}", to_yaml_scalar(name))),
        None if has_marks(&identity) => builder.omit_field("name", "it cannot be declared; the birth marks identify the guest".into()),
        None => return Err(vec![Refusal::guest_unknown("neither-a-name-nor-marks")]),
    }
    match has_marks(&identity) {
        true => builder.push_line(&format!("identity: {}", desired::format_marks(&identity))),
        false => builder.push_comment("it has no birth marks: only its name identifies it"),
    }
    match state_omission_reason(row) {
        None => builder.push_line(&format!("state: {}", state.word())),
        Some(why) => builder.omit_field("state", why),
    }
    builder.push_config(row, &values, pending);
    let absent = identity.marks().into_iter().filter(|(_, mark)| mark.is_none()).map(|(name, _)| name).collect();
    Ok((AdoptedGuest { vmid, kind: row.kind, name: name.into(), left_out: builder.left_out, absent }, builder.text))
}

/// The values that must have been read to declare a guest.
struct FullReading<'o> {
    name: &'o str,
    identity: GuestIdentity,
    pending: &'o [PendingChange],
    /// The values of the fields that can be declared for its kind, including tags.
    values: Vec<(&'static FieldRule, FieldValue)>,
}

fn require_full_reading<'o>(row: &'o ObservedGuest, observation: &Scoped) -> Result<FullReading<'o>, Vec<Refusal>> {
    if let Some(refusals) = plan::check_guest(&undeclared_guest(row), row, observation) {
        return Err(refusals);
    }
    let (Some(name), Reading::Read(identity), Reading::Read(config), Reading::Read(tags), Reading::Read(pending), []) =
        (&row.name, &row.identity, &row.config, &row.tags, &row.pending, &plan::unread_guards(row)[..])
    else {
        return Err(unread_refusals(row));
    };
    let of = |rule: &'static FieldRule| match rule.field {
        Field::Tags => (!tags.is_empty()).then(|| (rule, FieldValue::Tags(tags.clone()))),
        field => config.get(field).map(|value| (rule, value.clone())),
    };
    Ok(FullReading { name, identity: drop_blank_marks(identity), pending, values: managed_rules(row.kind).filter_map(of).collect() })
}

fn managed_rules(kind: GuestKind) -> impl Iterator<Item = &'static FieldRule> {
    TABLE.iter().filter(move |rule| rule.kind == kind && rule.role == FieldRole::Managed)
}

/// Refusals for everything that had to be read and was not.
fn unread_refusals(row: &ObservedGuest) -> Vec<Refusal> {
    let mut guards = plan::unread_guards(row);
    guards.extend((!row.identity.is_read()).then(|| "identity".to_owned()));
    let guards = (!guards.is_empty()).then(|| Refusal::guard_unread(guards));
    let fields = || managed_rules(row.kind).map(|rule| rule.field.word().to_owned()).collect();
    let config = (!row.config.is_read()).then(|| Refusal::config_unreadable(fields()));
    guards.into_iter().chain(config).collect()
}

/// The guest with no declarations.
fn undeclared_guest(row: &ObservedGuest) -> DesiredGuest {
    DesiredGuest {
        vmid: row.vmid,
        kind: row.kind,
        name: None,
        state: None,
        config: Box::new([]),
        restart: RestartPolicy::Never,
        after: Box::new([]),
        stop: StopMethod::Shutdown,
        stop_timeout_secs: DesiredGuest::STOP_TIMEOUT_SECS,
        identity: None,
        from: None,
    }
}

/// Why the run-state is not declared, if it is not.
fn state_omission_reason(row: &ObservedGuest) -> Option<String> {
    match (&row.template, &row.lock, &row.ha) {
        (Reading::Read(true), ..) => Some("a template does not run".into()),
        (_, Reading::Read(Some(lock)), _) => Some(format!("the guest was locked ({}) when it was read", lock.escape_debug())),
        (.., Reading::Read(Some(ha))) if ha.owns_run_state() => {
            let state = ha.state.as_deref().unwrap_or("not known yet").escape_debug();
            Some(format!("high availability owns it ({state})"))
        }
        _ => None,
    }
}

/// Builds the lines of one guest.
struct GuestTextBuilder {
    text: String,
    tag_case: Option<TagCase>,
    left_out: Vec<OmittedField>,
}

impl GuestTextBuilder {
    fn new(row: &ObservedGuest, tag_case: Option<TagCase>) -> Self {
        Self { text: format!("  - vmid: {}\n    kind: {}\n", row.vmid, row.kind), tag_case, left_out: Vec::new() }
    }

    fn push_line(&mut self, line: &str) {
        let _ = writeln!(self.text, "    {line}");
    }

    fn push_comment(&mut self, text: &str) {
        self.push_line(&to_yaml_comment(text));
    }

    fn omit_field(&mut self, key: &str, why: String) {
        self.push_comment(&format!("{} is left out: {why}", key.escape_debug()));
        self.left_out.push(OmittedField { key: key.into(), reason: why });
    }

    /// Adds the config. Each value is parsed together with the previous ones, because some values exclude each other.
    fn push_config(&mut self, row: &ObservedGuest, values: &[(&'static FieldRule, FieldValue)], pending: &[PendingChange]) {
        for change in pending {
            self.omit_field(change.key(), describe_pending(change, row));
        }
        let is_waiting = |field: Field| pending.iter().any(|change| change.key() == field.word());
        for field in managed_rules(row.kind).map(|rule| rule.field).filter(|field| !is_waiting(*field)) {
            let Some((key, text)) = strange_value(row, field) else { continue };
            if key == field || values.iter().any(|(rule, _)| rule.field == field) {
                self.omit_field(field.word(), format!("`{}` has the value {text:?}, which is not understood", key.word()));
            }
        }
        let mut accepted = String::new();
        let is_declarable = |field: Field| !is_waiting(field) && strange_value(row, field).is_none();
        for (rule, value) in values.iter().filter(|(rule, _)| is_declarable(rule.field)) {
            let lines = format!("{accepted}      {}: {}\n", rule.field.word(), format_value(value));
            match self.check_config(rule, value, &lines) {
                Ok(()) => accepted = lines,
                Err(why) => self.omit_field(rule.field.word(), why),
            }
        }
        if !accepted.is_empty() {
            let _ = write!(self.text, "    config:\n{accepted}");
        }
    }

    /// Checks that these config lines can be declared, and that the last line means the observed value.
    fn check_config(&self, rule: &FieldRule, value: &FieldValue, lines: &str) -> Result<(), String> {
        if matches!(value, FieldValue::Tags(tags) if tags.contains_ignore_case(HOLD_TAG)) {
            return Err(format!("they include `{HOLD_TAG}`, which would be set again after somebody removes it"));
        }
        if self.tag_case.is_none() && matches!(value, FieldValue::Tags(tags) if tags.has_upper_case()) {
            return Err("whether the datacenter stores tags in lower case was not read".into());
        }
        // Use a placeholder name: the real name may be what cannot be declared.
        let text =
            format!("version: 1\nenvironment: x\nguests:\n  - vmid: 100\n    kind: {}\n    name: x\n    config:\n{lines}", rule.kind);
        let desired = desired::parse(text.as_bytes(), Notation::Yaml).map_err(|faults| {
            // The last fault is the most specific: a list whose only entry is faulty is also too short.
            let reason = faults.list().last().map_or("", |fault| fault.message.as_str());
            format!("it cannot be declared ({reason})")
        })?;
        let settings = desired.guests().iter().flat_map(|guest| &guest.config);
        let is_same = settings.filter(|setting| setting.field == rule.field).any(|own| is_met(rule, own.wanted.as_ref(), Some(value)));
        if is_same { Ok(()) } else { Err("it would not read back unchanged".into()) }
    }
}

/// The field whose value is not understood and therefore prevents declaring `field`: the field itself, or one that it depends on.
fn strange_value(row: &ObservedGuest, field: Field) -> Option<(Field, &str)> {
    let config = row.config.as_ref().into_option()?;
    std::iter::once(field).chain(read_with(field).iter().copied()).find_map(|own| Some((own, config.not_understood(own)?)))
}

/// Describes a pending change and the effective value.
fn describe_pending(change: &PendingChange, row: &ObservedGuest) -> String {
    let PendingChange::Known(field, after) = change else { return "a change of it is pending until the next start".into() };
    let tags =
        row.tags.as_ref().into_option().filter(|tags| *field == Field::Tags && !tags.is_empty()).map(|tags| FieldValue::Tags(tags.clone()));
    let now = tags.or_else(|| row.config.as_ref().into_option().and_then(|config| config.get(*field)).cloned());
    let describe_value = |value: Option<&FieldValue>, none: &str| match value.map(ToString::to_string) {
        None => none.to_owned(),
        Some(text) if text.chars().count() <= COMMENT_VALUE_CHARS_MAX => text,
        Some(_) => "a long value".to_owned(),
    };
    let (now, after) = (describe_value(now.as_ref(), "the default"), describe_value(after.as_ref(), "its removal"));
    format!("{now} is in effect and {after} is pending until the next start; declare the one that you want")
}

/// The longest value that is repeated in a comment.
const COMMENT_VALUE_CHARS_MAX: usize = 40;

/// Formats a value for desired.yaml, as it follows its key in the config of a guest.
fn format_value(value: &FieldValue) -> String {
    let list = |texts: &mut dyn Iterator<Item = &str>| format!("[{}]", texts.map(to_yaml_scalar).collect::<Vec<_>>().join(", "));
    match value {
        FieldValue::Text(text) => match literal_block_lines(text) {
            Some(lines) => lines.fold("|-".to_owned(), |text, line| match line {
                "" => text + "\n",
                line => text + "\n        " + line,
            }),
            None => to_yaml_scalar(text),
        },
        FieldValue::Tags(tags) => list(&mut tags.iter()),
        FieldValue::Boot(BootOrder::Devices(devices)) => list(&mut devices.iter().map(AsRef::as_ref)),
        FieldValue::Boot(BootOrder::Legacy(letters)) => to_yaml_scalar(letters),
        FieldValue::Startup(startup) => format_startup(startup),
        value => value.to_string(),
    }
}

fn format_startup(startup: &StartupOrder) -> String {
    let parts = [("order", startup.order), ("up", startup.up), ("down", startup.down)];
    let parts: Vec<String> = parts.iter().filter_map(|(key, part)| part.map(|number| format!("{key}: {number}"))).collect();
    format!("{{ {} }}", parts.join(", "))
}

/// The guests that would not be converged under this text on the same observation.
fn find_unconverged(text: &str, observation: &Scoped, ids: &Scope) -> Vec<UnadoptableGuest> {
    let odd = |vmid: Vmid, why: &str| UnadoptableGuest { vmid, refusals: vec![Refusal::unsupported_change("init", why)] };
    let desired = match desired::parse(text.as_bytes(), Notation::Yaml) {
        Ok(desired) => Arc::new(desired),
        Err(_) => return ids.ids().iter().map(|vmid| odd(*vmid, "what was seen cannot be declared")).collect(),
    };
    let plan = plan::plan(Arc::clone(&desired), Arc::new(observation.clone()), Arc::new(Rules::default()));
    let verdicts = desired.guests().iter().zip(plan.verdicts());
    verdicts
        .filter_map(|(guest, verdict)| match verdict {
            Verdict::Converged { pending_restart: false } => None,
            Verdict::Refused(refusals) => Some(UnadoptableGuest { vmid: guest.vmid, refusals: refusals.clone() }),
            Verdict::Converged { .. } | Verdict::Steps(_) => Some(odd(guest.vmid, "adopting it would change it")),
        })
        .collect()
}
