//! A state directory: the ledger in its database, and the journal beside it, which must say the same.

use converger_core::apply::{History, OperationId};
use converger_core::evidence::Replay;
use converger_ledger::{Growth, Hash, Tile, Verifier};
use converger_store::{Filter, LIST_MAX, Store as _};

use super::super::Stop;
use super::super::ledger::{Book, broken, known, root_at};
use super::super::memory;
use super::{Whole, deep::Deep, unlogged};
use crate::files;

pub(super) fn verify(book: &Book, key: Option<Verifier>) -> Result<Whole, Stop> {
    let heads = book.heads()?;
    let (mut deep, mut growth, mut full) = (Deep::default(), Growth::default(), Vec::new());
    book.each(0, heads.all.size, |index, entry| {
        growth.append(Hash::of_leaf(entry), |tile, hashes, _| full.push((tile, hashes.to_vec())));
        full.drain(..).try_for_each(|(tile, hashes): (Tile, Vec<Hash>)| is_kept(book, tile, &hashes))?;
        deep.take(index, entry)
    })?;
    if growth.tree().root() != heads.all.root {
        let text = format!("the {} entries lead to the root {}, and {} is recorded", heads.all.size, growth.tree().root(), heads.all.root);
        return Err(broken(text));
    }
    if root_at(book, heads.durable.size, heads.all.size)? != heads.durable.root {
        return Err(broken(format!("the first {} entries do not lead to the root that was durable", heads.durable.size)));
    }
    let gone = deep.gone(|digest| book.blob(digest))?;
    journal(book, &deep.replay)?;
    let own = known(book.directory())?.map(|signer| signer.verifier());
    if let (Some(key), Some(own)) = (&key, &own)
        && key != own
    {
        return Err(broken(format!("the ledger is signed with {own}, and not with the key that was given")));
    }
    let notes = if own.is_none() { vec!["nothing was signed yet; `converger ledger checkpoint` begins".to_owned()] } else { Vec::new() };
    let what = format!("{}, with its journal of {} operations", files::shown(book.directory()), deep.replay.operations().len());
    let (entries, root) = (heads.all.size, Some(heads.all.root.to_string()));
    Ok(Whole { what, entries, root, verifier: own, gone, notes })
}

fn is_kept(book: &Book, tile: Tile, hashes: &[Hash]) -> Result<(), Stop> {
    let kept = book.tile(tile)?;
    match (0..hashes.len()).find(|at| kept.get(*at) != hashes.get(*at)) {
        None => Ok(()),
        Some(at) => {
            let index = (tile.index * 256 + at as u64) << (8 * u32::from(tile.level));
            Err(broken(format!("entry {index} ({}): the hashes that are kept are not those of the entries", tile.path())))
        }
    }
}

/// Every operation of the journal is in the ledger as it is there, and every one of the ledger in the journal.
fn journal(book: &Book, replay: &Replay) -> Result<(), Stop> {
    let mut seen = 0;
    let mut before: Option<OperationId> = None;
    loop {
        let filter = Filter { before: before.take(), ..Filter::default() };
        let page = book.memory().wait(book.memory().store.operations(filter, LIST_MAX)).map_err(|error| memory::failed(&error))?;
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
        let found = book.memory().wait(book.memory().store.operation(id.clone())).map_err(|error| memory::failed(&error))?;
        if found.is_none() {
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
