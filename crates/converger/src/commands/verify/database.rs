//! A state directory: the ledger in its database, and the journal beside it, which must say the same (C7).
//!
//! Nothing is opened for writing: a copy on a disk that cannot be written to is checked like any other.

use converger_core::artifact::Digest;
use converger_core::failure::Code;
use converger_ledger::{Growth, Hash, TILE_WIDTH, Tile, Verifier, root_at};
use converger_runtime::LedgerReader;
use converger_runtime::ledger_key::{is_next, key_in};
use converger_store::{Head, StoreError};

use super::super::Stop;
use super::super::ledger::{broken, damaged};
use super::{Since, Whole, heard::Heard};
use crate::{files, render};

pub(super) fn verify(book: &LedgerReader, key: Option<&Verifier>, since: Option<&Since>) -> Result<Whole, Stop> {
    let (heard, root) = entries(book, since)?;
    let own = named(&heard)?;
    heard.since_is_signed(key)?;
    heard.extends()?;
    let gone = heard.deep.kept(|digest| book.blob(digest))?;
    journal(book, &heard)?;
    // What no entry is about, or what is damaged in a way that nobody reads, is found last: above, damage has a place.
    if let Some(found) = book.looked().damage().map_err(|error| damaged(&error))? {
        return Err(broken(format!("{}: {found}", files::shown(book.looked().place()))));
    }
    no_stranger(book, &heard)?;
    let mut notes = keys(book, own.as_ref(), key)?;
    let size = heard.deep.entries();
    notes.extend(heard.attested(|at| Ok(root_at(&mut book.hashes(size), at)?))?);
    let operations = render::counted(heard.deep.replay().operations().len() as u64, "operation");
    let what = format!("{}, with its journal of {operations}", files::shown(book.directory()));
    Ok(Whole {
        what,
        entries: heard.deep.entries(),
        root: Some(root.to_string()),
        verifier: own,
        gone,
        notes,
        proven: None,
        is_key_unverified: false,
    })
}

/// Every entry, and every hash that is kept over them.
fn entries<'s>(book: &LedgerReader, since: Option<&'s Since>) -> Result<(Heard<'s>, Hash), Stop> {
    let heads = book.heads()?;
    let (mut heard, mut growth, mut full, mut wrong) = (Heard::new(since), Growth::default(), Vec::new(), None);
    let hashed = book.each::<Stop>(0, heads.all.size, |index, entry| {
        growth.append(Hash::of_leaf(entry), |tile, hashes, _| full.push((tile, hashes.to_vec())));
        if wrong.is_none() {
            wrong = heard.take(entry, |_| {}).err();
        }
        full.drain(..).try_for_each(|(tile, hashes): (Tile, Vec<Hash>)| is_kept(book, tile, &hashes))?;
        // Hashes are kept over full tiles: an entry before this one may be found to be another when the tile is full, and not earlier.
        let is_full = (index + 1).is_multiple_of(TILE_WIDTH);
        wrong.take_if(|_| is_full).map_or(Ok(()), Err)
    });
    match (wrong, hashed) {
        // At one entry, what it says tells more than that its hash is another: neither of the two is signed here.
        (Some(said), Err(hashed)) => return Err(if hashed.index() < said.index() { hashed } else { said }),
        (said, hashed) => hashed.and(said.map_or(Ok(()), Err))?,
    }
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
    Ok((heard, root))
}

/// All full tiles are those of the entries: what is another is behind them, or the root that was recorded.
fn other_root(recorded: Head, root: Hash) -> Stop {
    let (size, first) = (recorded.size, recorded.size - recorded.size % TILE_WIDTH);
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

fn is_kept(book: &LedgerReader, tile: Tile, hashes: &[Hash]) -> Result<(), Stop> {
    let place = |at: u64| (tile.index * TILE_WIDTH + at) << (8 * u32::from(tile.level));
    let Some(kept) = asked(book.looked().full_tile(tile))? else {
        let index = place(0);
        return Err(broken(format!("entry {index} ({}): the hashes over it are missing", tile.path())).at(index));
    };
    match (0..hashes.len()).find(|at| kept.get(*at) != hashes.get(*at)) {
        None => Ok(()),
        Some(at) => {
            let index = place(at as u64);
            Err(broken(format!("entry {index} ({}): the hashes that are kept are not those of the entries", tile.path())).at(index))
        }
    }
}

/// The key that the entries name, if they name one.
fn named(heard: &Heard<'_>) -> Result<Option<Verifier>, Stop> {
    let named = heard.deep.replay().keys().last().map(|named| Verifier::parse(named));
    named.transpose().map_err(|error| broken(format!("the key that the ledger names is none: {error}")))
}

/// The key that the ledger names, held against the one that was given and the one that lies beside it. That may be missing: whoever copies a
/// state directory to check it leaves the secret where it is.
fn keys(book: &LedgerReader, named: Option<&Verifier>, given: Option<&Verifier>) -> Result<Vec<String>, Stop> {
    let Some(named) = named else {
        if given.is_some() {
            return Err(broken("the ledger names no key, and one was given"));
        }
        return Ok(vec!["nothing was signed yet; `converger ledger checkpoint` begins".to_owned()]);
    };
    if given.is_some_and(|given| given != named) {
        return Err(broken(format!("the ledger is signed with {named}, and not with the key that was given")));
    }
    match key_in(book.directory())? {
        Some(signer) if signer.verifier() == *named => Ok(Vec::new()),
        _ if is_next(book.directory(), &named.to_string())? => {
            Ok(vec!["the key was replaced, and is not in its place yet: the next command that signs puts it there".to_owned()])
        }
        Some(_) => {
            let key = files::shown(&book.directory().join(converger_store::KEY_FILE));
            Err(broken(format!("{key} is not the key that the ledger names: somebody replaced it")))
        }
        None => Ok(vec!["the key that signs is not beside it".to_owned()]),
    }
}

/// Everything in the journal is in the ledger as it is there, and everything of the ledger in the journal.
fn journal(book: &LedgerReader, heard: &Heard<'_>) -> Result<(), Stop> {
    let found = asked(book.looked().disagreement(heard.deep.replay(), &heard.told))?;
    found.map_or(Ok(()), |found| {
        let stop = Stop::broken(Code::UnloggedExecution, found.to_string());
        Err(if let Some(index) = found.index { stop.at(index) } else { stop })
    })
}

/// Everything that is kept is named by an entry: both are written in one transaction, so that what none names was put there by other means.
fn no_stranger(book: &LedgerReader, heard: &Heard<'_>) -> Result<(), Stop> {
    let mut digests = asked(book.looked().digests())?;
    digests.retain(|digest| !heard.deep.is_named(digest));
    let Some(first) = digests.first() else { return Ok(()) };
    let is = if digests.len() == 1 { "is" } else { "are" };
    let found = book.blob(*first)?.map(|bytes| Digest::of_bytes(&bytes)).filter(|found| found != first);
    let wrong = found.map(|found| format!("; its bytes have the digest {found}")).unwrap_or_default();
    let count = render::counted(digests.len() as u64, "thing");
    Err(broken(format!("{count} {is} kept that no entry names, the first as {first}{wrong}")))
}

fn asked<T>(answer: Result<T, StoreError>) -> Result<T, Stop> {
    answer.map_err(|error| damaged(&error))
}
