//! What connections by address promise on every backend that makes them.

use crate::fixture::Fixture;
use crate::sessions::both;
use ferroce::cm::Listener;
use ferroce::session::{Connection, Driver};
use ferroce::{Inline, Kind, Pool};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(40);

struct Host {
    driver: Driver,
    pool: Pool,
}

fn hosts(fixture: &impl Fixture) -> [Host; 2] {
    fixture.devices().map(|device| {
        let driver = Driver::manual(&device.open().unwrap()).unwrap();
        let pool = driver.domain().pool(64, 64).unwrap();
        Host { driver, pool }
    })
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

fn run<F: Future>(hosts: &[Host; 2], future: F) -> F::Output {
    let mut future = pin!(future);
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    let began = Instant::now();
    loop {
        if woken.0.swap(false, Ordering::AcqRel)
            && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return output;
        }
        for host in hosts {
            host.driver.turn();
        }
        assert!(began.elapsed() < LIMIT, "a future isn't woken");
    }
}

/// A listener, and the address that leads to it. `None`: the device refuses to make connections by address.
fn listen(fixture: &impl Fixture, host: &Host) -> Option<(Listener, String)> {
    match (Listener::bind(&host.driver, "0.0.0.0:0"), fixture.address()) {
        (Ok(listener), Some(address)) => {
            let address = format!("{address}:{}", listener.local_addr().port());
            Some((listener, address))
        }
        (Err(error), None) => {
            assert_eq!(error.kind(), Kind::Unsupported);
            None
        }
        (listener, address) => panic!("{listener:?} at {address:?}"),
    }
}

pub fn made(fixture: &impl Fixture) {
    let hosts = hosts(fixture);
    let [a, b] = &hosts;
    let Some((mut listener, address)) = listen(fixture, b) else { return };
    let client = async {
        let connecting = Connection::connect(&a.driver, &address, &a.pool).private_data(b"hello");
        let peer = connecting.send_depth(16).await.unwrap();
        assert_eq!(&peer.private_data()[..8], b"welcome\0");
        assert_eq!(peer.peer().unwrap().to_string(), address);
        for number in 0..20_u8 {
            peer.send(Inline::from(&[number])).await.unwrap();
        }
        for number in 0..20_u8 {
            assert_eq!(peer.recv().await.unwrap()[..], [number]);
        }
        peer.close();
    };
    let server = async {
        let incoming = listener.accept().await.unwrap();
        assert_eq!(&incoming.private_data()[..6], b"hello\0");
        let peer = incoming.answer(b"welcome").accept(&b.pool).await.unwrap();
        for _ in 0..20 {
            let message = peer.recv().await.unwrap();
            // The client may have ended before the last acknowledgement is here.
            let _ = peer.send(message.into_buffer()).await;
        }
        let fault = peer.closed().await;
        assert!(fault.to_string().contains("the peer has ended the connection"), "{fault}");
        assert!(peer.recv().await.is_err());
    };
    run(&hosts, both(client, server));
    // All buffers are back: both sides have ended.
    assert_eq!((a.pool.free(), b.pool.free()), (64, 64));
}

/// The output of the first, while the second goes on.
async fn first<T>(a: impl Future<Output = T>, b: impl Future<Output = ()>) -> T {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|context| {
        let _ = b.as_mut().poll(context);
        a.as_mut().poll(context)
    })
    .await
}

pub fn rejected(fixture: &impl Fixture) {
    let hosts = hosts(fixture);
    let [a, b] = &hosts;
    let Some((mut listener, address)) = listen(fixture, b) else { return };
    let rejection = async || {
        let error = Connection::connect(&a.driver, &address, &a.pool).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Rejected, "{error}");
        error.to_string()
    };
    run(&hosts, async {
        // A rejection may be lost: then the request comes again.
        let rejects = async {
            loop {
                listener.accept().await.unwrap().reject(b"not today").unwrap();
            }
        };
        let error = first(rejection(), rejects).await;
        assert!(error.contains("its program rejects"), "{error}");
        let drops = async {
            loop {
                drop(listener.accept().await.unwrap());
            }
        };
        let error = first(rejection(), drops).await;
        assert!(error.contains("its program rejects"), "{error}");
        drop(listener);
        let error = rejection().await;
        assert!(error.contains("no program listens"), "{error}");
        assert_eq!(a.pool.free(), 64, "the receives of a connection that isn't made come back");
    });
    let long = pin!(async {
        Connection::connect(&a.driver, &address, &a.pool).private_data(&[1; 57]).await.unwrap_err().kind()
    });
    let kind = run(&hosts, long);
    assert!([Kind::TooLong, Kind::Invalid].contains(&kind), "{kind:?}");
}

/// Several connections at a time, of which each is ended by either side.
pub fn several(fixture: &impl Fixture) {
    const COUNT: usize = 6;
    let hosts = hosts(fixture);
    let [a, b] = &hosts;
    let Some((mut listener, address)) = listen(fixture, b) else { return };
    let clients = async {
        let connect = async |number: u8| {
            let peer = Connection::connect(&a.driver, &address, &a.pool).recv_depth(4).await.unwrap();
            peer.send(Inline::from(&[number])).await.unwrap();
            assert_eq!(peer.recv().await.unwrap()[..], [number]);
            if number.is_multiple_of(2) {
                peer.closed().await;
            } else {
                peer.send(Inline::from(b"bye")).await.unwrap();
            }
        };
        let mut all: Vec<_> = (0..COUNT as u8).map(|number| Box::pin(connect(number))).collect();
        poll_fn(|context| {
            all.retain_mut(|one| one.as_mut().poll(context).is_pending());
            if all.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    };
    let server = async {
        let mut peers = Vec::new();
        while peers.len() < COUNT {
            let incoming = listener.accept().await.unwrap();
            peers.push(incoming.recv_depth(4).accept(&b.pool).await.unwrap());
        }
        for peer in peers {
            let message = peer.recv().await.unwrap();
            let number = message[0];
            // The acknowledgement may be lost, and the client ends.
            let _ = peer.send(Inline::from(&[number])).await;
            if !number.is_multiple_of(2) {
                assert_eq!(peer.recv().await.unwrap()[..], *b"bye");
                peer.closed().await;
            }
        }
    };
    run(&hosts, both(clients, server));
    assert_eq!((a.pool.free(), b.pool.free()), (64, 64));
}
