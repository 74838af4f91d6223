//! From current.json to [`Observation`], refusing whatever is malformed or contradicts itself.

use std::borrow::Cow;

use super::{Config, Ha, Node, Note, Observation, ObservedGuest, Pending, Reading, SCHEMA, Status, TagCase, Unlisted, note, unlisted};
use crate::artifact::INTEGER_MAX;
use crate::document::{Decode, Diagnostic, Diagnostics, Next, Notation, Reader, Seen, Source, Span, Stop as End, decode, quoted};
use crate::guest::{EnvironmentName, Kind, NodeName, RunState, Vmid, is_seen_tag};
use crate::marks::{self, Marks};
use crate::moment;
use crate::normalize::{Boot, Features, Field, Shape, Startup, Value, Words, rule_of};

const KEYS: [&str; 12] =
    ["schema", "environment", "source", "taken_at", "complete", "quorate", "nodes", "guests", "unmanaged", "notes", "unlisted", "tag_case"];
const REQUIRED: [usize; 6] = [0, 1, 4, 5, 6, 7];
const NODE_KEYS: [&str; 2] = ["name", "online"];
const GUEST_KEYS: [&str; 21] = [
    "cause",
    "config",
    "cpus",
    "digest",
    "ha",
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
    "run_state",
    "source",
    "status",
    "tags",
    "template",
    "vmid",
];
const STATUS_WORDS: [&str; 3] = ["running", "stopped", "unknown"];
const GUEST_REQUIRED: [usize; 4] = [6, 11, 17, 20];

pub(super) fn parse(bytes: &[u8], notation: Notation) -> Result<Observation, Diagnostics> {
    let draft = decode(bytes, notation, File)?;
    // All three were checked as present: a decoder that reports nothing has filled them.
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
struct Draft {
    environment: Option<EnvironmentName>,
    source: Option<Box<str>>,
    taken_at: Option<Box<str>>,
    complete: Option<bool>,
    quorate: Option<bool>,
    tag_case: Option<TagCase>,
    nodes: Vec<(Node, Span)>,
    guests: Vec<ObservedGuest>,
    unlisted: Vec<(Unlisted, Span)>,
    unmanaged: u64,
    notes: Vec<Note>,
}

struct File;

impl Decode<Draft> for File {
    fn decode<'t, S: Source<'t>>(self, reader: &mut Reader<'t, S>) -> Result<Draft, End> {
        let mut draft = Draft::default();
        if reader.is_empty()? {
            reader.report(Diagnostic::new(Span::at(0), "the file is empty").help("take a new reading"))?;
            return Ok(draft);
        }
        let mut scratch = Scratch::default();
        let seen = reader.fields("the observation", &KEYS, |reader, key, _| match key {
            0 => schema(reader),
            1 => environment(reader, &mut draft),
            2 => text(reader, "`source`").map(|text| draft.source = text),
            3 => taken_at(reader).map(|text| draft.taken_at = text),
            4 => reader.flag("`complete`").map(|flag| draft.complete = flag),
            5 => reader.flag("`quorate`").map(|flag| draft.quorate = flag),
            6 => reader.items("`nodes`", |reader| node(reader, &mut draft.nodes)).map(|_| ()),
            7 => reader.items("`guests`", |reader| guest(reader, &mut draft.guests, &mut scratch)).map(|_| ()),
            9 => reader.items("`notes`", |reader| note::read(reader, &mut draft.notes)).map(|_| ()),
            11 => tag_case(reader).map(|case| draft.tag_case = case),
            10 => reader.items("`unlisted`", |reader| unlisted::read(reader, &mut draft.unlisted)).map(|_| ()),
            _ => reader.integer("`unmanaged`", 0, INTEGER_MAX).map(|count| draft.unmanaged = count.map_or(0, |(count, _)| count)),
        })?;
        if let Some(seen) = seen {
            reader.required(&seen, "the observation", &KEYS, &REQUIRED)?;
            together(reader, &mut draft, scratch)?;
            unlisted::check(reader, draft.complete, &draft.guests, &mut draft.unlisted)?;
        }
        Ok(draft)
    }
}

/// Another schema ends the reading: faults of a format that this program does not know would say nothing.
fn schema<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<(), End> {
    let Some((found, span)) = reader.text("`schema`")? else { return Ok(()) };
    if found == SCHEMA {
        return Ok(());
    }
    let fault = Diagnostic::new(span, format!("the schema {} is not known to this program", quoted(&found)));
    reader.report(fault.help(format!("this program reads `{SCHEMA}`; take a new reading")))?;
    Err(End)
}

fn environment<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, draft: &mut Draft) -> Result<(), End> {
    let Some((found, span)) = reader.text("`environment`")? else { return Ok(()) };
    draft.environment = EnvironmentName::new(&found);
    if draft.environment.is_none() {
        reader.report(Diagnostic::new(span, format!("{} is not the name of an environment", quoted(&found))))?;
    }
    Ok(())
}

