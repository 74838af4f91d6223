//! Parses current.json into an [`Observation`] and rejects everything that is malformed or contradictory.

use std::borrow::Cow;

use super::{
    EffectiveValues, GuestExtras, HaState, Note, Observation, ObservedGuest, ObservedNode, ObservedStatus, PendingChange, Reading, SCHEMA,
    SnapshotTree, TagCase, UnlistedGuest, hardware, node, note, snapshots, unlisted,
};
use crate::artifact::INTEGER_MAX;
use crate::birth_marks::{self, MarksDraft};
use crate::document::{
    DecodeAborted as End, Diagnostic, Diagnostics, DocumentDecoder, DocumentReader, EventSource, Notation, SeenKeys, Span, ValueKind,
    decode, quote,
};
use crate::guest::{EnvironmentName, GuestKind, RunState, Vmid, is_observed_tag};
use crate::normalize::{BootOrder, Field, FieldValue, HotplugFeatures, StartupOrder, ValueShape, WordSet, rule_of};
use crate::timestamp;

const KEYS: [&str; 12] =
    ["schema", "environment", "source", "taken_at", "complete", "quorate", "nodes", "guests", "unmanaged", "notes", "unlisted", "tag_case"];
const REQUIRED: [usize; 6] = [0, 1, 4, 5, 6, 7];
const GUEST_KEYS: [&str; 24] = [
    "cause",
    "config",
    "cpus",
    "digest",
    "ha",
    "hardware",
    "identity",
    "kind",
    "lock",
    "macs",
    "maxmem",
    "name",
    "node",
    "not_understood",
    "pending",
    "protection",
    "replicated",
    "run_state",
    "snapshots",
    "source",
    "status",
    "tags",
    "template",
    "vmid",
];
const STATUS_WORDS: [&str; 3] = ["running", "stopped", "unknown"];
const GUEST_REQUIRED: [usize; 4] = [7, 12, 20, 23];

pub(super) fn parse(bytes: &[u8], notation: Notation) -> Result<Observation, Diagnostics> {
    let draft = decode(bytes, notation, ObservationDecoder)?;
    // `require_keys` checked all three: a decoder that reports no fault has set them.
    let (Some(environment), Some(complete), Some(quorate)) = (draft.environment, draft.complete, draft.quorate) else {
        return Err(Diagnostics::default());
    };
    Ok(Observation {
        environment,
        source: draft.source,
        taken_at: draft.taken_at,
        complete,
        quorate,
        tag_case: draft.tag_case,
        nodes: draft.nodes.into_iter().map(|(node, _)| node).collect(),
        guests: draft.guests.into(),
        unlisted: draft.unlisted.into_iter().map(|(own, _)| own).collect(),
        unmanaged: draft.unmanaged,
        notes: draft.notes.into(),
    })
}

#[derive(Default)]
struct ObservationDraft {
    environment: Option<EnvironmentName>,
    source: Option<Box<str>>,
    taken_at: Option<Box<str>>,
    complete: Option<bool>,
    quorate: Option<bool>,
    tag_case: Option<TagCase>,
    nodes: Vec<(ObservedNode, Span)>,
    guests: Vec<ObservedGuest>,
    unlisted: Vec<(UnlistedGuest, Span)>,
    unmanaged: u64,
    notes: Vec<Note>,
}

struct ObservationDecoder;

