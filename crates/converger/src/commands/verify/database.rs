//! A state directory: the ledger in its database, and the journal beside it, which must say the same (C7).
//!
//! Nothing is opened for writing: a copy on a disk that cannot be written to is checked like any other.

use converger_core::apply::{Freeze, History, Hold, Operation, OperationId, Source};
use converger_core::evidence::{Past, Replay};
use converger_ledger::{Growth, Hash, Tile, Verifier, root_at};
use converger_store::{Filter, Head, KeyRow, LIST_MAX, RunHistory, StoreError};

use super::super::Stop;
use super::super::ledger::{Book, broken, damaged, key_in, named};
use super::{Since, Whole, heard::Heard, unlogged};
use crate::{files, render};

pub(super) fn verify(book: &Book, key: Option<&Verifier>, since: Option<&Since>) -> Result<Whole, Stop> {
    let (heard, root) = entries(book, since)?;
    let gone = heard.deep.kept(|digest| book.blob(digest))?;
    journal(book, &heard)?;
    // What no entry is about, or what is damaged in a way that nobody reads, is found last: above, damage has a place.
    if let Some(found) = book.looked().damage().map_err(|error| damaged(&error))? {
        return Err(broken(format!("{}: {found}", files::shown(book.looked().place()))));
    }
    let (own, mut notes) = keys(book, key)?;
    notes.extend(unnamed(book, &heard)?);
    let operations = render::counted(heard.deep.replay().operations().len() as u64, "operation");
    let what = format!("{}, with its journal of {operations}", files::shown(book.directory()));
    Ok(Whole { what, entries: heard.deep.entries(), root: Some(root.to_string()), verifier: own, gone, notes, proven: None })
}

/// Every entry, and every hash that is kept over them.
fn entries<'s>(book: &Book, since: Option<&'s Since>) -> Result<(Heard<'s>, Hash), Stop> {
    let heads = book.heads()?;
    let (mut heard, mut growth, mut full) = (Heard::new(since), Growth::default(), Vec::new());
    book.each(0, heads.all.size, |_, entry| {
        growth.append(Hash::of_leaf(entry), |tile, hashes, _| full.push((tile, hashes.to_vec())));
        full.drain(..).try_for_each(|(tile, hashes): (Tile, Vec<Hash>)| is_kept(book, tile, &hashes))?;
        heard.take(entry, |_| {})
    })?;
    let root = growth.tree().root();
    if root != heads.all.root {
        return Err(other_root(heads.all, root));
    }
    let (rows, tiles) = book.looked().rows_of_ledger().map_err(|error| damaged(&error))?;
    let full: u64 = (1..8).map(|level| heads.all.size >> (8 * level)).sum();
    if (rows, tiles) != (heads.all.size, full) {
        let size = heads.all.size;
        return Err(broken(format!("the ledger has {size} entries and {full} full tiles, and {rows} and {tiles} are there")));
    }
    if root_at(&mut book.hashes(heads.all.size), heads.durable.size)? != heads.durable.root {
        return Err(broken(format!("the first {} entries do not lead to the root that was durable", heads.durable.size)));
    }
    heard.extends()?;
    Ok((heard, root))
}

/// All full tiles are those of the entries: what is another is behind them, or the root that was recorded.
fn other_root(recorded: Head, root: Hash) -> Stop {
    let (size, first) = (recorded.size, recorded.size - recorded.size % converger_ledger::TILE_WIDTH);
    if first == size {
        return broken(format!("the {size} entries lead to the root {root}, and {} is recorded", recorded.root));
    }
    let last = size - 1;
    broken(format!(
        "the entries {first} to {last} lead to the root {root}, and {} is recorded: one of them is another, or the root is",
        recorded.root
    ))
    .at(first)
}

fn is_kept(book: &Book, tile: Tile, hashes: &[Hash]) -> Result<(), Stop> {
    let kept = book.tile(tile)?;
    match (0..hashes.len()).find(|at| kept.get(*at) != hashes.get(*at)) {
        None => Ok(()),
        Some(at) => {
            let index = (tile.index * converger_ledger::TILE_WIDTH + at as u64) << (8 * u32::from(tile.level));
            Err(broken(format!("entry {index} ({}): the hashes that are kept are not those of the entries", tile.path())).at(index))
        }
    }
}

/// The key that the ledger names, held against the one that was given and the one that lies beside it. That may be missing: whoever copies a
/// state directory to check it leaves the secret where it is.
fn keys(book: &Book, given: Option<&Verifier>) -> Result<(Option<Verifier>, Vec<String>), Stop> {
    let Some(named) = named(book.directory())? else {
        if given.is_some() {
            return Err(broken("the ledger names no key, and one was given"));
        }
        return Ok((None, vec!["nothing was signed yet; `converger ledger checkpoint` begins".to_owned()]));
    };
    let named = Verifier::parse(&named).map_err(|error| broken(format!("the key that the ledger names is none: {error}")))?;
    if given.is_some_and(|given| *given != named) {
        return Err(broken(format!("the ledger is signed with {named}, and not with the key that was given")));
    }
    let notes = match key_in(book.directory())? {
        Some(signer) if signer.verifier() == named => Vec::new(),
        Some(_) => {
            let key = files::shown(&book.directory().join(converger_store::KEY_FILE));
            return Err(broken(format!("{key} is not the key that the ledger names: somebody replaced it")));
        }
        None => vec!["the key that signs is not beside it".to_owned()],
    };
    Ok((Some(named), notes))
}

