//! Device memory, domains and imports: `tests/c/import.c`.

use ferroce_tests::{Artifacts, World, require};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(50);

fn run(program: &str, settings: &[(&str, &str)]) {
    let path = require!(Artifacts::get().c_program(program));
    let world = require!(World::one_host(1500));
    let outcome = world.first().start_ferroce(&[], &[path.as_os_str()], settings).wait(LIMIT);
    outcome.expect_success();
    assert_eq!(outcome.stdout, "ok\n", "{outcome}");
    world.first().expect_no_traces();
}

macro_rules! programs {
    ($($name:ident: $program:literal;)*) => {
        mod any_fabric {$(
            #[test]
            fn $name() {
                super::run($program, &[]);
            }
        )*}
        mod udp_fabric {$(
            #[test]
            fn $name() {
                super::run($program, &[("FERROCE_FABRIC", "udp")]);
            }
        )*}
    };
}

programs! {
    another_process_uses_what_it_imports: "import";
}
