//! A cache of decoded responses. The codec is pure, and most responses occur more than once in many worlds, byte for byte.
//!
//! The key is the command and all bytes of the response, which are compared. With debug assertions, cached results are decoded again and
//! compared. Nothing but the codec's own result is cached.

use std::cell::RefCell;

use converger_adapters::proxmox::codec::{self, HttpResponse, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure};

use super::wire::ShapeHasher;

/// Number of slots; a response with the same slot replaces the previous one.
const SLOTS: usize = 1 << 10;

/// Number of words of a response that determine its slot.
const HASHED_WORDS: usize = 24;

/// A response and its decoded event.
struct DecodedAnswer {
    command: ProxmoxCommand,
    body: Vec<u8>,
    event: ProxmoxEvent,
}

thread_local! {
    static CACHE: RefCell<Vec<Option<Box<DecodedAnswer>>>> = RefCell::new((0..SLOTS).map(|_| None).collect());
}

/// Decodes a response, with the cache.
pub(crate) fn decode_cached(command: &ProxmoxCommand, answer: &HttpResponse) -> Result<ProxmoxEvent, ProxmoxFailure> {
    // Failures are rare and depend on more than the body.
    if answer.status != 200 {
        return codec::decode(command, answer);
    }
    let slot = slot_of(&answer.body);
    let known = CACHE
        .with_borrow(|known| known.get(slot)?.as_ref().filter(|known| known.matches(command, answer)).map(|known| known.event.clone()));
    if let Some(event) = known {
        debug_assert_eq!(Ok(&event), codec::decode(command, answer).as_ref(), "{command:?}");
        return Ok(event);
    }
    let event = codec::decode(command, answer)?;
    let own = DecodedAnswer { command: command.clone(), body: answer.body.clone(), event: event.clone() };
    CACHE.with_borrow_mut(|known| known[slot] = Some(Box::new(own)));
    Ok(event)
}

/// The slot of a response, from some of its words; the full response is compared anyway.
fn slot_of(body: &[u8]) -> usize {
    let (eights, rest) = body.as_chunks::<8>();
    let mut mix = ShapeHasher::new(0);
    mix.add_bytes(rest);
    let every = eights.len() / HASHED_WORDS + 1;
    eights.iter().step_by(every).for_each(|eight| mix.add_word(u64::from_le_bytes(*eight)));
    usize::try_from(mix.finish()).unwrap_or(0) % SLOTS
}

impl DecodedAnswer {
    fn matches(&self, command: &ProxmoxCommand, answer: &HttpResponse) -> bool {
        self.body == answer.body && self.command == *command
    }
}
