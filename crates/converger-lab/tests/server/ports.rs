//! The lab on real loopback ports: connection limits, opening and closing of ports, shutdown.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;

use converger_lab::server::{ClockMode, LabServer, ServeError, ServedNode, SharedWorld};
use converger_lab::{NodeService, RequestFault, ResponseFault, WorldEvent, WorldSpec};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::lab::{LOOPBACK, TestClient, WORLD, get_request, run_real, server_name, server_options, test_certificates, trusting_connector};

/// A running lab.
struct RunningLabServer {
    nodes: Vec<ServedNode>,
    world: SharedWorld,
    tls: TlsConnector,
    end: oneshot::Sender<()>,
    done: JoinHandle<()>,
}

impl RunningLabServer {
    async fn start(connections_max: usize) -> Self {
        let identity = test_certificates();
        let tls = trusting_connector(&identity);
        let spec = WorldSpec::from_yaml(WORLD).expect("a setting");
        let server = LabServer::bind(&spec, server_options(ClockMode::Virtual { step_ms: 1 }, identity)).await.expect("bound");
        let server = server.with_connections_max(connections_max);
        let (nodes, world) = (server.served_nodes().cloned().collect(), server.world());
        let (end, end_signal) = oneshot::channel::<()>();
        let done = tokio::spawn(server.run(async { drop(end_signal.await) }));
        Self { nodes, world, tls, end, done }
    }

    async fn connect(&self, node_index: usize) -> io::Result<TestClient<TlsStream<TcpStream>>> {
        let stream = TcpStream::connect(self.nodes[node_index].address).await?;
        self.tls.connect(server_name("localhost"), stream).await.map(TestClient::new)
    }

    async fn request(&self, node_index: usize, request: &str) -> String {
        let mut caller = self.connect(node_index).await.unwrap_or_else(|error| panic!("{error}"));
        caller.request(request).await.line
    }

    /// Applies an event and waits until the ports follow.
    async fn apply_event(&self, event: WorldEvent) {
        self.world.lock().apply_event(0, event);
        self.world.wait_for_ports().await;
    }

    async fn is_connection_refused(&self, node_index: usize) -> bool {
        TcpStream::connect(self.nodes[node_index].address).await.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    }

    async fn stop(self) {
        drop(self.end);
        self.done.await.expect("no panic");
    }
}