pub(crate) fn text<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, what: &str) -> Result<Option<Box<str>>, End> {
    Ok(reader.text(what)?.map(|(text, _)| text.into()))
}

/// `2026-11-15T12:00:00Z`: the shape is checked, so that an age can be judged from it later.
fn taken_at<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Box<str>>, End> {
    let Some((found, span)) = reader.text("`taken_at`")? else { return Ok(None) };
    if moment::read(&found).is_some() {
        return Ok(Some(found.into()));
    }
    reader.refuse(Diagnostic::new(span, format!("{} is not a time", quoted(&found))).help("write it as 2026-11-15T12:00:00Z, in UTC"))
}

fn tag_case<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<TagCase>, End> {
    let word = reader.word("`tag_case`", &TagCase::WORDS)?;
    Ok(word.and_then(|(index, _)| TagCase::ALL.get(index).copied()))
}

fn node<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, nodes: &mut Vec<(Node, Span)>) -> Result<(), End> {
    let (mut name, mut online) = (None, None);
    let seen = reader.fields("a node", &NODE_KEYS, |reader, key, _| match key {
        0 => reader.text("`name`").map(|text| name = text),
        _ => reader.flag("`online`").map(|flag| online = flag),
    })?;
    let Some(seen) = seen else { return Ok(()) };
    reader.required(&seen, "a node", &NODE_KEYS, &[0, 1])?;
    // A node whose `online` is faulty is listed all the same, so that its guests are not reported too.
    let (Some((found, span)), online) = (name, online.unwrap_or(false)) else { return Ok(()) };
    let Some(name) = NodeName::new(&found) else {
        return reader.report(Diagnostic::new(span, format!("{} is not the name of a node", quoted(&found))));
    };
    nodes.push((Node { name, online }, span));
    Ok(())
}

pub(super) fn vmid<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<(Vmid, Span)>, End> {
    let number = reader.integer("`vmid`", u64::from(Vmid::MIN), u64::from(Vmid::MAX))?;
    Ok(number.and_then(|(number, span)| Vmid::new(number).map(|vmid| (vmid, span))))
}

/// What was read of one guest; its kind may stand behind what depends on it.
#[derive(Default)]
struct Row<'t> {
    vmid: Option<(Vmid, Span)>,
    kind: Option<Kind>,
    node: Option<(Cow<'t, str>, Span)>,
    status: Option<usize>,
    cause: Option<Box<str>>,
    name: Option<Box<str>>,
    run_state: Option<Box<str>>,
    cpus: Option<u32>,
    maxmem: Option<u64>,
    source: Option<Box<str>>,
    lock: Option<Option<Box<str>>>,
    ha: Option<Option<Ha>>,
    template: Option<bool>,
    protection: Option<bool>,
    tags: Option<Words>,
    identity: Option<Marks>,
    macs: Words,
    has_config: bool,
    not_understood: Vec<(Field, Box<str>, Span)>,
    pending: Option<Vec<PendingDraft<'t>>>,
    digest: Option<Box<str>>,
}

/// Kept over all guests.
#[derive(Default)]
struct Scratch<'t> {
    /// The id and place of each guest, and the name of its node with its place: nodes may stand behind guests.
    places: Vec<(Vmid, Span)>,
    node_names: Vec<(Cow<'t, str>, Span)>,
    /// The config and the tags of the guest that is read, so that what is kept of them is allocated once and fits.
    config: Vec<(Field, Value, Span)>,
    tags: Vec<Box<str>>,
}