impl DocumentDecoder<ObservationDraft> for ObservationDecoder {
    fn decode<'t, S: EventSource<'t>>(self, reader: &mut DocumentReader<'t, S>) -> Result<ObservationDraft, End> {
        let mut draft = ObservationDraft::default();
        if reader.peek_end()? {
            reader.report(Diagnostic::new(Span::at(0), "the file is empty").with_help("observe again"))?;
            return Ok(draft);
        }
        let mut scratch = ParseScratch::default();
        let seen = reader.read_fields("the observation", &KEYS, |reader, key, _| match key {
            0 => check_schema(reader),
            1 => read_environment(reader, &mut draft),
            2 => read_text(reader, "`source`").map(|text| draft.source = text),
            3 => read_taken_at(reader).map(|text| draft.taken_at = text),
            4 => reader.read_flag("`complete`").map(|flag| draft.complete = flag),
            5 => reader.read_flag("`quorate`").map(|flag| draft.quorate = flag),
            6 => reader.read_items("`nodes`", |reader| node::read_node(reader, &mut draft.nodes)).map(|_| ()),
            7 => reader.read_items("`guests`", |reader| read_guest(reader, &mut draft.guests, &mut scratch)).map(|_| ()),
            9 => reader.read_items("`notes`", |reader| note::read_note(reader, &mut draft.notes)).map(|_| ()),
            11 => tag_case(reader).map(|case| draft.tag_case = case),
            10 => reader.read_items("`unlisted`", |reader| unlisted::read_unlisted(reader, &mut draft.unlisted)).map(|_| ()),
            _ => reader.read_integer("`unmanaged`", 0, INTEGER_MAX).map(|count| draft.unmanaged = count.map_or(0, |(count, _)| count)),
        })?;
        if let Some(seen) = seen {
            reader.require_keys(&seen, "the observation", &KEYS, &REQUIRED)?;
            check_rows(reader, &mut draft, scratch)?;
            unlisted::check_unlisted(reader, draft.complete, &draft.guests, &mut draft.unlisted)?;
        }
        Ok(draft)
    }
}

/// Another schema ends decoding: faults in an unknown format mean nothing.
fn check_schema<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<(), End> {
    let Some((found, span)) = reader.read_text("`schema`")? else { return Ok(()) };
    if found == SCHEMA {
        return Ok(());
    }
    let fault = Diagnostic::new(span, format!("the schema {} is not known to this program", quote(&found)));
    reader.report(fault.with_help(format!("this program reads `{SCHEMA}`; observe again")))?;
    Err(End)
}

fn read_environment<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, draft: &mut ObservationDraft) -> Result<(), End> {
    let Some((found, span)) = reader.read_text("`environment`")? else { return Ok(()) };
    draft.environment = EnvironmentName::new(&found);
    if draft.environment.is_none() {
        reader.report(Diagnostic::new(span, format!("{} is not the name of an environment", quote(&found))))?;
    }
    Ok(())
}

pub(crate) fn read_text<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, what: &str) -> Result<Option<Box<str>>, End> {
    Ok(reader.read_text(what)?.map(|(text, _)| text.into()))
}

/// Checks the format `2026-11-15T12:00:00Z`, so that an age can be computed from it later.
fn read_taken_at<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<Box<str>>, End> {
    let Some((found, span)) = reader.read_text("`taken_at`")? else { return Ok(None) };
    if timestamp::parse_timestamp(&found).is_some() {
        return Ok(Some(found.into()));
    }
    reader.report_none(
        Diagnostic::new(span, format!("{} is not a time", quote(&found))).with_help("write it as 2026-11-15T12:00:00Z, in UTC"),
    )
}

fn tag_case<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<TagCase>, End> {
    let keyword = reader.read_keyword("`tag_case`", &TagCase::WORDS)?;
    Ok(keyword.and_then(|(index, _)| TagCase::ALL.get(index).copied()))
}

pub(super) fn read_vmid<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<(Vmid, Span)>, End> {
    let number = reader.read_integer("`vmid`", u64::from(Vmid::MIN), u64::from(Vmid::MAX))?;
    Ok(number.and_then(|(number, span)| Vmid::new(number).map(|vmid| (vmid, span))))
}

