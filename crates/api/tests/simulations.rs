//! The examples of simulations, and worlds whose time is tokio's or turmoil's.

use ferroce::sim::{Faults, Licences, World};
use ferroce::verbs::{Device, Write};
use ferroce::{Exposed, rights};
use std::collections::BTreeSet;
use std::time::Duration;

#[path = "../examples/crash.rs"]
#[expect(dead_code, reason = "the tests call what its `main` calls")]
mod crash;

#[path = "../examples/turmoil.rs"]
#[expect(dead_code, reason = "the tests call what its `main` calls")]
mod turmoil_example;

#[test]
fn no_acknowledged_number_is_lost_when_a_server_crashes() {
    let survived: BTreeSet<usize> = (0..100).map(|seed| crash::run(&World::new(seed))).collect();
    assert!(
        survived.contains(&1) && survived.contains(&2),
        "the seeds have crashes before the end, and after it"
    );
}

#[test]
fn a_program_runs_under_turmoil() {
    let traces: Vec<String> = (0..20).map(|seed| turmoil_example::run(seed, &[5; 4000]).unwrap()).collect();
    assert_eq!(traces[3], turmoil_example::run(3, &[5; 4000]).unwrap());
    assert_ne!(traces[3], traces[4]);
    assert!(traces.iter().any(|trace| trace.contains("lost")));
}

/// Writes a number to a peer's memory again and again, with pauses that are tokio's.
async fn count(world: World, device: [Device; 2]) -> Exposed<rights::Write> {
    let [a, b] = device.map(|device| device.open().unwrap());
    let (mut a_cq, b_cq) = (a.cq(16).unwrap(), b.cq(16).unwrap());
    let (a_setup, b_setup) = (a.rc(&a_cq).build().unwrap(), b.rc(&b_cq).build().unwrap());
    let (a_end, b_end) = (a_setup.endpoint(), b_setup.endpoint());
    let (mut a_qp, _b_qp) = (a_setup.connect(&b_end).unwrap(), b_setup.connect(&a_end).unwrap());
    let memory = b.alloc(8).unwrap().expose(rights::Write).unwrap();
    for number in 1..=20_u64 {
        let mut buffer = a.alloc(8).unwrap();
        buffer.fill(&number.to_ne_bytes());
        a_qp.post(number, Write::new(buffer, memory.token())).unwrap();
        loop {
            let changed = world.changed();
            if let Some(done) = a_cq.poll().unwrap().next() {
                done.result().unwrap();
                break;
            }
            changed.await;
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    memory
}

#[test]
fn a_world_follows_tokios_paused_clock() {
    let started = std::time::Instant::now();
    let run = |seed| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let start = tokio::time::Instant::now();
            let world = World::driven(seed, move || start.elapsed());
            world.faults(Faults { loss: 0.2, ..Faults::default() });
            let devices = ["a", "b"].map(|name| {
                let host = world.host(name);
                host.licences(Licences::all());
                Device::simulated(&host)
            });
            let driver = world.clone();
            let driver = tokio::spawn(async move { driver.drive(tokio::time::sleep).await });
            let memory = count(world.clone(), devices).await;
            assert_eq!(memory.word(0).load(), 20);
            driver.abort();
            assert!(world.now() > Duration::from_secs(1200));
            world.trace().to_string()
        })
    };
    let trace = run(5);
    assert!(trace.contains("lost"));
    assert_eq!(trace, run(5));
    assert!(started.elapsed() < Duration::from_secs(60), "20 minutes of tokio's time");
}