fn guest<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, guests: &mut Vec<ObservedGuest>, scratch: &mut Scratch<'t>) -> Result<(), End> {
    let mut row = Row::default();
    scratch.config.clear();
    let seen = reader.fields("a guest", &GUEST_KEYS, |reader, key, _| member(reader, key, &mut row, scratch))?;
    let Some(seen) = seen else { return Ok(()) };
    reader.required(&seen, "a guest", &GUEST_KEYS, &GUEST_REQUIRED)?;
    contradictions(reader, &seen, &row)?;
    finish(reader, guests, row, scratch)
}

fn member<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, key: usize, row: &mut Row<'t>, scratch: &mut Scratch<'t>) -> Result<(), End> {
    match key {
        0 => row.cause = cause(reader)?,
        1 => row.has_config = config(reader, scratch)?,
        2 => row.cpus = reader.integer("`cpus`", 0, u64::from(u32::MAX))?.and_then(|(number, _)| u32::try_from(number).ok()),
        3 => row.digest = text(reader, "`digest`")?,
        4 => row.ha = ha(reader)?,
        5 => row.identity = marks::read(reader)?,
        6 => row.kind = reader.word("`kind`", &Kind::WORDS)?.and_then(|(index, _)| Kind::ALL.get(index).copied()),
        7 => row.lock = or_null(reader, |reader| text(reader, "`lock`"))?,
        8 => row.macs = macs(reader)?,
        9 => row.maxmem = reader.integer("`maxmem`", 0, INTEGER_MAX)?.map(|(number, _)| number),
        10 => row.name = text(reader, "`name`")?,
        11 => row.node = reader.text("`node`")?,
        12 => row.not_understood = not_understood(reader)?,
        13 => row.pending = pending(reader)?,
        14 => row.protection = reader.flag("`protection`")?,
        15 => row.run_state = text(reader, "`run_state`")?,
        16 => row.source = text(reader, "`source`")?,
        17 => row.status = reader.word("`status`", &STATUS_WORDS)?.map(|(index, _)| index),
        18 => row.tags = tags(reader, &mut scratch.tags)?,
        19 => row.template = reader.flag("`template`")?,
        _ => row.vmid = vmid(reader)?,
    }
    Ok(())
}