/// The members of one guest as read so far; its kind may come after members that depend on it.
#[derive(Default)]
struct GuestRowDraft<'t> {
    vmid: Option<(Vmid, Span)>,
    kind: Option<GuestKind>,
    node: Option<(Cow<'t, str>, Span)>,
    status: Option<usize>,
    cause: Option<Box<str>>,
    name: Option<Box<str>>,
    run_state: Option<Box<str>>,
    cpus: Option<u32>,
    maxmem: Option<u64>,
    source: Option<Box<str>>,
    lock: Option<Option<Box<str>>>,
    ha: Option<Option<HaState>>,
    template: Option<bool>,
    protection: Option<bool>,
    tags: Option<WordSet>,
    identity: Option<MarksDraft>,
    macs: WordSet,
    has_config: bool,
    not_understood: Vec<(Field, Box<str>, Span)>,
    pending: Option<Vec<PendingDraft<'t>>>,
    digest: Option<Box<str>>,
    hardware: Option<hardware::HardwareDraft>,
    replicated: Option<bool>,
    snapshots: Option<SnapshotTree>,
}

/// Buffers that are reused for all guests.
#[derive(Default)]
struct ParseScratch<'t> {
    /// The id and span of each guest. `node_names` has its node: nodes may come after guests in the file.
    spans: Vec<(Vmid, Span)>,
    node_names: Vec<(Cow<'t, str>, Span)>,
    /// The config and tags of the current guest, so that the final values are allocated once with the right size.
    config: Vec<(Field, FieldValue, Span)>,
    tags: Vec<Box<str>>,
}

fn read_guest<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    guests: &mut Vec<ObservedGuest>,
    scratch: &mut ParseScratch<'t>,
) -> Result<(), End> {
    let mut row = GuestRowDraft::default();
    scratch.config.clear();
    let seen = reader.read_fields("a guest", &GUEST_KEYS, |reader, key, _| read_guest_member(reader, key, &mut row, scratch))?;
    let Some(seen) = seen else { return Ok(()) };
    reader.require_keys(&seen, "a guest", &GUEST_KEYS, &GUEST_REQUIRED)?;
    check_contradictions(reader, &seen, &row)?;
    finish_guest(reader, guests, row, scratch)
}

fn read_guest_member<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    key: usize,
    row: &mut GuestRowDraft<'t>,
    scratch: &mut ParseScratch<'t>,
) -> Result<(), End> {
    match key {
        0 => row.cause = read_cause(reader)?,
        1 => row.has_config = read_config(reader, scratch)?,
        2 => row.cpus = reader.read_integer("`cpus`", 0, u64::from(u32::MAX))?.and_then(|(number, _)| u32::try_from(number).ok()),
        3 => row.digest = read_text(reader, "`digest`")?,
        4 => row.ha = read_ha(reader)?,
        5 => row.hardware = hardware::read_hardware(reader)?,
        6 => row.identity = birth_marks::read_marks(reader)?,
        7 => row.kind = reader.read_keyword("`kind`", &GuestKind::WORDS)?.and_then(|(index, _)| GuestKind::ALL.get(index).copied()),
        8 => row.lock = read_or_null(reader, |reader| read_text(reader, "`lock`"))?,
        9 => row.macs = read_macs(reader)?,
        10 => row.maxmem = reader.read_integer("`maxmem`", 0, INTEGER_MAX)?.map(|(number, _)| number),
        11 => row.name = read_text(reader, "`name`")?,
        12 => row.node = reader.read_text("`node`")?,
        13 => row.not_understood = not_understood(reader)?,
        14 => row.pending = read_pending(reader)?,
        15 => row.protection = reader.read_flag("`protection`")?,
        16 => row.replicated = reader.read_flag("`replicated`")?,
        17 => row.run_state = read_text(reader, "`run_state`")?,
        18 => row.snapshots = snapshots::read_snapshots(reader)?,
        19 => row.source = read_text(reader, "`source`")?,
        20 => row.status = reader.read_keyword("`status`", &STATUS_WORDS)?.map(|(index, _)| index),
        21 => row.tags = read_tags(reader, &mut scratch.tags)?,
        22 => row.template = reader.read_flag("`template`")?,
        _ => row.vmid = read_vmid(reader)?,
    }
    Ok(())
}

