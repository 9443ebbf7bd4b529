//! Which threads look for completions, and what they owe to others.

use ferroce::cm::Listener;
use ferroce::session::{Connection, Driver};
use ferroce::sim::{Faults, Host, Trace, World};
use ferroce::verbs::{Device, Send};
use ferroce::{Inline, Kind, Pool};
use std::time::Duration;

/// Two connections of one driver.
fn pair(driver: &Driver) -> [Connection; 2] {
    pair_with(driver, &driver.domain().pool(16, 64).unwrap())
}

fn pair_with(driver: &Driver, pool: &Pool) -> [Connection; 2] {
    let [a, b] = [(); 2].map(|()| driver.rc().build().unwrap());
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    let a = crate::sessions::ready(driver.join(a, pool, async |_| Ok(b_end))).unwrap();
    [a, crate::sessions::ready(driver.join(b, pool, async |_| Ok(a_end))).unwrap()]
}

/// One side asks, the other answers, by calls that block.
fn asks(peer: &Connection, count: u32) {
    for number in 0..count {
        let sent = peer.try_post(Send::new(Inline::from(&number.to_ne_bytes()))).unwrap();
        assert_eq!(peer.recv_blocking().unwrap()[..], number.to_ne_bytes());
        sent.wait().unwrap();
    }
}

fn answers(peer: &Connection, count: u32) {
    for _ in 0..count {
        let message = peer.recv_blocking().unwrap();
        let answer = Inline::from(&message[..]);
        drop(message);
        peer.try_post(Send::new(answer)).unwrap().wait().unwrap();
    }
}

/// Two programs of a simulated host use one driver: while one waits in the completion queue, the other does too.
#[test]
fn programs_of_a_host_share_a_driver() {
    for seed in 0..20 {
        let world = World::new(seed);
        let host = world.host("only");
        let driver = Driver::manual(&Device::simulated(&host).open().unwrap()).unwrap();
        let [a, b] = pair(&driver);
        let answering = host.spawn(move || answers(&b, 20));
        asks(&a, 20);
        answering.join();
    }
}

/// It keeps none of their memory, also not of the connection whose completion came last.
#[test]
fn a_driver_forgets_connections_that_have_ended() {
    let world = World::new(1);
    let driver = Driver::manual(&Device::simulated(&world.host("only")).open().unwrap()).unwrap();
    let memory = driver.domain().register(vec![0_u8; 16 * 64]).unwrap();
    let pool = Pool::new(memory, 64).unwrap();
    let kept = pool.try_take().unwrap();
    let [a, b] = pair_with(&driver, &pool);
    driver.run(async {
        a.send(Inline::from(b"last")).await.unwrap();
        assert_eq!(b.recv().await.unwrap()[..], *b"last");
    });
    drop((a, b, pool));
    assert_eq!(kept.reclaim::<Vec<u8>>().unwrap().len(), 16 * 64);
}

/// What two programs by address have done.
fn by_address(seed: u64) -> Trace {
    const MESSAGES: u8 = 10;
    let world = World::new(seed);
    let micros = Duration::from_micros;
    world.faults(Faults {
        loss: 0.02,
        duplicate: 0.02,
        reorder: 0.1,
        delay: micros(1)..micros(40),
        ..Faults::default()
    });
    let (client, server) = (world.host("client"), world.host("server"));
    let on = |host: &Host| -> (Driver, Pool) {
        let driver = Driver::manual(&Device::simulated(host).open().unwrap()).unwrap();
        let pool = driver.domain().pool(16, 64).unwrap();
        (driver, pool)
    };
    let (driver, pool) = on(&server);
    let mut listener = Listener::bind(&driver, "0.0.0.0:7471").unwrap();
    let served = server.spawn(move || {
        driver.run(async {
            let peer = listener.accept().await.unwrap().accept(&pool).await.unwrap();
            while let Ok(message) = peer.recv().await {
                // The last acknowledgement may be lost.
                let _ = peer.send(message.into_buffer()).await;
            }
        });
    });
    let (driver, pool) = on(&client);
    let address = format!("{}:7471", server.ip());
    driver.run(async {
        let peer = Connection::connect(&driver, &address, &pool).await.unwrap();
        for number in 0..MESSAGES {
            peer.send(Inline::from(&[number])).await.unwrap();
            assert_eq!(peer.recv().await.unwrap()[..], [number]);
        }
    });
    served.join();
    world.trace()
}

