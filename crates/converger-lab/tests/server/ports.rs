//! The lab on real ports of the loopback: who may come in, when a port is open, and the end.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;

use converger_lab::server::{Clock, Place, ServeError, Server, Shared};
use converger_lab::{Act, Part, RequestFault, Setting, Twist};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::lab::{Caller, LOOPBACK, WORLD, get, identity, options, real, server_name, trusting};

/// A lab that runs.
struct Running {
    places: Vec<Place>,
    world: Shared,
    tls: TlsConnector,
    end: oneshot::Sender<()>,
    done: JoinHandle<()>,
}

impl Running {
    async fn start(connections_max: usize) -> Self {
        let identity = identity();
        let tls = trusting(&identity);
        let setting = Setting::from_yaml(WORLD).expect("a setting");
        let server = Server::bind(&setting, options(Clock::Virtual { step_ms: 1 }, identity)).await.expect("bound");
        let server = server.with_connections_max(connections_max);
        let (places, world) = (server.places().cloned().collect(), server.world());
        let (end, ended) = oneshot::channel::<()>();
        let done = tokio::spawn(server.run(async { drop(ended.await) }));
        Self { places, world, tls, end, done }
    }

    async fn call(&self, place: usize) -> io::Result<Caller<TlsStream<TcpStream>>> {
        let stream = TcpStream::connect(self.places[place].address).await?;
        self.tls.connect(server_name("localhost"), stream).await.map(Caller::new)
    }

    async fn ask(&self, place: usize, request: &str) -> String {
        let mut caller = self.call(place).await.unwrap_or_else(|error| panic!("{error}"));
        caller.ask(request).await.line
    }

    /// Lets something happen, and the ports follow.
    async fn act(&self, act: Act) {
        self.world.lock().act(0, act);
        self.world.settled().await;
    }

    async fn refuses(&self, place: usize) -> bool {
        TcpStream::connect(self.places[place].address).await.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    }

    async fn stop(self) {
        drop(self.end);
        self.done.await.expect("no panic");
    }
}