/// Reads a value or `null`; `Some(None)` means read and absent.
pub(crate) fn read_or_null<'t, S: EventSource<'t>, T>(
    reader: &mut DocumentReader<'t, S>,
    read: impl FnOnce(&mut DocumentReader<'t, S>) -> Result<Option<T>, End>,
) -> Result<Option<Option<T>>, End> {
    if reader.skip_null()? {
        return Ok(Some(None));
    }
    Ok(read(reader)?.map(Some))
}

/// Whether it consists of lower-case words joined by `-`.
pub(super) fn is_cause(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Reads a cause, which is a machine-readable word.
pub(super) fn read_cause<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<Box<str>>, End> {
    let Some((found, span)) = reader.read_text("`cause`")? else { return Ok(None) };
    if is_cause(&found) {
        return Ok(Some(found.into()));
    }
    reader.report_none(
        Diagnostic::new(span, format!("{} is not a cause", quote(&found)))
            .with_help("use lower-case words joined by `-`, such as node-offline"),
    )
}

fn check_contradictions<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    seen: &SeenKeys,
    row: &GuestRowDraft<'_>,
) -> Result<(), End> {
    let known = matches!(row.status, Some(0 | 1));
    if known && row.name.is_none() && seen.key_span(11).is_none() {
        reader.report(Diagnostic::new(seen.span, "a guest that is running or stopped lacks the key `name`"))?;
    }
    let raw = row.run_state.as_deref();
    if let (Some(run_state), Some(status), Some(span)) = (raw, row.status.filter(|_| known), seen.key_span(17))
        && STATUS_WORDS.get(status) != Some(&run_state)
    {
        let fault = Diagnostic::new(span, format!("`run_state` is {}, so `status` is neither running nor stopped", quote(run_state)));
        reader.report(fault.with_help("write `status: unknown`, with the cause"))?;
    }
    if let (true, Some(span)) = (known, seen.key_span(0)) {
        reader.report(Diagnostic::new(span, "`cause` says why a status is unknown, but the status is known"))?;
    }
    Ok(())
}

fn finish_guest<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    guests: &mut Vec<ObservedGuest>,
    row: GuestRowDraft<'t>,
    scratch: &mut ParseScratch<'t>,
) -> Result<(), End> {
    let (Some(vmid_and_span), Some(kind), Some(node), Some(status)) = (row.vmid, row.kind, row.node, row.status) else { return Ok(()) };
    let config = build_config(reader, scratch, kind)?;
    let config = with_not_understood(reader, config, row.not_understood, row.has_config, kind)?;
    let pending = match row.pending {
        Some(list) => Reading::Read(build_pending(reader, list, kind)?),
        None => Reading::Unread,
    };
    let identity = match row.identity {
        Some(marks) => Reading::Read(Box::new(marks.into_identity(kind, reader)?)),
        None => Reading::Unread,
    };
    let hardware = match row.hardware {
        Some(draft) => Reading::Read(draft.into_hardware(kind, reader)?),
        None => Reading::Unread,
    };
    let extras = GuestExtras { hardware, replicated: to_reading(row.replicated), snapshots: to_reading(row.snapshots) };
    scratch.spans.push(vmid_and_span);
    scratch.node_names.push(node);
    guests.push(ObservedGuest {
        vmid: vmid_and_span.0,
        kind,
        // INVARIANT: an index into `node_names` until `check_rows` replaces it.
        node: scratch.node_names.len() - 1,
        status: match status {
            0 => ObservedStatus::Known(RunState::Running),
            1 => ObservedStatus::Known(RunState::Stopped),
            _ => ObservedStatus::Unknown(row.cause),
        },
        name: row.name,
        run_state: row.run_state,
        cpus: row.cpus,
        maxmem: row.maxmem,
        source: row.source,
        lock: to_reading(row.lock),
        ha: to_reading(row.ha),
        template: to_reading(row.template),
        protection: to_reading(row.protection),
        tags: to_reading(row.tags),
        identity,
        macs: row.macs,
        config: if row.has_config { Reading::Read(config) } else { Reading::Unread },
        pending,
        digest: row.digest,
        extras: extras.into_option(),
    });
    Ok(())
}