/// `null` means read and none.
pub(crate) fn or_null<'t, S: Source<'t>, T>(
    reader: &mut Reader<'t, S>,
    read: impl FnOnce(&mut Reader<'t, S>) -> Result<Option<T>, End>,
) -> Result<Option<Option<T>>, End> {
    if reader.null()? {
        return Ok(Some(None));
    }
    Ok(read(reader)?.map(Some))
}

/// Lower-case words joined by `-`.
pub(super) fn is_cause(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// A cause is a word for machines as much as for people.
pub(super) fn cause<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Box<str>>, End> {
    let Some((found, span)) = reader.text("`cause`")? else { return Ok(None) };
    if is_cause(&found) {
        return Ok(Some(found.into()));
    }
    reader.refuse(
        Diagnostic::new(span, format!("{} is not a cause", quoted(&found)))
            .help("use lower-case words joined by `-`, such as node-offline"),
    )
}

fn contradictions<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, seen: &Seen, row: &Row<'_>) -> Result<(), End> {
    let known = matches!(row.status, Some(0 | 1));
    if known && row.name.is_none() && seen.key(10).is_none() {
        reader.report(Diagnostic::new(seen.span, "a guest that is running or stopped lacks the key `name`"))?;
    }
    let raw = row.run_state.as_deref();
    if let (Some(word), Some(status), Some(span)) = (raw, row.status.filter(|_| known), seen.key(15))
        && STATUS_WORDS.get(status) != Some(&word)
    {
        let fault = Diagnostic::new(span, format!("`run_state` is {}, so that `status` is neither running nor stopped", quoted(word)));
        reader.report(fault.help("write `status: unknown`, with the cause"))?;
    }
    if let (true, Some(span)) = (known, seen.key(0)) {
        reader.report(Diagnostic::new(span, "`cause` says why a status is unknown, but the status is known"))?;
    }
    Ok(())
}

fn finish<'t, S: Source<'t>>(
    reader: &mut Reader<'t, S>,
    guests: &mut Vec<ObservedGuest>,
    row: Row<'t>,
    scratch: &mut Scratch<'t>,
) -> Result<(), End> {
    let (Some(place), Some(kind), Some(node), Some(status)) = (row.vmid, row.kind, row.node, row.status) else { return Ok(()) };
    let config = config_of(reader, scratch, kind)?;
    let config = with_not_understood(reader, config, row.not_understood, row.has_config, kind)?;
    let pending = match row.pending {
        Some(list) => Reading::Read(pending_of(reader, list, kind)?),
        None => Reading::Unread,
    };
    let identity = match row.identity {
        Some(marks) => Reading::Read(Box::new(marks.of(kind, reader)?)),
        None => Reading::Unread,
    };
    scratch.places.push(place);
    scratch.node_names.push(node);
    guests.push(ObservedGuest {
        vmid: place.0,
        kind,
        // INVARIANT: an index into `node_names` until `together` has found the node.
        node: scratch.node_names.len() - 1,
        status: match status {
            0 => Status::Known(RunState::Running),
            1 => Status::Known(RunState::Stopped),
            _ => Status::Unknown(row.cause),
        },
        name: row.name,
        run_state: row.run_state,
        cpus: row.cpus,
        maxmem: row.maxmem,
        source: row.source,
        lock: reading(row.lock),
        ha: reading(row.ha),
        template: reading(row.template),
        protection: reading(row.protection),
        tags: reading(row.tags),
        identity,
        macs: row.macs,
        config: if row.has_config { Reading::Read(config) } else { Reading::Unread },
        pending,
        digest: row.digest,
    });
    Ok(())
}

fn reading<T>(value: Option<T>) -> Reading<T> {
    value.map_or(Reading::Unread, Reading::Read)
}

/// What must hold between rows: ids once, and every guest on a listed node.
fn together<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, draft: &mut Draft, mut scratch: Scratch<'t>) -> Result<(), End> {
    scratch.places.sort_unstable();
    for pair in scratch.places.windows(2) {
        if let [(first, first_span), (second, second_span)] = pair
            && first == second
        {
            let fault = Diagnostic::new(*second_span, format!("guest {second} is listed twice")).related(*first_span, "first listed here");
            reader.report(fault.help("one id is one guest; take a new reading"))?;
        }
    }
    draft.nodes.sort_by(|(left, first), (right, second)| (&left.name, first).cmp(&(&right.name, second)));
    for pair in draft.nodes.windows(2) {
        if let [(first, first_span), (second, second_span)] = pair
            && first.name == second.name
        {
            let fault = Diagnostic::new(*second_span, format!("the node {} is listed twice", quoted(second.name.as_str())));
            reader.report(fault.related(*first_span, "first listed here"))?;
        }
    }
    for guest in &mut draft.guests {
        let Some((name, span)) = scratch.node_names.get(guest.node) else { continue };
        match draft.nodes.binary_search_by(|(node, _)| node.name.as_str().cmp(name)) {
            Ok(index) => guest.node = index,
            Err(_) => {
                let fault = Diagnostic::new(*span, format!("guest {} is on the node {}, which is not listed", guest.vmid, quoted(name)));
                reader.report(fault.help("list the node under `nodes`, with `online`"))?;
            }
        }
    }
    draft.guests.sort_by_key(|guest| guest.vmid);
    Ok(())
}

pub(crate) fn ha<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Option<Ha>>, End> {
    or_null(reader, |reader| {
        let mut state = None;
        let seen = reader.fields("`ha`", &["state"], |reader, _, _| {
            state = or_null(reader, |reader| text(reader, "`state`"))?.flatten();
            Ok(())
        })?;
        Ok(seen.map(|_| Ha { state }))
    })
}

