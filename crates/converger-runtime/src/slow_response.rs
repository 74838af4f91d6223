//! Announces a slow response once, so that a person learns what the program waits for while a lost connection is not yet detected.
//!
//! The client decides how long a response may take.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use converger_core::apply::RunId;
use converger_core::guest::NodeName;
use futures_util::future::{Either, select};

use crate::event::{EventSink, RunEvent};

/// A response that takes longer is announced.
const SLOW_AFTER: Duration = Duration::from_secs(2);

/// Where a request comes from and goes to.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestSource {
    /// The run; none during recovery.
    pub(crate) run: Option<RunId>,
    /// The node that answers, if only one can.
    pub(crate) node: Option<NodeName>,
}

/// Publishes [`RunEvent::ResponseSlow`] once, and again only after a response in between.
pub(crate) struct SlowResponseNotice {
    events: Arc<dyn EventSink>,
    /// With a lab's clock time advances with responses, so none is slow.
    is_real_time: bool,
    is_published: AtomicBool,
}

impl SlowResponseNotice {
    pub(crate) fn new(events: Arc<dyn EventSink>, is_real_time: bool) -> Self {
        Self { events, is_real_time, is_published: AtomicBool::new(false) }
    }

    /// The response, whenever it arrives.
    pub(crate) async fn watch<T>(&self, source: RequestSource, response: impl Future<Output = T>) -> T {
        if !self.is_real_time {
            return response.await;
        }
        self.watch_with(source, response, tokio::time::sleep(SLOW_AFTER)).await
    }

    async fn watch_with<T>(&self, source: RequestSource, response: impl Future<Output = T>, slow: impl Future<Output = ()>) -> T {
        match select(pin!(response), pin!(slow)).await {
            Either::Left((response, _)) => {
                self.is_published.store(false, Ordering::SeqCst);
                response
            }
            Either::Right(((), response)) => {
                if !self.is_published.swap(true, Ordering::SeqCst) {
                    let RequestSource { run, node } = source;
                    self.events.publish(RunEvent::ResponseSlow { run, node });
                }
                response.await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::atomic::AtomicUsize;

    use futures_util::FutureExt as _;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    fn source() -> RequestSource {
        RequestSource { run: RunId::new("6afb4282-1"), node: NodeName::new("pve1") }
    }

    impl EventSink for Count {
        fn publish(&self, event: RunEvent) {
            let RunEvent::ResponseSlow { run, node } = event else { panic!("{event:?}") };
            assert_eq!((run, node), (source().run, source().node));
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn slow_response_is_announced_once_and_again_only_after_a_response() {
        let count = Arc::new(Count::default());
        let notice = SlowResponseNotice::new(Arc::clone(&count) as Arc<dyn EventSink>, true);
        let announced = || count.0.load(Ordering::SeqCst);
        let late = || notice.watch_with(source(), tokio::task::yield_now(), ready(()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(late());
        runtime.block_on(late());
        assert_eq!(announced(), 1, "several responses are late, and it is announced once");
        assert_eq!(notice.watch_with(source(), ready(7), pending()).now_or_never(), Some(7));
        assert_eq!(announced(), 1, "a response in time is not announced");
        runtime.block_on(late());
        assert_eq!(announced(), 2);
    }
}
