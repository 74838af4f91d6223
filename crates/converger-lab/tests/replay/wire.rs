//! Bytes on the wire, played to a server of the world as it stands.
//!
//! What never enters here: judgement of a body (see `compare`).

use converger_lab::World;
use converger_lab::server::{Clock, Server};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::compare::{compare_body, fits};
use crate::fixture::{Body, Wire};
use crate::lab::{Caller, Heard, Lab, identity, options, paused, trusting};

/// Say everything, listen to everything, and see when the connection ends. What it does to the world stays.
pub(crate) fn play(world: &mut World, wire: &Wire) -> Result<(), String> {
    let mut outcome = Ok(());
    paused(async {
        let identity = identity();
        let tls = trusting(&identity);
        let server = Server::of(world.clone(), options(Clock::Virtual { step_ms: 0 }, identity)).expect("a server");
        let lab = Lab { server, tls, node: "pve1" };
        outcome = if wire.is_plain { talk(lab.plain(), wire).await } else { talk(lab.call().await, wire).await };
        *world = lab.server.world().lock().clone();
    });
    outcome
}

async fn talk<S: AsyncRead + AsyncWrite + Unpin>(mut caller: Caller<S>, wire: &Wire) -> Result<(), String> {
    caller.say(&wire.said).await;
    for (lines, body) in &wire.answers {
        let heard = caller.hear().await.ok_or("the connection ended before the answer")?;
        compare(lines, body, &heard)?;
    }
    let closed_ms = caller.ends_after_ms().await;
    if closed_ms == wire.closed_ms { Ok(()) } else { Err(format!("closed after {closed_ms} ms, expected after {}", wire.closed_ms)) }
}

fn compare(lines: &[String], body: &Body, heard: &Heard) -> Result<(), String> {
    let headers = heard.headers.iter().map(|(name, value)| format!("{name}: {value}"));
    let found: Vec<String> = std::iter::once(heard.line.clone()).chain(headers).collect();
    let agree = lines.len() == found.len() && lines.iter().zip(&found).all(|(wanted, found)| fits(wanted, found));
    if !agree {
        return Err(format!("expected {lines:?}, got {found:?}"));
    }
    compare_body(body, &heard.body)
}