/// Everything in the journal is in the ledger as it is there, and everything of the ledger in the journal.
fn journal(book: &Book, heard: &Heard<'_>) -> Result<(), Stop> {
    let replay = heard.deep.replay();
    operations(book, replay)?;
    for (id, past) in replay.runs() {
        let found = book.looked().run(id).map_err(|error| damaged(&error))?;
        match found {
            None => return Err(unlogged(format!("the ledger has the run {}, and the journal does not", id.as_str()))),
            Some(found) if !is_same(&found, past) => {
                return Err(unlogged(format!("the journal tells another story of the run {} than the ledger", id.as_str())));
            }
            Some(_) => {}
        }
    }
    let runs = book.looked().runs().map_err(|error| damaged(&error))?;
    if runs != replay.runs().len() as u64 {
        return Err(unlogged(format!("the journal has {runs} runs, and the ledger {}", replay.runs().len())));
    }
    let (holds, freezes) = book.looked().in_force().map_err(|error| damaged(&error))?;
    if !holds.iter().eq(replay.holds()) {
        return Err(unlogged("the journal has other guests held than the ledger"));
    }
    if !freezes.iter().eq(replay.freezes()) {
        return Err(unlogged("the journal has other environments frozen than the ledger"));
    }
    besides(book, heard)
}

fn is_same(found: &RunHistory, (run, ended): &Past) -> bool {
    found.run == *run && found.ended == *ended
}

fn operations(book: &Book, replay: &Replay) -> Result<(), Stop> {
    let mut seen = 0;
    let mut before: Option<OperationId> = None;
    loop {
        let filter = Filter { before: before.take(), ..Filter::default() };
        let page = book.looked().operations(&filter, LIST_MAX).map_err(|error| damaged(&error))?;
        before = page.last().map(|history| history.id().clone());
        for history in &page {
            is_logged(replay, history)?;
            seen += 1;
        }
        if before.is_none() {
            break;
        }
    }
    if seen == replay.operations().len() {
        return Ok(());
    }
    for id in replay.operations().keys() {
        if book.operation(id)?.is_none() {
            return Err(unlogged(format!("the ledger has the operation {}, and the journal does not", id.as_str())));
        }
    }
    Err(unlogged("the journal has operations twice"))
}

fn is_logged(replay: &Replay, history: &History) -> Result<(), Stop> {
    let id = history.id();
    match replay.operations().get(id) {
        None => Err(unlogged(format!("the journal has the operation {}, and the ledger does not", id.as_str()))),
        Some(logged) if logged == history => Ok(()),
        Some(_) => Err(unlogged(format!("the journal tells another story of the operation {} than the ledger", id.as_str()))),
    }
}

/// What the journal has beside what holds now: what was said and taken back, what came first, and which requests act once.
fn besides(book: &Book, heard: &Heard<'_>) -> Result<(), Stop> {
    let (said, (runs, operations)) = (asked(book.looked().said())?, asked(book.looked().order())?);
    let of_hold = |(hold, _): &(Hold, _)| format!("the hold of guest {} in {}", hold.vmid, hold.environment);
    is_told("a hold", &heard.order.said.holds, &said.holds, of_hold)?;
    let of_freeze = |(freeze, _): &(Freeze, _)| format!("the freeze of {}", freeze.environment);
    is_told("a freeze", &heard.order.said.freezes, &said.freezes, of_freeze)?;
    is_told("a run", &heard.order.runs, &runs, |id| format!("the place of the run {}", id.as_str()))?;
    is_told("an operation", &heard.order.operations, &operations, |id| format!("the place of the operation {}", id.as_str()))?;
    let mut keys: Vec<KeyRow> = heard.deep.replay().operations().values().filter_map(key_of).collect();
    keys.sort();
    let mut kept = asked(book.looked().keys())?;
    kept.sort();
    is_told("an idempotency key", &keys, &kept, |row| format!("the idempotency key of the operation {}", row.operation.as_str()))
}

/// The key that an operation is known by, where it has one.
fn key_of(history: &History) -> Option<KeyRow> {
    let Operation { environment, id, source: Source::OneShot { key, request }, .. } = &*history.operation else { return None };
    Some(KeyRow { environment: environment.clone(), key: key.clone(), request: *request, operation: id.clone() })
}

/// Whether the journal has the same rows in the same order as the ledger.
fn is_told<T: PartialEq>(what: &str, logged: &[T], kept: &[T], of: impl Fn(&T) -> String) -> Result<(), Stop> {
    let at = logged.iter().zip(kept).take_while(|(one, other)| one == other).count();
    match (logged.get(at), kept.get(at)) {
        (None, None) => Ok(()),
        (Some(row), Some(_)) => Err(unlogged(format!("the journal tells another story of {} than the ledger", of(row)))),
        (Some(row), None) => Err(unlogged(format!("the ledger has {what} that the journal does not have: {}", of(row)))),
        (None, Some(row)) => Err(unlogged(format!("the journal has {what} that the ledger does not have: {}", of(row)))),
    }
}

/// What is kept and no entry names: somebody was interrupted while writing it, or put it there. It proves nothing and harms nothing.
fn unnamed(book: &Book, heard: &Heard<'_>) -> Result<Option<String>, Stop> {
    let mut digests = asked(book.looked().digests())?;
    digests.retain(|digest| !heard.deep.is_named(digest));
    let first = digests.first().map(|first| {
        let is = if digests.len() == 1 { "is" } else { "are" };
        format!("{} {is} kept that no entry names, the first as {first}", render::counted(digests.len() as u64, "thing"))
    });
    Ok(first)
}

fn asked<T>(answer: Result<T, StoreError>) -> Result<T, Stop> {
    answer.map_err(|error| damaged(&error))
}