#[expect(clippy::drain_collect, reason = "the scratch keeps its room, and what is taken out of it fits")]
fn tags<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, tags: &mut Vec<Box<str>>) -> Result<Option<Words>, End> {
    tags.clear();
    let list = reader.items("`tags`", |reader| {
        let Some((tag, span)) = reader.text("a tag")? else { return Ok(()) };
        // A platform's raw list (`a;b`) taken for one tag would hide a tag that protects.
        if !is_seen_tag(&tag) {
            let fault = Diagnostic::new(span, format!("{} is not a tag", quoted(&tag)));
            return reader.report(fault.help("each tag is an entry of its own: letters, digits, `_`, `-`, `+` and `.`"));
        }
        tags.push(tag.into());
        Ok(())
    })?;
    Ok(list.map(|_| Words::new(tags.drain(..).collect())))
}

/// Hardware addresses are compared in upper case, as birth marks are.
fn macs<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Words, End> {
    let mut macs = Vec::new();
    reader.items("`macs`", |reader| {
        macs.extend(text(reader, "a hardware address")?.map(|mac| mac.to_ascii_uppercase().into_boxed_str()));
        Ok(())
    })?;
    Ok(Words::new(macs))
}

/// The config; whether there was one.
fn config<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, scratch: &mut Scratch<'t>) -> Result<bool, End> {
    let seen = reader.fields("`config`", &Field::WORDS, |reader, index, span| {
        let Some(field) = Field::ALL.get(index).copied() else { return Ok(()) };
        if let Some(value) = value(reader, field)? {
            scratch.config.push((field, value, span));
        }
        Ok(())
    })?;
    Ok(seen.is_some())
}

/// What was read of the config, checked against the table for this kind.
fn config_of<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, scratch: &mut Scratch<'t>, kind: Kind) -> Result<Config, End> {
    for (field, _, span) in &scratch.config {
        check_field(reader, *field, *span, kind)?;
    }
    scratch.config.retain(|(_, value, _)| !is_nothing(value));
    Ok(Config::new(scratch.config.drain(..).map(|(field, value, _)| (field, value)).collect()))
}

/// The texts of keys whose values the reader of the environment did not understand.
fn not_understood<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Vec<(Field, Box<str>, Span)>, End> {
    let mut texts = Vec::new();
    reader.fields("`not_understood`", &Field::WORDS, |reader, index, span| {
        let text = text(reader, "a value in `not_understood`")?;
        texts.extend(Field::ALL.get(index).copied().zip(text).map(|(field, text)| (field, text, span)));
        Ok(())
    })?;
    Ok(texts)
}

/// A key is understood or it is not, and without `config` nothing was read that could be misunderstood.
fn with_not_understood<'t, S: Source<'t>>(
    reader: &mut Reader<'t, S>,
    config: Config,
    texts: Vec<(Field, Box<str>, Span)>,
    has_config: bool,
    kind: Kind,
) -> Result<Config, End> {
    for (field, _, span) in &texts {
        check_field(reader, *field, *span, kind)?;
        if !has_config || config.get(*field).is_some() {
            let fault = if has_config { "has a value in `config` too" } else { "stands without `config`" };
            reader.report(Diagnostic::new(*span, format!("{} in `not_understood` {fault}", field.quoted())))?;
        }
    }
    if texts.is_empty() {
        return Ok(config);
    }
    Ok(config.with_not_understood(texts.into_iter().map(|(field, text, _)| (field, text)).collect()))
}

fn check_field<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, field: Field, span: Span, kind: Kind) -> Result<(), End> {
    if field == Field::Tags {
        return reader.report(Diagnostic::new(span, "tags stand beside `config`, not in it").help("move them to the guest's own `tags`"));
    }
    if rule_of(kind, field).is_none() {
        return reader.report(Diagnostic::new(span, format!("{} is not a config key of {kind} guests", field.quoted())));
    }
    Ok(())
}

/// An empty description is the same as none.
fn is_nothing(value: &Value) -> bool {
    matches!(value, Value::Text(text) if text.is_empty())
}

const PENDING_KEYS: [&str; 3] = ["key", "value", "delete"];

/// A pending change as written: which of its members it needs depends on the kind, which may not be known yet.
struct PendingDraft<'t> {
    key: Cow<'t, str>,
    span: Span,
    value: Option<Loose>,
    delete: bool,
    /// Neither `value` nor `delete` was written.
    bare: bool,
}