#[test]
fn equal_seeds_give_equal_traces_of_connections() {
    for seed in 0..50 {
        assert!(by_address(seed) == by_address(seed), "seed {seed}");
    }
    assert!(by_address(0) != by_address(1));
}

/// A request without an answer ends.
#[test]
fn a_host_that_is_unplugged_is_not_reached() {
    let world = World::new(1);
    world.patience(Duration::from_secs(600));
    let (client, server) = (world.host("client"), world.host("server"));
    server.unplug();
    let driver = Driver::manual(&Device::simulated(&client).open().unwrap()).unwrap();
    let pool = driver.domain().pool(16, 64).unwrap();
    let address = format!("{}:7471", server.ip());
    let error = driver.run(async { Connection::connect(&driver, &address, &pool).await.unwrap_err() });
    assert_eq!(error.kind(), Kind::TimedOut, "{error}");
    assert_eq!(pool.free(), 16);
    assert!(Listener::bind(&driver, "10.0.0.77:1").is_err());
    let listener = Listener::bind(&driver, "0.0.0.0:5000").unwrap();
    assert_eq!(Listener::bind(&driver, "0.0.0.0:5000").unwrap_err().kind(), Kind::InUse);
    drop(listener);
    Listener::bind(&driver, "0.0.0.0:5000").unwrap();
}

/// No thread would poll its completions.
#[test]
fn a_queue_pair_of_another_queue_is_refused() {
    let host = World::new(1).host("only");
    let driver = Driver::manual(&Device::simulated(&host).open().unwrap()).unwrap();
    let pool = driver.domain().pool(16, 64).unwrap();
    let cq = driver.domain().cq(64).unwrap();
    let setup = driver.domain().rc(&cq).build().unwrap();
    let refused = driver.run(driver.join(setup, &pool, async |mine| Ok(mine)));
    assert_eq!(refused.unwrap_err().kind(), Kind::Invalid);
}

/// Tasks of a runtime with one thread, which turn the simulation.
#[cfg(feature = "tokio")]
#[test]
fn tasks_of_tokio_turn_a_simulation() {
    for seed in 0..20 {
        let world = World::new(seed);
        let micros = Duration::from_micros;
        world.faults(Faults {
            loss: 0.05,
            duplicate: 0.0,
            reorder: 0.1,
            delay: micros(1)..micros(40),
            ..Faults::default()
        });
        let [a, b] = ["client", "server"].map(|name| Device::simulated(&world.host(name)));
        let address = "10.0.0.2:7471";
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let server = tokio::spawn(async move {
                let driver = Driver::tokio(&b.open().unwrap()).unwrap();
                let pool = driver.domain().pool(16, 64).unwrap();
                let mut listener = Listener::bind(&driver, "0.0.0.0:7471").unwrap();
                let peer = listener.accept().await.unwrap().accept(&pool).await.unwrap();
                while let Ok(message) = peer.recv().await {
                    let _ = peer.send(message.into_buffer()).await;
                }
            });
            tokio::task::yield_now().await;
            let driver = Driver::tokio(&a.open().unwrap()).unwrap();
            let pool = driver.domain().pool(16, 64).unwrap();
            let peer = Connection::connect(&driver, address, &pool).await.unwrap();
            for number in 0..10_u8 {
                peer.send(Inline::from(&[number])).await.unwrap();
                assert_eq!(peer.recv().await.unwrap()[..], [number]);
            }
            drop(peer);
            server.await.unwrap();
        });
    }
}

