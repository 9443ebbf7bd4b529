//! A library that lies about completions (rule S11): `tests/hostile/libibverbs.c`.

use ferroce::session::Driver;
use ferroce::verbs::{Cq, Device, Domain, Operated, RcQp, Send};
use ferroce::{Kind, Status};
use ferroce_tests::{Skip, record_skip};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Compiles the library, once for all tests of a process.
fn library() -> Result<PathBuf, Skip> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile");
    let built = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("hostile-{}.so", std::process::id()));
    let output = Command::new(ferroce_tests::tool("cc", "gcc")?)
        .args(["-shared", "-fPIC", "-Wall", "-Wno-unused-parameter", "-o"])
        .arg(&built)
        .arg(sources.join("libibverbs.c"))
        .arg(format!("-Wl,--version-script={}", sources.join("versions.map").display()))
        .output()
        .expect("a compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(built)
}

/// Tag, operation, whether it has succeeded, and the length of its memory.
type Ended = (u64, Operated, Result<(), Status>, usize);

/// A device of the library.
fn domain(lie: &str) -> Domain {
    let library = match library() {
        Ok(library) => library,
        Err(Skip(why)) => {
            record_skip(&why);
            std::process::exit(0);
        }
    };
    // SAFETY: each test is a process of its own, whose other thread waits for this one.
    unsafe {
        std::env::set_var("FERROCE_LIBIBVERBS", &library);
        std::env::set_var("HOSTILE", lie);
    }
    let domain = Device::system().unwrap().open().unwrap();
    std::fs::remove_file(library).unwrap();
    domain
}

/// The objects of a device of the library.
fn opened(lie: &str) -> (Domain, Cq, RcQp) {
    let domain = domain(lie);
    let cq = domain.cq(16).unwrap();
    let setup = domain.rc(&cq).build().unwrap();
    let own = setup.endpoint();
    let qp = setup.connect(&own).unwrap();
    (domain, cq, qp)
}

/// The completions of a send of 8 bytes and of two receives of 8 bytes. Or the error of a poll.
fn told(lie: &str) -> Result<Vec<Ended>, Kind> {
    let (domain, mut cq, mut qp) = opened(lie);
    qp.post(1, Send::new(domain.alloc(8).unwrap())).unwrap();
    qp.recv(2, domain.alloc(8).unwrap()).unwrap();
    qp.recv(3, domain.alloc(8).unwrap()).unwrap();
    let mut found = Vec::new();
    for _ in 0..10 {
        let mut polled = cq.poll().map_err(|error| error.kind())?;
        while let Some(mut done) = polled.next() {
            let result = done.result().map_err(|fault| fault.status());
            let memory = done.take().buffer().expect("each has a buffer");
            // All bytes that it has received can be read.
            assert!(memory.iter().all(|byte| *byte == 0));
            found.push((done.tag(), done.what(), result, memory.len()));
        }
    }
    // What wasn't reported comes back.
    let outstanding = qp.destroy();
    let mut tags: Vec<_> =
        outstanding.iter().map(|(tag, _)| *tag).chain(found.iter().map(|it| it.0)).collect();
    tags.sort_unstable();
    assert_eq!(tags, [1, 2, 3], "each request ends once");
    Ok(found)
}

#[test]
fn the_truth_is_believed() {
    let all = [
        (1, Operated::Sent, Ok(()), 8),
        (2, Operated::Received, Ok(()), 4),
        (3, Operated::Received, Ok(()), 4),
    ];
    assert_eq!(told("nothing").unwrap(), all);
}

#[test]
fn no_more_is_received_than_there_is_room_for() {
    let lengths: Vec<_> = told("long").unwrap().into_iter().map(|it| it.3).collect();
    assert_eq!(lengths, [8, 8, 8]);
}

#[test]
fn a_completion_of_no_request_is_dropped() {
    assert_eq!(told("stranger").unwrap(), []);
}

#[test]
fn a_request_ends_once() {
    assert_eq!(told("twice").unwrap().len(), 3);
}

#[test]
fn an_earlier_request_ends_with_a_later_one() {
    let tags: Vec<_> = told("order").unwrap().into_iter().map(|it| it.0).collect();
    assert_eq!(tags, [2, 3, 1]);
}