pub(super) fn to_reading<T>(value: Option<T>) -> Reading<T> {
    value.map_or(Reading::Unread, Reading::Read)
}

/// Checks constraints between rows: unique ids, and every guest on a listed node.
fn check_rows<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    draft: &mut ObservationDraft,
    mut scratch: ParseScratch<'t>,
) -> Result<(), End> {
    scratch.spans.sort_unstable();
    for pair in scratch.spans.windows(2) {
        if let [(first, first_span), (second, second_span)] = pair
            && first == second
        {
            let fault =
                Diagnostic::new(*second_span, format!("guest {second} is listed twice")).with_related(*first_span, "first listed here");
            reader.report(fault.with_help("one id is one guest; observe again"))?;
        }
    }
    draft.nodes.sort_by(|(left, first), (right, second)| (&left.name, first).cmp(&(&right.name, second)));
    for pair in draft.nodes.windows(2) {
        if let [(first, first_span), (second, second_span)] = pair
            && first.name == second.name
        {
            let fault = Diagnostic::new(*second_span, format!("the node {} is listed twice", quote(second.name.as_str())));
            reader.report(fault.with_related(*first_span, "first listed here"))?;
        }
    }
    for guest in &mut draft.guests {
        let Some((name, span)) = scratch.node_names.get(guest.node) else { continue };
        match draft.nodes.binary_search_by(|(node, _)| node.name.as_str().cmp(name)) {
            Ok(index) => guest.node = index,
            Err(_) => {
                let fault = Diagnostic::new(*span, format!("guest {} is on the node {}, which is not listed", guest.vmid, quote(name)));
                reader.report(fault.with_help("list the node under `nodes`, with `online`"))?;
            }
        }
    }
    draft.guests.sort_by_key(|guest| guest.vmid);
    Ok(())
}

pub(crate) fn read_ha<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<Option<HaState>>, End> {
    read_or_null(reader, |reader| {
        let mut state = None;
        let seen = reader.read_fields("`ha`", &["state"], |reader, _, _| {
            state = read_or_null(reader, |reader| read_text(reader, "`state`"))?.flatten();
            Ok(())
        })?;
        Ok(seen.map(|_| HaState { state }))
    })
}

#[expect(clippy::drain_collect, reason = "the buffer keeps its capacity, and the result has the right size")]
fn read_tags<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, tags: &mut Vec<Box<str>>) -> Result<Option<WordSet>, End> {
    tags.clear();
    let list = reader.read_items("`tags`", |reader| {
        let Some((tag, span)) = reader.read_text("a tag")? else { return Ok(()) };
        // The raw list of a platform (`a;b`) taken as one tag would hide a tag that protects.
        if !is_observed_tag(&tag) {
            let fault = Diagnostic::new(span, format!("{} is not a tag", quote(&tag)));
            return reader.report(fault.with_help("each tag is an entry of its own: letters, digits, `_`, `-`, `+` and `.`"));
        }
        tags.push(tag.into());
        Ok(())
    })?;
    Ok(list.map(|_| WordSet::new(tags.drain(..).collect())))
}

/// MAC addresses are compared in upper case, like birth marks.
fn read_macs<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<WordSet, End> {
    let mut macs = Vec::new();
    reader.read_items("`macs`", |reader| {
        macs.extend(read_text(reader, "a hardware address")?.map(|mac| mac.to_ascii_uppercase().into_boxed_str()));
        Ok(())
    })?;
    Ok(WordSet::new(macs))
}

/// Reads the config; returns whether there is one.
fn read_config<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, scratch: &mut ParseScratch<'t>) -> Result<bool, End> {
    let seen = reader.read_fields("`config`", &Field::WORDS, |reader, index, span| {
        let Some(field) = Field::ALL.get(index).copied() else { return Ok(()) };
        if let Some(value) = read_field_value(reader, field)? {
            scratch.config.push((field, value, span));
        }
        Ok(())
    })?;
    Ok(seen.is_some())
}