#[cfg(feature = "native")]
mod of_this_process {
    use super::*;
    use ferroce::session::Idle;
    use ferroce_tests::inside::in_namespace;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};
    use std::thread::{self, Thread};

    /// Several threads wait for requests of one driver.
    fn share(driver: &Driver) {
        thread::scope(|scope| {
            for _ in 0..3 {
                let [a, b] = pair(driver);
                scope.spawn(move || asks(&a, 100));
                scope.spawn(move || answers(&b, 100));
            }
        });
    }

    fn native() -> ferroce::verbs::Domain {
        Device::native().unwrap().open().unwrap()
    }

    #[test]
    fn threads_share_a_driver_without_a_thread() {
        in_namespace("drivers::of_this_process::threads_share_a_driver_without_a_thread", || {
            share(&Driver::manual(&native()).unwrap());
        });
    }

    #[test]
    fn threads_share_a_drivers_thread() {
        in_namespace("drivers::of_this_process::threads_share_a_drivers_thread", || {
            share(&Driver::thread(&native(), Idle::Sleep).unwrap());
            share(&Driver::thread(&native(), Idle::Spin).unwrap());
        });
    }

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    /// The least executor there is: it sleeps without a limit until a wakeup.
    fn block_on<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// By address, on an executor that knows nothing of drivers; the end of one side wakes the other.
    #[test]
    fn a_drivers_thread_wakes_what_runs_elsewhere() {
        in_namespace("drivers::of_this_process::a_drivers_thread_wakes_what_runs_elsewhere", || {
            let driver = Driver::thread(&native(), Idle::Sleep).unwrap();
            let pool = driver.domain().pool(32, 64).unwrap();
            let mut listener = Listener::bind(&driver, "127.0.0.1:0").unwrap();
            let address = listener.local_addr().to_string();
            let server = {
                let pool = pool.clone();
                thread::spawn(move || {
                    block_on(async {
                        let peer = listener.accept().await.unwrap().accept(&pool).await.unwrap();
                        while let Ok(message) = peer.recv().await {
                            let _ = peer.send(message.into_buffer()).await;
                        }
                        peer.closed().await
                    })
                })
            };
            block_on(async {
                let peer = Connection::connect(&driver, &address, &pool).await.unwrap();
                for number in 0..50_u8 {
                    peer.send(Inline::from(&[number])).await.unwrap();
                    assert_eq!(peer.recv().await.unwrap()[..], [number]);
                }
            });
            let fault = server.join().unwrap();
            assert!(fault.to_string().contains("the peer has ended"), "{fault}");
        });
    }

    /// The same on tokio, whose task sleeps without a limit.
    #[cfg(feature = "tokio")]
    #[test]
    fn the_task_of_a_driver_is_woken_by_a_peers_end() {
        in_namespace("drivers::of_this_process::the_task_of_a_driver_is_woken_by_a_peers_end", || {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build().unwrap();
            runtime.block_on(async {
                let driver = Driver::tokio(&native()).unwrap();
                let pool = driver.domain().pool(32, 64).unwrap();
                let mut listener = Listener::bind(&driver, "127.0.0.1:0").unwrap();
                let address = listener.local_addr().to_string();
                let server = tokio::spawn({
                    let pool = pool.clone();
                    async move {
                        let peer = listener.accept().await.unwrap().accept(&pool).await.unwrap();
                        // Nothing is under way while the peer ends the connection.
                        peer.closed().await
                    }
                });
                let peer = Connection::connect(&driver, &address, &pool).await.unwrap();
                peer.close();
                let fault = server.await.unwrap();
                assert!(fault.to_string().contains("the peer has ended"), "{fault}");
            });
        });
    }

    /// A thread that waits by itself takes events of the completion queue. The task doesn't wait for them.
    #[cfg(feature = "tokio")]
    #[test]
    fn a_thread_that_waits_takes_no_completion_from_the_task() {
        in_namespace(
            "drivers::of_this_process::a_thread_that_waits_takes_no_completion_from_the_task",
            || {
                let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build().unwrap();
                runtime.block_on(async {
                    let driver = Driver::tokio(&native()).unwrap();
                    let [a, b] = pair(&driver);
                    for _ in 0..50 {
                        let (thread, other) = (b.clone(), a.clone());
                        let thread = thread::spawn(move || answers(&thread, 2));
                        for number in 0..2_u8 {
                            other.send(Inline::from(&[number])).await.unwrap();
                            assert_eq!(other.recv().await.unwrap()[..], [number]);
                        }
                        thread.join().unwrap();
                        a.send(Inline::from(b"after it")).await.unwrap();
                        assert_eq!(b.recv().await.unwrap()[..], *b"after it");
                    }
                });
            },
        );
    }
}