#[test]
fn what_a_request_was_is_not_the_librarys_word() {
    let what: Vec<_> = told("opcode").unwrap().into_iter().map(|it| it.1).collect();
    assert_eq!(what, [Operated::Sent, Operated::Received, Operated::Received]);
}

#[test]
fn fields_of_a_failure_are_those_of_no_message() {
    let (domain, mut cq, mut qp) = opened("failed");
    for tag in [2, 3] {
        qp.recv(tag, domain.alloc(8).unwrap()).unwrap();
    }
    let mut polled = cq.poll().unwrap();
    let mut found = Vec::new();
    while let Some(done) = polled.next() {
        let _ = done.result();
        found.push((done.tag(), done.len(), done.imm(), done.returned()));
    }
    assert_eq!(found, [(2, 0, None, None), (3, 0, None, None)]);
}

#[test]
fn flags_of_a_message_come_with_receives_only() {
    let (domain, mut cq, mut qp) = opened("flags");
    qp.post(1, Send::new(domain.alloc(8).unwrap())).unwrap();
    qp.recv(2, domain.alloc(8).unwrap()).unwrap();
    let mut found = Vec::new();
    for _ in 0..10 {
        let mut polled = cq.poll().unwrap();
        while let Some(done) = polled.next() {
            found.push((done.tag(), done.returned().is_some() || done.imm().is_some()));
        }
    }
    assert_eq!(found, [(1, false), (2, true)]);
}

#[test]
fn a_status_that_is_none_is_a_failure() {
    let results: Vec<_> = told("status").unwrap().into_iter().map(|it| it.2).collect();
    assert_eq!(results, [Err(Status::Other(12345)); 3]);
}

#[test]
fn more_completions_than_asked_for_end_the_queue() {
    assert_eq!(told("many"), Err(Kind::Dead));
    assert_eq!(told("negative"), Err(Kind::Dead));
}

#[test]
fn a_request_that_is_refused_keeps_its_memory_until_the_end() {
    let (domain, mut cq, mut qp) = opened("refuses");
    let buffer = || domain.alloc(8).unwrap();
    qp.post(1, Send::new(buffer())).unwrap();
    // A later request would retire its slot.
    let refused = qp.post(2, Send::new(buffer())).unwrap_err();
    assert_eq!((refused.error.kind(), refused.back.into_payload().len()), (Kind::Dead, 8));
    assert_eq!(qp.recv(3, buffer()).unwrap_err().error.kind(), Kind::Dead);
    assert!(cq.poll().unwrap().next().is_none());
    let tags: Vec<_> = qp.destroy().into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(tags, [1]);
}

#[test]
fn nothing_of_a_batch_is_posted_behind_a_refused_request() {
    let (domain, mut cq, mut qp) = opened("refuses the first");
    let mut batch = qp.batch();
    for tag in [1, 2] {
        batch.push(tag, Send::new(domain.alloc(8).unwrap())).unwrap();
    }
    batch.post();
    // A completion of the second would report that the first has been carried out.
    assert!(cq.poll().unwrap().next().is_none());
    let tags: Vec<_> = qp.destroy().into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(tags, [1, 2]);
}

#[test]
fn a_scope_whose_request_is_refused_ends() {
    let (_domain, mut cq, mut qp) = opened("refuses");
    let ended = qp.scope(&mut cq, |scope| scope.send(b"borrowed").unwrap());
    assert_eq!(ended.unwrap_err().kind(), Kind::Dead);
}

#[test]
fn an_abort_that_takes_time_holds_up_no_other_call() {
    let domain = domain("aborts for two seconds");
    let driver = Driver::manual(&domain).unwrap();
    let pool = domain.pool(2, 8).unwrap();
    let setup = driver.rc().build().unwrap();
    let own = setup.endpoint();
    let peer = crate::sessions::ready(driver.join(setup, &pool, async |_| Ok(own))).unwrap();
    thread::scope(|scope| {
        let aborting = scope.spawn(|| {
            peer.abort();
            Instant::now()
        });
        while peer.try_recv().is_ok() {
            thread::yield_now();
        }
        let refused = Instant::now();
        let aborted = aborting.join().unwrap();
        assert!(aborted.saturating_duration_since(refused) > Duration::from_secs(1));
    });
    // The queue pair is destroyed with its memory.
    drop(peer);
    assert_eq!(pool.free(), 2);
}