/// Checks the config against the table for this kind.
fn build_config<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    scratch: &mut ParseScratch<'t>,
    kind: GuestKind,
) -> Result<EffectiveValues, End> {
    for (field, _, span) in &scratch.config {
        check_field(reader, *field, *span, kind)?;
    }
    scratch.config.retain(|(_, value, _)| !is_empty_text(value));
    Ok(EffectiveValues::new(scratch.config.drain(..).map(|(field, value, _)| (field, value)).collect()))
}

/// Reads the texts of keys whose values the observer did not understand.
fn not_understood<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Vec<(Field, Box<str>, Span)>, End> {
    let mut texts = Vec::new();
    reader.read_fields("`not_understood`", &Field::WORDS, |reader, index, span| {
        let text = read_text(reader, "a value in `not_understood`")?;
        texts.extend(Field::ALL.get(index).copied().zip(text).map(|(field, text)| (field, text, span)));
        Ok(())
    })?;
    Ok(texts)
}

/// Adds keys that are not understood. A key cannot also have a value, and without `config` nothing was read that could be misunderstood.
fn with_not_understood<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    config: EffectiveValues,
    texts: Vec<(Field, Box<str>, Span)>,
    has_config: bool,
    kind: GuestKind,
) -> Result<EffectiveValues, End> {
    for (field, _, span) in &texts {
        check_field(reader, *field, *span, kind)?;
        if !has_config || config.get(*field).is_some() {
            let fault = if has_config { "also has a value in `config`" } else { "needs `config`" };
            reader.report(Diagnostic::new(*span, format!("{} in `not_understood` {fault}", field.quoted_name())))?;
        }
    }
    if texts.is_empty() {
        return Ok(config);
    }
    Ok(config.with_not_understood(texts.into_iter().map(|(field, text, _)| (field, text)).collect()))
}

fn check_field<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, field: Field, span: Span, kind: GuestKind) -> Result<(), End> {
    if field == Field::Tags {
        return reader
            .report(Diagnostic::new(span, "tags belong beside `config`, not in it").with_help("move them to the guest's own `tags`"));
    }
    if rule_of(kind, field).is_none() {
        return reader.report(Diagnostic::new(span, format!("{} is not a config key of {kind} guests", field.quoted_name())));
    }
    Ok(())
}

/// An empty description is the same as an absent one.
fn is_empty_text(value: &FieldValue) -> bool {
    matches!(value, FieldValue::Text(text) if text.is_empty())
}

const PENDING_KEYS: [&str; 3] = ["key", "value", "delete"];

/// A pending change as written. Which members it needs depends on the kind, which may not be known yet.
struct PendingDraft<'t> {
    key: Cow<'t, str>,
    span: Span,
    value: Option<UntypedValue>,
    delete: bool,
    /// Whether neither `value` nor `delete` was given.
    has_only_key: bool,
}

fn read_pending<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<Vec<PendingDraft<'t>>>, End> {
    let mut list = Vec::new();
    let read = reader.read_items("`pending`", |reader| {
        list.extend(read_pending_entry(reader)?);
        Ok(())
    })?;
    Ok(read.map(|_| list))
}

/// Reads `{key, value}` or `{key, delete: true}` for a field of the table, and `{key}` for other keys and for values that are not
/// understood.
fn read_pending_entry<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<PendingDraft<'t>>, End> {
    let (mut key, mut value, mut delete) = (None, None, false);
    let seen = reader.read_fields("a pending change", &PENDING_KEYS, |reader, index, _| match index {
        0 => reader.read_text("`key`").map(|text| key = text),
        1 => read_untyped_value(reader).map(|loose| value = loose),
        _ => reader.read_flag("`delete`").map(|flag| delete = flag == Some(true)),
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.require_keys(&seen, "a pending change", &PENDING_KEYS, &[0])?;
    let has_only_key = seen.key_span(1).is_none() && seen.key_span(2).is_none();
    Ok(key.map(|(key, span)| PendingDraft { key, span, value, delete, has_only_key }))
}

/// Returns the changes sorted by key, each key once. The value of a key that is not in the table for this kind is dropped.
fn build_pending<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    list: Vec<PendingDraft<'t>>,
    kind: GuestKind,
) -> Result<Box<[PendingChange]>, End> {
    let mut list = list;
    list.sort_by(|left, right| (&left.key, left.span).cmp(&(&right.key, right.span)));
    let mut entries: Vec<PendingChange> = Vec::with_capacity(list.len());
    for draft in list {
        if entries.last().is_some_and(|other| other.key() == draft.key) {
            reader.report(Diagnostic::new(draft.span, format!("{} is pending twice", quote(&draft.key))))?;
        }
        entries.extend(build_pending_change(reader, draft, kind)?);
    }
    Ok(entries.into())
}