fn pending<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Vec<PendingDraft<'t>>>, End> {
    let mut list = Vec::new();
    let read = reader.items("`pending`", |reader| {
        list.extend(pending_entry(reader)?);
        Ok(())
    })?;
    Ok(read.map(|_| list))
}

/// `{key, value}` or `{key, delete: true}` for a field of the table; `{key}` for anything else, and for a field whose new value is not understood.
fn pending_entry<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<PendingDraft<'t>>, End> {
    let (mut key, mut value, mut delete) = (None, None, false);
    let seen = reader.fields("a pending change", &PENDING_KEYS, |reader, index, _| match index {
        0 => reader.text("`key`").map(|text| key = text),
        1 => loose(reader).map(|loose| value = loose),
        _ => reader.flag("`delete`").map(|flag| delete = flag == Some(true)),
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.required(&seen, "a pending change", &PENDING_KEYS, &[0])?;
    let bare = seen.key(1).is_none() && seen.key(2).is_none();
    Ok(key.map(|(key, span)| PendingDraft { key, span, value, delete, bare }))
}

/// Sorted by key, each key once. A key that the table of this kind lacks is somebody else's, and its value is not kept.
fn pending_of<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, list: Vec<PendingDraft<'t>>, kind: Kind) -> Result<Box<[Pending]>, End> {
    let mut list = list;
    list.sort_by(|left, right| (&left.key, left.span).cmp(&(&right.key, right.span)));
    let mut entries: Vec<Pending> = Vec::with_capacity(list.len());
    for draft in list {
        if entries.last().is_some_and(|other| other.key() == draft.key) {
            reader.report(Diagnostic::new(draft.span, format!("{} is pending twice", quoted(&draft.key))))?;
        }
        entries.extend(pending_known(reader, draft, kind)?);
    }
    Ok(entries.into())
}

fn pending_known<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, draft: PendingDraft<'t>, kind: Kind) -> Result<Option<Pending>, End> {
    let index = Field::WORDS.iter().position(|word| *word == draft.key);
    let field = index.and_then(|index| Field::ALL.get(index).copied()).filter(|field| rule_of(kind, *field).is_some());
    let Some(field) = field.filter(|_| !draft.bare) else { return Ok(Some(Pending::Other(draft.key.into()))) };
    let value = match (draft.value, draft.delete) {
        (None, true) => None,
        (Some(loose), false) => match loose.shaped(field.shape()) {
            Some(value) => Some(value).filter(|value| !is_nothing(value)),
            None => {
                return reader.refuse(Diagnostic::new(draft.span, format!("the pending value of {} is of another type", field.quoted())));
            }
        },
        _ => {
            let message = format!("a pending change of {} has either `value` or `delete: true`", field.quoted());
            return reader.refuse(Diagnostic::new(draft.span, message));
        }
    };
    Ok(Some(Pending::Known(field, value)))
}

/// A value whose field is not known yet: members of a JSON object have no order.
pub(crate) enum Loose {
    Flag(bool),
    Number(u32),
    Text(Box<str>),
    List(Vec<Box<str>>),
    Startup(Startup),
}

pub(crate) fn loose<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Loose>, End> {
    Ok(match reader.peek_kind()? {
        Next::Text => text(reader, "`value`")?.map(Loose::Text),
        Next::Flag => reader.flag("`value`")?.map(Loose::Flag),
        Next::Map => startup(reader)?.map(Loose::Startup),
        Next::List => words(reader, "`value`")?.map(Loose::List),
        Next::Other => {
            let number = reader.integer("`value`", 0, u64::from(u32::MAX))?.and_then(|(number, _)| u32::try_from(number).ok());
            number.map(Loose::Number)
        }
    })
}

impl Loose {
    pub(crate) fn shaped(self, shape: Shape) -> Option<Value> {
        Some(match (shape, self) {
            (Shape::Flag, Self::Flag(flag)) => Value::Flag(flag),
            (Shape::Count, Self::Number(number)) => Value::Count(number),
            (Shape::Mib, Self::Number(number)) => Value::Mib(number),
            (Shape::Thousandths, Self::Number(number)) => Value::Thousandths(number),
            (Shape::Text, Self::Text(text)) => Value::Text(text.trim_end().into()),
            (Shape::Tags, Self::List(tags)) if tags.iter().all(|tag| is_seen_tag(tag)) => Value::Tags(Words::new(tags)),
            (Shape::Startup, Self::Startup(startup)) => Value::Startup(startup),
            (Shape::Boot, Self::List(devices)) => Value::Boot(Boot::Devices(devices.into())),
            (Shape::Boot, Self::Text(letters)) => Value::Boot(Boot::legacy(&letters)?),
            (Shape::Features, Self::List(words)) => Value::Features(features_of(&words)?),
            _ => return None,
        })
    }
}

