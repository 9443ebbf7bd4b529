//! Where the pairs of programs run.

use crate::line::Simulated;
#[cfg(any(feature = "native", feature = "system"))]
use crate::line::{Line, Standard, Threads};
use crate::pairs::{self, Pair};
use ferroce::sim::{Faults, World};
use ferroce::verbs::Device;
#[cfg(any(feature = "native", feature = "system"))]
use ferroce_tests::helper::Helper;
use std::time::Duration;

/// Two hosts of a simulation, without faults and with many.
fn simulated(pair: fn() -> Pair<Simulated>) {
    let delay = Duration::from_micros(1)..Duration::from_micros(50);
    let faults = Faults { loss: 0.02, duplicate: 0.02, reorder: 0.05, delay, ..Faults::default() };
    for (seed, faults) in [(1, Faults::default()), (2, faults.clone()), (3, faults)] {
        let world = World::new(seed);
        world.faults(faults);
        let ((to_server, at_server), (to_client, at_client)) = (world.channel(), world.channel());
        let server = world.host("server");
        let device = Device::simulated(&server);
        let program = server.spawn(move || (pair().server)(&device, &mut Simulated(to_client, at_server)));
        let mut line = Simulated(to_server, at_client);
        (pair().client)(&Device::simulated(&world.host("client")), &mut line);
        drop(line);
        program.join();
    }
}

#[cfg(feature = "native")]
fn native() -> Device {
    Device::native().unwrap()
}

/// On Ferroce's library for C.
#[cfg(feature = "system")]
fn system() -> Device {
    Device::system().unwrap()
}

/// Two threads of this process.
#[cfg(any(feature = "native", feature = "system"))]
fn threads(device: fn() -> Device, pair: fn() -> Pair<Threads>) {
    let [mut here, mut there] = Threads::pair();
    let server = std::thread::spawn(move || (pair().server)(&device(), &mut there));
    (pair().client)(&device(), &mut here);
    drop(here);
    server.join().unwrap();
}

/// With the program in another process. The first word is that the network is there.
#[cfg(any(feature = "native", feature = "system"))]
fn serve(device: fn() -> Device, pair: fn() -> Pair<Standard>) {
    let mut line = Standard;
    line.meet();
    (pair().server)(&device(), &mut line);
}

#[cfg(any(feature = "native", feature = "system"))]
fn with_process(device: fn() -> Device, pair: fn() -> Pair<Helper>) {
    let mut helper = Helper::start("server");
    helper.meet();
    (pair().client)(&device(), &mut helper);
}

/// With the program on another host: a network namespace, and a cable to it.
#[cfg(any(feature = "native", feature = "system"))]
fn with_host(device: fn() -> Device, pair: fn() -> Pair<Helper>) {
    let mut helper = Helper::start_with("server", &[], libc::CLONE_NEWNET);
    Line::tell(&mut helper, b"here");
    // It answers, so its namespace is there.
    assert_eq!(&helper.expect(), b"here");
    let pid = helper.pid().to_string();
    run(&["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", &pid]);
    for (enter, address) in [(&[][..], "10.9.0.1/24"), (&["nsenter", "-n", "-t", &pid], "10.9.0.2/24")] {
        let ip = |words: &[&str]| drop(run(&[enter, &["ip"], words].concat()));
        ip(&["address", "add", address, "dev", "eth0"]);
        ip(&["link", "set", "lo", "up"]);
        ip(&["link", "set", "eth0", "up"]);
    }
    for enter in [&[][..], &["nsenter", "-n", "-t", &pid]] {
        // Before that there is no device but the loopback interface's.
        ferroce_tests::wait::eventually("the cable is plugged in", || {
            run(&[enter, &["ip", "-o", "address", "show", "dev", "eth0", "up"]].concat()).contains("10.9.0.")
                && run(&[enter, &["ip", "-o", "link", "show", "eth0"]].concat()).contains("state UP")
        });
    }
    helper.meet();
    (pair().client)(&device(), &mut helper);
}