fn build_pending_change<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    draft: PendingDraft<'t>,
    kind: GuestKind,
) -> Result<Option<PendingChange>, End> {
    let index = Field::WORDS.iter().position(|word| *word == draft.key);
    let field = index.and_then(|index| Field::ALL.get(index).copied()).filter(|field| rule_of(kind, *field).is_some());
    let Some(field) = field.filter(|_| !draft.has_only_key) else { return Ok(Some(PendingChange::Other(draft.key.into()))) };
    let value = match (draft.value, draft.delete) {
        (None, true) => None,
        (Some(loose), false) => match loose.into_value(field.shape()) {
            Some(value) => Some(value).filter(|value| !is_empty_text(value)),
            None => {
                return reader
                    .report_none(Diagnostic::new(draft.span, format!("the pending value of {} has the wrong type", field.quoted_name())));
            }
        },
        _ => {
            let message = format!("a pending change of {} has either `value` or `delete: true`", field.quoted_name());
            return reader.report_none(Diagnostic::new(draft.span, message));
        }
    };
    Ok(Some(PendingChange::Known(field, value)))
}

/// A value whose field is not known yet: members of a JSON object have no order.
pub(crate) enum UntypedValue {
    Flag(bool),
    Number(u32),
    Text(Box<str>),
    List(Vec<Box<str>>),
    Startup(StartupOrder),
}

pub(crate) fn read_untyped_value<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<UntypedValue>, End> {
    Ok(match reader.peek_kind()? {
        ValueKind::Text => read_text(reader, "`value`")?.map(UntypedValue::Text),
        ValueKind::Flag => reader.read_flag("`value`")?.map(UntypedValue::Flag),
        ValueKind::Map => read_startup(reader)?.map(UntypedValue::Startup),
        ValueKind::List => read_words(reader, "`value`")?.map(UntypedValue::List),
        ValueKind::Other => {
            let number = reader.read_integer("`value`", 0, u64::from(u32::MAX))?.and_then(|(number, _)| u32::try_from(number).ok());
            number.map(UntypedValue::Number)
        }
    })
}

impl UntypedValue {
    pub(crate) fn into_value(self, shape: ValueShape) -> Option<FieldValue> {
        Some(match (shape, self) {
            (ValueShape::Flag, Self::Flag(flag)) => FieldValue::Flag(flag),
            (ValueShape::Count, Self::Number(number)) => FieldValue::Count(number),
            (ValueShape::Mib, Self::Number(number)) => FieldValue::Mib(number),
            (ValueShape::Thousandths, Self::Number(number)) => FieldValue::Thousandths(number),
            (ValueShape::Text, Self::Text(text)) => FieldValue::Text(text.trim_end().into()),
            (ValueShape::Tags, Self::List(tags)) if tags.iter().all(|tag| is_observed_tag(tag)) => FieldValue::Tags(WordSet::new(tags)),
            (ValueShape::Startup, Self::Startup(startup)) => FieldValue::Startup(startup),
            (ValueShape::Boot, Self::List(devices)) => FieldValue::Boot(BootOrder::Devices(devices.into())),
            (ValueShape::Boot, Self::Text(letters)) => FieldValue::Boot(BootOrder::from_legacy(&letters)?),
            (ValueShape::Features, Self::List(names)) => FieldValue::Features(parse_features(&names)?),
            _ => return None,
        })
    }
}