/// Polls a future once; returns its result if it is ready.
async fn poll_once<T>(mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[test]
fn every_node_answers_on_its_own_port() {
    run_real(async {
        let lab = RunningLabServer::start(100).await;
        for node_index in 0..2 {
            assert_eq!(lab.request(node_index, &get_request("/version")).await, "HTTP/1.1 200 OK");
        }
        let entries: Vec<String> = lab.world.lock().records().map(|record| record.entry.clone()).collect();
        assert_eq!(entries, ["a", "b"]);
        lab.stop().await;
    });
}

#[test]
fn stopped_nodes_refuse_connections_and_return_on_the_same_port() {
    run_real(async {
        let lab = RunningLabServer::start(100).await;
        let mut client = lab.connect(0).await.expect("connected");
        assert_eq!(client.request(&get_request("/version")).await.line, "HTTP/1.1 200 OK");
        for (down, up) in [
            (WorldEvent::NodeDown("a".to_owned()), WorldEvent::NodeUp("a".to_owned())),
            (WorldEvent::ServiceDown("a".to_owned(), NodeService::Proxy), WorldEvent::ServiceUp("a".to_owned(), NodeService::Proxy)),
        ] {
            lab.apply_event(down).await;
            assert!(lab.is_connection_refused(0).await);
            assert_eq!(lab.request(1, &get_request("/version")).await, "HTTP/1.1 200 OK", "the other node still responds");
            lab.apply_event(up).await;
            assert_eq!(lab.request(0, &get_request("/version")).await, "HTTP/1.1 200 OK");
        }
        lab.apply_event(WorldEvent::NodeDown("a".to_owned())).await;
        let other = TcpSocket::new_v4().expect("a socket");
        assert!(other.bind(lab.nodes[0].address).is_err(), "no other process can get its port");
        client.send(&get_request("/version")).await;
        assert_eq!(client.read_response().await, None, "an earlier connection breaks");
        lab.stop().await;
    });
}

#[test]
fn with_a_virtual_clock_some_port_always_stays_open() {
    run_real(async {
        let lab = RunningLabServer::start(100).await;
        lab.apply_event(WorldEvent::NodeDown("b".to_owned())).await;
        assert!(lab.is_connection_refused(1).await);
        lab.apply_event(WorldEvent::NodeDown("a".to_owned())).await;
        let mut caller = lab.connect(0).await.expect("the connection is accepted");
        caller.send(&get_request("/version")).await;
        assert_eq!(caller.read_response().await, None, "and no response is sent");
        lab.stop().await;
    });
}

#[test]
fn connections_are_limited() {
    run_real(async {
        // Two per node.
        let lab = RunningLabServer::start(4).await;
        let mut inside = vec![lab.connect(0).await.expect("the first"), lab.connect(0).await.expect("the second")];
        let mut third = Box::pin(lab.connect(0));
        for _ in 0..20 {
            assert!(poll_once(third.as_mut()).await.is_none(), "the limit is reached");
            for caller in &mut inside {
                assert_eq!(caller.request(&get_request("/version")).await.line, "HTTP/1.1 200 OK");
            }
        }
        assert_eq!(lab.request(1, &get_request("/version")).await, "HTTP/1.1 200 OK", "the other node has its own limit");
        drop(inside.pop());
        let mut third = third.await.expect("a place is free again");
        assert_eq!(third.request(&get_request("/version")).await.line, "HTTP/1.1 200 OK");
        lab.stop().await;
    });
}

#[test]
fn a_thousand_short_connections_leak_nothing() {
    run_real(async {
        let lab = RunningLabServer::start(8).await;
        for round in 0..1_000 {
            let stream = TcpStream::connect(lab.nodes[round % 2].address).await.expect("connected");
            if round % 3 == 0 {
                let _ = TestClient::new(stream).try_send(b"hello\r\n").await;
            }
        }
        assert_eq!(lab.request(0, &get_request("/version")).await, "HTTP/1.1 200 OK");
        lab.stop().await;
    });
}

#[test]
fn shutdown_does_not_wait_for_clients() {
    run_real(async {
        let lab = RunningLabServer::start(100).await;
        lab.world.lock().add_request_fault(RequestFault {
            fault: Some(ResponseFault::Drip { bytes: 1, every_ms: 3_600_000 }),
            ..RequestFault::default()
        });
        let mut slow = lab.connect(0).await.expect("connected");
        slow.send(&get_request("/version")).await;
        assert!(slow.read_more().await, "the first byte");
        let idle = lab.connect(1).await.expect("connected");
        let half = TcpStream::connect(lab.nodes[0].address).await.expect("connected");
        let address = lab.nodes[0].address;
        lab.stop().await;
        assert!(!slow.read_more().await, "the response is cut off");
        assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
        drop((idle, half));
    });
}

#[test]
fn unavailable_ports_are_named() {
    run_real(async {
        let spec = WorldSpec::from_yaml(WORLD).expect("a setting");
        let fails = async |address: SocketAddr| {
            let options = converger_lab::server::ServerOptions {
                listen: address,
                ..server_options(ClockMode::Virtual { step_ms: 1 }, test_certificates())
            };
            LabServer::bind(&spec, options).await.err().map(|error| error.to_string()).unwrap_or_else(|| panic!("bound"))
        };
        let occupied = TcpListener::bind(SocketAddr::new(LOOPBACK, 0)).await.expect("a port");
        let address = occupied.local_addr().expect("an address");
        assert!(fails(address).await.starts_with(&format!("cannot listen on {address}: ")));
        let last = SocketAddr::new(LOOPBACK, u16::MAX);
        assert_eq!(fails(last).await, "not enough ports: 2 nodes need one each, counted from 65535");
    });
}

#[test]
fn invalid_specs_are_not_served() {
    run_real(async {
        let spec = WorldSpec::from_yaml("nodes: {}").expect("a setting");
        let refused = LabServer::bind(&spec, server_options(ClockMode::Virtual { step_ms: 1 }, test_certificates())).await;
        assert!(matches!(refused, Err(ServeError::Spec(fault)) if fault == "a world needs at least one node"));
    });
}
