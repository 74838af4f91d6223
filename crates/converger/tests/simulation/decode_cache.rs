//! What was read out of answers before: the codec is pure, and the same answer to the same command means the same. In many worlds most
//! answers are given more than once, byte for byte.
//!
//! An answer is known by the command and by all of its bytes, which are compared; where assertions are on, what is remembered is read again,
//! too. What never enters: any reading but the codec's own.

use std::cell::RefCell;

use converger_adapters::proxmox::codec::{self, HttpResponse, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure};

use super::wire::ShapeHasher;

/// So many answers are remembered, each in its place: another one that belongs there takes it.
const SLOTS: usize = 1 << 10;

/// So many words of an answer say where it belongs.
const HASHED_WORDS: usize = 24;

/// An answer, and what the codec made of it.
struct DecodedAnswer {
    command: ProxmoxCommand,
    body: Vec<u8>,
    event: ProxmoxEvent,
}

thread_local! {
    static CACHE: RefCell<Vec<Option<Box<DecodedAnswer>>>> = RefCell::new((0..SLOTS).map(|_| None).collect());
}

/// What the codec makes of an answer.
pub(crate) fn decode_cached(command: &ProxmoxCommand, answer: &HttpResponse) -> Result<ProxmoxEvent, ProxmoxFailure> {
    // What is no yes is seldom, and has more to it than its body.
    if answer.status != 200 {
        return codec::decode(command, answer);
    }
    let place = slot_of(&answer.body);
    let known = CACHE
        .with_borrow(|known| known.get(place)?.as_ref().filter(|known| known.matches(command, answer)).map(|known| known.event.clone()));
    if let Some(event) = known {
        debug_assert_eq!(Ok(&event), codec::decode(command, answer).as_ref(), "{command:?}");
        return Ok(event);
    }
    let event = codec::decode(command, answer)?;
    let own = DecodedAnswer { command: command.clone(), body: answer.body.clone(), event: event.clone() };
    CACHE.with_borrow_mut(|known| known[place] = Some(Box::new(own)));
    Ok(event)
}

/// Where an answer belongs, by some of its words: which one stands there is compared anyway.
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
