//! A declared state for guests that nobody has declared yet: as they were seen, so that adopting it changes nothing.
//!
//! Every value is written and parsed by itself before it is kept: what desired.yaml cannot say (an old boot order, a value out of
//! bounds) is left out with the parser's own words, and so is whatever is not this program's to hold on to: a run-state that high
//! availability owns, values with a change that waits, tags that keep this program away. At the end the whole text is planned on the
//! same reading; if that planned anything, there would be no text.
//!
//! What never enters: guesses. A guest that was not read in full is refused, and with it the whole text.

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

/// What came of adopting guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scaffold {
    /// A declared state, and what it holds.
    Declared {
        /// desired.yaml.
        text: String,
        /// The guests, in the order of their ids.
        guests: Vec<AdoptedGuest>,
    },
    /// At least one guest cannot be adopted, and nothing is written.
    Refused {
        /// Causes that concern the whole reading.
        refusals: Vec<Refusal>,
        /// The guests that cannot be adopted, in the order of their ids.
        guests: Vec<UnadoptableGuest>,
    },
}

/// A guest that is declared now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptedGuest {
    /// Its id.
    pub vmid: Vmid,
    /// Its kind.
    pub kind: GuestKind,
    /// Its name as it was seen.
    pub name: Box<str>,
    /// What was seen of it and is not declared.
    pub left_out: Vec<OmittedField>,
    /// The birth marks that guests of this kind can have and that this one never had.
    pub absent: Vec<&'static str>,
}

/// Something that was seen and is not declared.
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
    /// All causes.
    pub refusals: Vec<Refusal>,
}

/// Declares the guests with these ids as they were seen.
///
/// # Guarantees
/// The text parses, declares these guests and no others, and planning it on the same reading plans nothing and refuses nothing.
///
/// # Refuses
/// All of it where one guest is missing, unknown, on a silent node, not read in full, or has neither a name that can be declared nor
/// birth marks; and where the reading had no quorum or was not whole.
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
        format!("Guests of {} as they were seen{taken_at}, written by `converger init`. Adopting them changes nothing.", observation.environment),
        "Only what is listed is managed: take a line out, and its value is left alone.".to_owned(),
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

/// The guest and its lines.
fn adopt_guest(vmid: Vmid, observation: &Scoped) -> Result<(AdoptedGuest, String), Vec<Refusal>> {
    let (row, state) = match observation.presence(vmid, observation.find(vmid)) {
        Seen::Missing => return Err(vec![Refusal::guest_missing()]),
        Seen::Unknown(cause) => return Err(vec![Refusal::guest_unknown(cause)]),
        Seen::Present(row, state) => (row, state),
    };
    let FullReading { name, identity, pending, values } = require_full_reading(row, observation)?;
    let mut draft = GuestTextBuilder::new(row, observation.tag_case);
    match GuestName::new(name) {
        Some(_) => draft.push_line(&format!("name: {}", to_yaml_scalar(name))),
        None if has_marks(&identity) => draft.omit_field("name", "it cannot be declared; the birth marks tell the guest apart".into()),
        None => return Err(vec![Refusal::guest_unknown("neither-a-name-nor-marks")]),
    }
    match has_marks(&identity) {
        true => draft.push_line(&format!("identity: {}", desired::format_marks(&identity))),
        false => draft.push_comment("it has no birth marks: only the name tells it apart"),
    }
    match state_omission_reason(row) {
        None => draft.push_line(&format!("state: {}", state.word())),
        Some(why) => draft.omit_field("state", why),
    }
    draft.push_config(row, &values, pending);
    let absent = identity.marks().into_iter().filter(|(_, mark)| mark.is_none()).map(|(name, _)| name).collect();
    Ok((AdoptedGuest { vmid, kind: row.kind, name: name.into(), left_out: draft.left_out, absent }, draft.text))
}

/// What must have been read of a guest to declare it.
struct FullReading<'o> {
    name: &'o str,
    identity: GuestIdentity,
    pending: &'o [PendingChange],
    /// The values of fields that can be declared for the kind, tags among them.
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

/// What was not read, of all that has to be.
fn unread_refusals(row: &ObservedGuest) -> Vec<Refusal> {
    let mut guards = plan::unread_guards(row);
    guards.extend((!row.identity.is_read()).then(|| "identity".to_owned()));
    let guards = (!guards.is_empty()).then(|| Refusal::guard_unread(guards));
    let fields = || managed_rules(row.kind).map(|rule| rule.field.word().to_owned()).collect();
    let config = (!row.config.is_read()).then(|| Refusal::config_unreadable(fields()));
    guards.into_iter().chain(config).collect()
}

