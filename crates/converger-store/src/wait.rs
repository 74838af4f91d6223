//! Waits for a future of a store without an async runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future of a store; it blocks this thread until then. Reads of a [`StoreView`](crate::StoreView) complete at once.
///
/// The threads of the store complete the future, so it makes progress even on a thread of a runtime.
pub fn wait_for<F: Future>(future: F) -> F::Output {
    // Inside of a tokio task the task's budget would stay used up for as long as this thread is here, and the future pending for ever.
    let mut future = pin!(tokio::task::unconstrained(future));
    let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn waits_for_an_answer_of_another_thread() {
        let (sender, answer) = oneshot::channel();
        let other = thread::spawn(move || sender.send(7));
        assert_eq!(wait_for(answer), Ok(7));
        assert_eq!(other.join().expect("it ends"), Ok(()));
    }

    #[test]
    fn waits_more_often_than_the_budget_of_one_task_allows() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let total = runtime.block_on(async {
            let answer = |number: u64| {
                let (sender, answer) = oneshot::channel();
                sender.send(number).expect("received");
                wait_for(answer).expect("sent")
            };
            (0..1000).map(answer).sum::<u64>()
        });
        assert_eq!(total, 499_500);
    }
}