fn parse_features(names: &[Box<str>]) -> Option<HotplugFeatures> {
    names.iter().try_fold(HotplugFeatures::empty(), |features, name| {
        HotplugFeatures::WORDS.iter().position(|own| **own == **name).map(|index| features.with(index))
    })
}

pub(crate) fn read_words<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, what: &str) -> Result<Option<Vec<Box<str>>>, End> {
    let mut texts: Vec<Box<str>> = Vec::new();
    let list = reader.read_items(what, |reader| {
        texts.extend(read_text(reader, what)?);
        Ok(())
    })?;
    Ok(list.map(|_| texts))
}

/// The key with its unit, for messages: a platform may display another unit.
fn name_with_unit(field: Field) -> &'static str {
    match field {
        Field::Balloon => "`balloon` (in MiB, such as 1024)",
        Field::Memory => "`memory` (in MiB, such as 8192)",
        Field::Swap => "`swap` (in MiB, such as 512)",
        Field::Cpulimit => "`cpulimit` (in thousandths of a CPU, such as 1500)",
        field => field.quoted_name(),
    }
}

/// Reads a value in the form of artifacts: numbers in their unit, sets as lists.
fn read_field_value<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, field: Field) -> Result<Option<FieldValue>, End> {
    let what = name_with_unit(field);
    let shape = field.shape();
    Ok(match shape {
        ValueShape::Flag => reader.read_flag(what)?.map(FieldValue::Flag),
        ValueShape::Count | ValueShape::Mib | ValueShape::Thousandths => {
            let number = reader.read_integer(what, 0, u64::from(u32::MAX))?.and_then(|(number, _)| u32::try_from(number).ok());
            number.map(match shape {
                ValueShape::Count => FieldValue::Count,
                ValueShape::Mib => FieldValue::Mib,
                _ => FieldValue::Thousandths,
            })
        }
        ValueShape::Text => reader.read_text(what)?.map(|(text, _)| FieldValue::Text(text.trim_end().into())),
        ValueShape::Tags => read_tags(reader, &mut Vec::new())?.map(FieldValue::Tags),
        ValueShape::Startup => read_startup(reader)?.map(FieldValue::Startup),
        ValueShape::Boot => read_boot_order(reader)?.map(FieldValue::Boot),
        ValueShape::Features => read_features(reader)?.map(FieldValue::Features),
    })
}

fn read_startup<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<StartupOrder>, End> {
    let mut startup = StartupOrder::default();
    let seen = reader.read_fields("`startup`", &["order", "up", "down"], |reader, key, _| {
        let number = reader.read_integer("a part of `startup`", 0, u64::from(u32::MAX))?.and_then(|(number, _)| u32::try_from(number).ok());
        match key {
            0 => startup.order = number,
            1 => startup.up = number,
            _ => startup.down = number,
        }
        Ok(())
    })?;
    Ok(seen.map(|_| startup))
}

/// Reads a list of devices, or the letters of an old config.
fn read_boot_order<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<BootOrder>, End> {
    if reader.peek_kind()? == ValueKind::Text {
        let Some((letters, span)) = reader.read_text("`boot`")? else { return Ok(None) };
        if let Some(boot) = BootOrder::from_legacy(&letters) {
            return Ok(Some(boot));
        }
        let fault = Diagnostic::new(span, format!("{} is not an old boot order", quote(&letters)));
        return reader.report_none(fault.with_help("write devices as a list, such as [\"scsi0\", \"net0\"]"));
    }
    Ok(read_words(reader, "`boot`")?.map(|devices| BootOrder::Devices(devices.into())))
}

fn read_features<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<HotplugFeatures>, End> {
    let mut features = HotplugFeatures::empty();
    let list = reader.read_items("`hotplug`", |reader| {
        if let Some((index, _)) = reader.read_keyword("a part of `hotplug`", &HotplugFeatures::WORDS)? {
            features = features.with(index);
        }
        Ok(())
    })?;
    Ok(list.map(|_| features))
}