/// The guest with nothing declared of it.
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
    }
}

/// Why the run-state is not declared, where it is not.
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

/// The lines of one guest as they grow.
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

    /// Each value is parsed together with those before it: some do not go together.
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
        let mut kept = String::new();
        let is_declarable = |field: Field| !is_waiting(field) && strange_value(row, field).is_none();
        for (rule, value) in values.iter().filter(|(rule, _)| is_declarable(rule.field)) {
            let lines = format!("{kept}      {}: {}\n", rule.field.word(), format_value(value));
            match self.check_config(rule, value, &lines) {
                Ok(()) => kept = lines,
                Err(why) => self.omit_field(rule.field.word(), why),
            }
        }
        if !kept.is_empty() {
            let _ = write!(self.text, "    config:\n{kept}");
        }
    }

    /// Whether these lines of config can be declared, and the last of them says what was seen.
    fn check_config(&self, rule: &FieldRule, value: &FieldValue, lines: &str) -> Result<(), String> {
        if matches!(value, FieldValue::Tags(tags) if tags.contains_ignore_case(HOLD_TAG)) {
            return Err(format!("`{HOLD_TAG}` is among them, and would be put back once somebody takes it away"));
        }
        if self.tag_case.is_none() && matches!(value, FieldValue::Tags(tags) if tags.has_upper_case()) {
            return Err("the datacenter's rule for the case of letters in tags was not read".into());
        }
        // The name and the marks are not looked at here: either may be what cannot be declared.
        let text =
            format!("version: 1\nenvironment: x\nguests:\n  - vmid: 100\n    kind: {}\n    name: x\n    config:\n{lines}", rule.kind);
        let desired = desired::parse(text.as_bytes(), Notation::Yaml).map_err(|faults| {
            // The deepest place says most: a list whose only entry is faulty is also too short.
            let reason = faults.list().last().map_or("", |fault| fault.message.as_str());
            format!("it cannot be declared ({reason})")
        })?;
        let settings = desired.guests().iter().flat_map(|guest| &guest.config);
        let is_same = settings.filter(|setting| setting.field == rule.field).any(|own| is_met(rule, own.wanted.as_ref(), Some(value)));
        if is_same { Ok(()) } else { Err("it would not read back as it is".into()) }
    }
}

/// The key that keeps a field from being declared because its value is not understood: the field itself, or one that is decided
/// together with it.
fn strange_value(row: &ObservedGuest, field: Field) -> Option<(Field, &str)> {
    let config = row.config.as_ref().into_option()?;
    std::iter::once(field).chain(read_with(field).iter().copied()).find_map(|own| Some((own, config.not_understood(own)?)))
}

/// What waits for the next start, beside what is in effect.
fn describe_pending(change: &PendingChange, row: &ObservedGuest) -> String {
    let PendingChange::Known(field, after) = change else { return "a change of it waits for the next start".into() };
    let tags =
        row.tags.as_ref().into_option().filter(|tags| *field == Field::Tags && !tags.is_empty()).map(|tags| FieldValue::Tags(tags.clone()));
    let now = tags.or_else(|| row.config.as_ref().into_option().and_then(|config| config.get(*field)).cloned());
    let shown = |value: Option<&FieldValue>, none: &str| match value.map(ToString::to_string) {
        None => none.to_owned(),
        Some(text) if text.chars().count() <= COMMENT_VALUE_CHARS_MAX => text,
        Some(_) => "a long value".to_owned(),
    };
    let (now, after) = (shown(now.as_ref(), "the default"), shown(after.as_ref(), "its removal"));
    format!("{now} is in effect and {after} waits for the next start; declare the one that is meant")
}

/// Longer values are not repeated in a comment.
const COMMENT_VALUE_CHARS_MAX: usize = 40;

/// A value as desired.yaml writes it, behind its key in the config of a guest.
fn format_value(value: &FieldValue) -> String {
    let list = |words: &mut dyn Iterator<Item = &str>| format!("[{}]", words.map(to_yaml_scalar).collect::<Vec<_>>().join(", "));
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

/// The guests for which the text would lead to anything but nothing, on the same reading.
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