#[cfg(any(feature = "native", feature = "system"))]
fn run(words: &[&str]) -> String {
    let output = std::process::Command::new(words[0]).args(&words[1..]).output().expect("a program");
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A test of each pair in each setting.
macro_rules! pairs {
    ($($pair:ident => $name:ident),* $(,)?) => {
        mod in_simulation {
            $(
                #[test]
                fn $name() {
                    super::simulated(super::pairs::$pair);
                }
            )*
        }

        #[cfg(feature = "native")]
        mod in_two_threads {
            $(
                #[test]
                fn $name() {
                    ferroce_tests::inside::in_namespace(
                        concat!("settings::in_two_threads::", stringify!($name)),
                        || super::threads(super::native, super::pairs::$pair),
                    );
                }
            )*
        }

        #[cfg(feature = "native")]
        mod in_two_processes {
            $(
                #[test]
                fn $name() {
                    if !ferroce_tests::helper::play(&[("server", || super::serve(super::native, super::pairs::$pair))]) {
                        ferroce_tests::inside::in_namespace(
                            concat!("settings::in_two_processes::", stringify!($name)),
                            || super::with_process(super::native, super::pairs::$pair),
                        );
                    }
                }
            )*
        }

        #[cfg(feature = "native")]
        mod on_two_hosts {
            $(
                #[test]
                fn $name() {
                    if !ferroce_tests::helper::play(&[("server", || super::serve_host(super::native, super::pairs::$pair))]) {
                        ferroce_tests::inside::in_namespace(
                            concat!("settings::on_two_hosts::", stringify!($name)),
                            || super::with_host(super::native, super::pairs::$pair),
                        );
                    }
                }
            )*
        }

        #[cfg(feature = "system")]
        mod in_two_threads_with_the_systems {
            $(
                #[test]
                fn $name() {
                    crate::fixture::System::choose();
                    ferroce_tests::inside::in_namespace(
                        concat!("settings::in_two_threads_with_the_systems::", stringify!($name)),
                        || super::threads(super::system, super::pairs::$pair),
                    );
                }
            )*
        }

        #[cfg(feature = "system")]
        mod in_two_processes_with_the_systems {
            $(
                #[test]
                fn $name() {
                    crate::fixture::System::choose();
                    if !ferroce_tests::helper::play(&[("server", || super::serve(super::system, super::pairs::$pair))]) {
                        ferroce_tests::inside::in_namespace(
                            concat!("settings::in_two_processes_with_the_systems::", stringify!($name)),
                            || super::with_process(super::system, super::pairs::$pair),
                        );
                    }
                }
            )*
        }

        #[cfg(feature = "system")]
        mod on_two_hosts_with_the_systems {
            $(
                #[test]
                fn $name() {
                    crate::fixture::System::choose();
                    if !ferroce_tests::helper::play(&[("server", || super::serve_host(super::system, super::pairs::$pair))]) {
                        ferroce_tests::inside::in_namespace(
                            concat!("settings::on_two_hosts_with_the_systems::", stringify!($name)),
                            || super::with_host(super::system, super::pairs::$pair),
                        );
                    }
                }
            )*
        }
    };
}

/// As [`serve`], once there is a network.
#[cfg(any(feature = "native", feature = "system"))]
fn serve_host(device: fn() -> Device, pair: fn() -> Pair<Standard>) {
    Standard.meet();
    serve(device, pair);
}

pairs! {
    echo => messages_come_back_as_they_were,
    one_sided => memory_is_written_read_and_counted_in_while_its_program_looks,
    revoked => memory_that_was_taken_back_is_not_written,
    gone => a_program_that_ends_leaves_its_peers_memory_alone,
    lent => memory_that_was_lent_is_written_and_returned,
    datagrams => datagrams_are_answered_by_their_sources,
    waits => a_wait_ends_with_a_completion_or_its_limit,
}
