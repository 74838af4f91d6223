//! Waits for the first of two futures.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// The future that completed first.
pub(super) enum RaceWinner<L, R> {
    Left(L),
    Right(R),
}

/// Waits for one of two futures. The left one is polled first; the other one is dropped.
pub(super) async fn race<L, R>(left: impl Future<Output = L>, right: impl Future<Output = R>) -> RaceWinner<L, R> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|context| {
        if let Poll::Ready(value) = left.as_mut().poll(context) {
            return Poll::Ready(RaceWinner::Left(value));
        }
        right.as_mut().poll(context).map(RaceWinner::Right)
    })
    .await
}