fn features_of(words: &[Box<str>]) -> Option<Features> {
    words.iter().try_fold(Features::none(), |features, word| {
        Features::WORDS.iter().position(|own| **own == **word).map(|index| features.with(index))
    })
}

pub(crate) fn words<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, what: &str) -> Result<Option<Vec<Box<str>>>, End> {
    let mut words: Vec<Box<str>> = Vec::new();
    let list = reader.items(what, |reader| {
        words.extend(text(reader, what)?);
        Ok(())
    })?;
    Ok(list.map(|_| words))
}

/// The key with its unit, for messages: what a platform shows may be in another one.
fn measured(field: Field) -> &'static str {
    match field {
        Field::Balloon => "`balloon` (in MiB, such as 1024)",
        Field::Memory => "`memory` (in MiB, such as 8192)",
        Field::Swap => "`swap` (in MiB, such as 512)",
        Field::Cpulimit => "`cpulimit` (in thousandths of a CPU, such as 1500)",
        field => field.quoted(),
    }
}

/// A value in the form of artifacts: numbers in their unit, sets as lists.
fn value<'t, S: Source<'t>>(reader: &mut Reader<'t, S>, field: Field) -> Result<Option<Value>, End> {
    let what = measured(field);
    let shape = field.shape();
    Ok(match shape {
        Shape::Flag => reader.flag(what)?.map(Value::Flag),
        Shape::Count | Shape::Mib | Shape::Thousandths => {
            let number = reader.integer(what, 0, u64::from(u32::MAX))?.and_then(|(number, _)| u32::try_from(number).ok());
            number.map(match shape {
                Shape::Count => Value::Count,
                Shape::Mib => Value::Mib,
                _ => Value::Thousandths,
            })
        }
        Shape::Text => reader.text(what)?.map(|(text, _)| Value::Text(text.trim_end().into())),
        Shape::Tags => tags(reader, &mut Vec::new())?.map(Value::Tags),
        Shape::Startup => startup(reader)?.map(Value::Startup),
        Shape::Boot => boot(reader)?.map(Value::Boot),
        Shape::Features => features(reader)?.map(Value::Features),
    })
}

fn startup<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Startup>, End> {
    let mut startup = Startup::default();
    let seen = reader.fields("`startup`", &["order", "up", "down"], |reader, key, _| {
        let number = reader.integer("a part of `startup`", 0, u64::from(u32::MAX))?.and_then(|(number, _)| u32::try_from(number).ok());
        match key {
            0 => startup.order = number,
            1 => startup.up = number,
            _ => startup.down = number,
        }
        Ok(())
    })?;
    Ok(seen.map(|_| startup))
}

/// A list of devices, or the letters of an old config.
fn boot<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Boot>, End> {
    if reader.peek_kind()? == Next::Text {
        let Some((letters, span)) = reader.text("`boot`")? else { return Ok(None) };
        if let Some(boot) = Boot::legacy(&letters) {
            return Ok(Some(boot));
        }
        let fault = Diagnostic::new(span, format!("{} are not the letters of an old boot order", quoted(&letters)));
        return reader.refuse(fault.help("write devices as a list, such as [\"scsi0\", \"net0\"]"));
    }
    Ok(words(reader, "`boot`")?.map(|devices| Boot::Devices(devices.into())))
}

fn features<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<Option<Features>, End> {
    let mut features = Features::none();
    let list = reader.items("`hotplug`", |reader| {
        if let Some((index, _)) = reader.word("a part of `hotplug`", &Features::WORDS)? {
            features = features.with(index);
        }
        Ok(())
    })?;
    Ok(list.map(|_| features))
}
