//! What only a device of the machine's libibverbs promises: refusals where there is none, and forks.

use crate::fixture::{Fixture as _, Side, System, connected};
use ferroce::verbs::{Device, FetchAdd, Lend, Send};
use ferroce::{Kind, rights};
use ferroce_tests::inside::in_namespace;
use ferroce_tests::{Artifacts, Guest, World, require};
use std::time::Duration;

fn refusal(file: Option<&str>) -> ferroce::Error {
    // SAFETY: the test's own process has one more thread, which sleeps until the time limit.
    unsafe {
        match file {
            Some(file) => std::env::set_var("FERROCE_LIBIBVERBS", file),
            None => std::env::remove_var("FERROCE_LIBIBVERBS"),
        }
    }
    Device::system().unwrap_err()
}

#[test]
fn a_missing_library_is_named_with_its_package() {
    in_namespace("of_the_system::a_missing_library_is_named_with_its_package", || {
        let error = refusal(Some("/nowhere/libibverbs.so.1"));
        assert_eq!(error.kind(), Kind::NotFound);
        let text = error.to_string();
        assert!(text.contains("/nowhere/libibverbs.so.1") && text.contains("libibverbs1"), "{text}");
        // Nor is it looked for again.
        assert_eq!(Device::all_of_system().unwrap_err().kind(), Kind::NotFound);
    });
}

#[test]
fn another_library_is_refused() {
    in_namespace("of_the_system::another_library_is_refused", || {
        let error = refusal(Some("libc.so.6"));
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(
            error.to_string().contains("libc.so.6: it has no ibv_get_device_list@IBVERBS_1.1"),
            "{error}"
        );
    });
}

/// On a machine with rdma-core and without an adapter: its library has no device in a new network namespace.
#[test]
fn a_machine_without_a_device_is_refused() {
    in_namespace("of_the_system::a_machine_without_a_device_is_refused", || {
        let error = refusal(None);
        assert_eq!(error.kind(), Kind::NotFound);
        let text = error.to_string();
        assert!(
            text.contains("no device") || text.contains("no RDMA device") || text.contains("libibverbs1"),
            "{text}"
        );
    });
}

/// Rule S9: what a child drops was the parent's.
#[test]
fn a_forks_child_ends_nothing_of_its_parents() {
    System::choose();
    in_namespace("of_the_system::a_forks_child_ends_nothing_of_its_parents", || {
        let system = System::new();
        let [mut a, mut b] = connected(&system);
        let exposed = b.domain.alloc(64).unwrap().expose(rights::All).unwrap();
        b.qp.recv(1, b.domain.alloc(64).unwrap()).unwrap();
        // SAFETY: one thread of the child goes on, with all that it needs.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let Side { mut cq, mut qp, domain } = a;
                assert!(qp.is_dead());
                assert_eq!(domain.alloc(8).unwrap_err().kind(), Kind::Dead);
                assert_eq!(cq.poll().unwrap_err().kind(), Kind::Dead);
                assert_eq!(cq.next(Some(Duration::from_secs(1))).unwrap_err().kind(), Kind::Dead);
                qp.abort();
                qp.post(5, Send::new(())).unwrap();
                drop((cq, qp, domain, exposed.revoke(), b));
                // A device that the child opens itself is its own.
                let domain = system.devices()[0].open().unwrap();
                drop(domain.alloc(8).unwrap());
            }));
            // SAFETY: the child has nothing to do at its exit.
            unsafe { libc::_exit(i32::from(ended.is_err())) };
        }
        let mut status = 0;
        // SAFETY: a child of this process, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        a.qp.post(2, FetchAdd::new(exposed.token().slice(..8), 7)).unwrap();
        a.qp.post(3, Send::new(())).unwrap();
        for tag in [2, 3] {
            let done = a.cq.next(Some(Duration::from_secs(5))).unwrap().expect("a completion");
            done.result().unwrap();
            assert_eq!(done.tag(), tag);
        }
        b.cq.next(Some(Duration::from_secs(5))).unwrap().expect("a message").result().unwrap();
        assert_eq!(exposed.word(0).load(), 7);
    });
}

/// A window is bound to a region of the library's, which the provider dereferences.
#[cfg(feature = "sim")]
#[test]
fn memory_of_another_domain_is_not_lent() {
    System::choose();
    in_namespace("of_the_system::memory_of_another_domain_is_not_lent", || {
        let [mut a, b] = connected(&System::new());
        let world = ferroce::sim::World::new(1);
        let simulated = Device::simulated(&world.host("other")).open().unwrap();
        for domain in [simulated, b.domain] {
            let lend = Lend::new(domain.alloc(64).unwrap(), rights::Write);
            assert_eq!(a.qp.post(1, lend).unwrap_err().error.kind(), Kind::Invalid);
        }
        a.qp.post(2, Lend::new(a.domain.alloc(64).unwrap(), rights::Write)).unwrap();
        assert_eq!(a.cq.next(Some(Duration::from_secs(5))).unwrap().expect("a completion").tag(), 2);
    });
}

/// All cases between two queue pairs of rdma-core and the kernel's `rdma_rxe`, in a guest.
#[test]
fn every_case_passes_on_rxe() {
    /// Of the programs in the guest, which is emulated.
    const LIMIT: Duration = Duration::from_secs(60);
    let own = std::env::current_exe().unwrap();
    let program = Artifacts::get().stage_program(&own).expect("the stage is writable");
    let listed = std::process::Command::new(own).args(["system::", "--list"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let names: Vec<_> = names.filter(|name| name.starts_with("system::")).collect();
    assert!(names.len() >= 26, "{listed}");
    let world = require!(World::one_host_with_tap(1500));
    let guest = require!(Guest::start(&world, 1500));
    let mut failed = Vec::new();
    for name in names {
        let script = format!(
            "ulimit -l unlimited; FERROCE_TEST_INSIDE={name} FERROCE_LIBIBVERBS=libibverbs.so.1 {} --exact {name} --nocapture",
            program.display()
        );
        let outcome = guest.start_script(&script).wait(LIMIT);
        if !outcome.stdout.contains("test result: ok. 1 passed") {
            failed.push(format!("{name}: {outcome}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