/// Lets something go on as far as it can just now; whether it is done.
async fn goes_on<T>(mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[test]
fn every_node_answers_on_its_own_port() {
    real(async {
        let lab = Running::start(100).await;
        for place in 0..2 {
            assert_eq!(lab.ask(place, &get("/version")).await, "HTTP/1.1 200 OK");
        }
        let entries: Vec<String> = lab.world.lock().records().map(|record| record.entry.clone()).collect();
        assert_eq!(entries, ["a", "b"]);
        lab.stop().await;
    });
}

#[test]
fn a_node_that_is_down_refuses_and_comes_back_on_the_same_port() {
    real(async {
        let lab = Running::start(100).await;
        let mut kept = lab.call(0).await.expect("connected");
        assert_eq!(kept.ask(&get("/version")).await.line, "HTTP/1.1 200 OK");
        for (down, up) in [
            (Act::NodeDown("a".to_owned()), Act::NodeUp("a".to_owned())),
            (Act::ServiceDown("a".to_owned(), Part::Proxy), Act::ServiceUp("a".to_owned(), Part::Proxy)),
        ] {
            lab.act(down).await;
            assert!(lab.refuses(0).await);
            assert_eq!(lab.ask(1, &get("/version")).await, "HTTP/1.1 200 OK", "the other node is there");
            lab.act(up).await;
            assert_eq!(lab.ask(0, &get("/version")).await, "HTTP/1.1 200 OK");
        }
        lab.act(Act::NodeDown("a".to_owned())).await;
        let other = TcpSocket::new_v4().expect("a socket");
        assert!(other.bind(lab.places[0].address).is_err(), "nobody else gets its port by chance");
        kept.say(&get("/version")).await;
        assert_eq!(kept.hear().await, None, "a connection from before breaks");
        lab.stop().await;
    });
}

#[test]
fn where_only_requests_move_the_clock_somebody_can_always_ask() {
    real(async {
        let lab = Running::start(100).await;
        lab.act(Act::NodeDown("b".to_owned())).await;
        assert!(lab.refuses(1).await);
        lab.act(Act::NodeDown("a".to_owned())).await;
        let mut caller = lab.call(0).await.expect("it takes the connection");
        caller.say(&get("/version")).await;
        assert_eq!(caller.hear().await, None, "and nothing else");
        lab.stop().await;
    });
}

#[test]
fn no_more_come_in_than_there_is_room_for() {
    real(async {
        // Two for each node.
        let lab = Running::start(4).await;
        let mut inside = vec![lab.call(0).await.expect("the first"), lab.call(0).await.expect("the second")];
        let mut third = Box::pin(lab.call(0));
        for _ in 0..20 {
            assert!(goes_on(third.as_mut()).await.is_none(), "there is no room");
            for caller in &mut inside {
                assert_eq!(caller.ask(&get("/version")).await.line, "HTTP/1.1 200 OK");
            }
        }
        assert_eq!(lab.ask(1, &get("/version")).await, "HTTP/1.1 200 OK", "the other node has room of its own");
        drop(inside.pop());
        let mut third = third.await.expect("there is room again");
        assert_eq!(third.ask(&get("/version")).await.line, "HTTP/1.1 200 OK");
        lab.stop().await;
    });
}

#[test]
fn a_thousand_who_come_and_go_leave_nothing_behind() {
    real(async {
        let lab = Running::start(8).await;
        for round in 0..1_000 {
            let stream = TcpStream::connect(lab.places[round % 2].address).await.expect("connected");
            if round % 3 == 0 {
                let _ = Caller::new(stream).try_say(b"hello\r\n").await;
            }
        }
        assert_eq!(lab.ask(0, &get("/version")).await, "HTTP/1.1 200 OK");
        lab.stop().await;
    });
}

#[test]
fn the_end_waits_for_nobody() {
    real(async {
        let lab = Running::start(100).await;
        lab.world
            .lock()
            .add_request_fault(RequestFault { twist: Some(Twist::Drip { bytes: 1, every_ms: 3_600_000 }), ..RequestFault::default() });
        let mut slow = lab.call(0).await.expect("connected");
        slow.say(&get("/version")).await;
        assert!(slow.more().await, "the first byte");
        let idle = lab.call(1).await.expect("connected");
        let half = TcpStream::connect(lab.places[0].address).await.expect("connected");
        let address = lab.places[0].address;
        lab.stop().await;
        assert!(!slow.more().await, "cut off");
        assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
        drop((idle, half));
    });
}

#[test]
fn a_port_that_cannot_be_had_is_named() {
    real(async {
        let setting = Setting::from_yaml(WORLD).expect("a setting");
        let fails = async |address: SocketAddr| {
            let options = converger_lab::server::Options { listen: address, ..options(Clock::Virtual { step_ms: 1 }, identity()) };
            Server::bind(&setting, options).await.err().map(|error| error.to_string()).unwrap_or_else(|| panic!("bound"))
        };
        let taken = TcpListener::bind(SocketAddr::new(LOOPBACK, 0)).await.expect("a port");
        let address = taken.local_addr().expect("an address");
        assert!(fails(address).await.starts_with(&format!("cannot listen on {address}: ")));
        let last = SocketAddr::new(LOOPBACK, u16::MAX);
        assert_eq!(fails(last).await, "2 nodes need as many ports, and after 65535 there are not enough");
    });
}

#[test]
fn a_setting_that_makes_no_world_is_not_served() {
    real(async {
        let setting = Setting::from_yaml("nodes: {}").expect("a setting");
        let refused = Server::bind(&setting, options(Clock::Virtual { step_ms: 1 }, identity())).await;
        assert!(matches!(refused, Err(ServeError::Setting(fault)) if fault == "a world needs a node"));
    });
}
