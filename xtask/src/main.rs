//! `cargo xtask`: the command line of all tasks. Each module is one task, and its first line describes it.
//!
//! | subject | modules |
//! |---|---|
//! | builds | `dist`, `package`, `book` |
//! | checks of sources and pages | `rooms`, `prose`, `matrix` |
//! | tests | `test`, `soak`, `sanitize`, `compat`, `perftest`, `demo` |
//! | measurements | `bench` |
//! | packages of the machine that other modules need | `apt` |

mod apt;
mod bench;
mod book;
mod compat;
mod demo;
mod dist;
mod matrix;
mod package;
mod perftest;
mod prose;
mod rooms;
mod sanitize;
mod soak;
mod test;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Ferroce's tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build everything a user needs into target/dist
    Dist {
        /// The cargo profile to build with
        #[arg(long, default_value = "release")]
        profile: String,
    },
    /// Build what people install: tarball, wheel, deb, rpm, bill of materials, checksums, into target/packages
    Package {
        /// Build a second time, and fail if a bit differs
        #[arg(long)]
        check_reproducible: bool,
        /// Then install, use and remove them in clean roots of Debian and Ubuntu (root only; minutes)
        #[arg(long)]
        test: bool,
        /// With --test: also in a root with the C library that is installed below this directory
        #[arg(long, requires = "test", value_name = "DIRECTORY")]
        glibc: Option<std::path::PathBuf>,
        /// Instead: try to publish the crates that are meant for the registry, without doing it
        #[arg(long, conflicts_with_all = ["check_reproducible", "test"])]
        crates: bool,
        /// For this processor (x86_64, aarch64); several may be named [default: that of this machine]
        #[arg(long = "arch", default_values_t = [std::env::consts::ARCH.to_owned()], hide_default_value = true)]
        archs: Vec<String>,
    },
    /// Build the book into target/book, with mdBook, which is installed into target/tools where there is none (minutes, once)
    Book {
        /// Install it where cargo puts programs instead
        #[arg(long)]
        keep: bool,
        /// Instead: copy the code of the programs to the pages that show it
        #[arg(long, conflicts_with = "keep")]
        update: bool,
    },
    /// Build, then show an unmodified verbs program exchanging data between two processes (no root needed)
    Demo,
    /// Install what the tests need where that is allowed, build, and run all tests
    Test {
        /// Only tests whose name contains this
        filter: Option<String>,
        /// Only those that together answer within two minutes
        #[arg(long)]
        quick: bool,
    },
    /// Write docs/MATRIX.md: which symbols are implemented and which programs use them
    Matrix {
        /// Fail when the committed page is out of date, and write nothing
        #[arg(long)]
        check: bool,
    },
    /// Run the whole matrix of perftest (an hour) and write docs/PERFTEST.md
    Perftest {
        /// Only command lines that contain this, and write nothing
        only: Option<String>,
        /// Which of them run
        #[arg(long, value_enum, default_value_t = perftest::Run::All)]
        run: perftest::Run,
    },
    /// Run real clients on one host and on two, and write docs/COMPATIBILITY.md
    Compat {
        /// Only commands that contain this, and write nothing
        only: Option<String>,
        /// Only the distribution's clients, each in one of the places in turn, and write nothing
        #[arg(long)]
        quick: bool,
    },
    /// Run rdma-core's own tests and write docs/pyverbs.md
    Pyverbs,
    /// Run the conformance suite, also on the kernel's rdma_rxe, and write docs/CONFORMANCE.md
    Conformance,
    /// Measure
    Bench {
        #[command(subcommand)]
        what: bench::Bench,
    },
    /// Fail on an arrow between crates that points upwards, and on a circle between the rooms of one
    Rooms {
        /// First delete stale exceptions from xtask/rooms.allow
        #[arg(long)]
        shrink: bool,
        /// Only print what each crate is, and all arrows
        #[arg(long, conflicts_with = "shrink")]
        list: bool,
    },
    /// Check the rules of plain English in pages, comments and strings
    Prose {
        /// Write lower counts into xtask/prose.allow where there is less to find
        #[arg(long)]
        shrink: bool,
        /// Only print all findings, those of the list of exceptions included
        #[arg(long, conflicts_with = "shrink")]
        list: bool,
    },
    /// Run the loom models, and Miri and the sanitizers where a nightly toolchain has them
    Sanitize,
    /// Run clients and kill them between two hosts for a while, at MTU 1500 and 9000, with and without loss
    Soak {
        /// How long
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        /// The first seed; a failure names the seed of its round
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Instead: everything against rdma_rxe of two kernels in a guest, and the tests of `udp` on the guest's kernel
        #[arg(long)]
        guest: bool,
        /// Instead: many processes that are killed and stopped, in full length
        #[arg(long, conflicts_with = "guest")]
        chaos: bool,
        /// Instead: connections whose peer is silent for as long as all repetitions take, a million hostile messages, and files of a gibibyte
        #[arg(long, conflicts_with_all = ["guest", "chaos", "api"])]
        connections: bool,
        /// Instead: random calls of verbs by many threads of two processes, held against a model
        #[arg(long, conflicts_with_all = ["guest", "chaos"])]
        api: bool,
        /// With --api: this many threads in each round, instead of one to eight
        #[arg(long, requires = "api")]
        threads: Option<u32>,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Dist { profile } => dist::dist(&profile).map(|dist| println!("{}", dist.display())),
        Task::Package { crates: true, .. } => package::try_crates(),
        Task::Package { archs, check_reproducible, test, glibc, .. } => {
            package::package(&archs, check_reproducible, test, glibc.as_deref())
        }
        Task::Book { update: true, .. } => book::update(),
        Task::Book { keep, .. } => book::book(keep),
        Task::Demo => demo::demo(),
        Task::Test { filter, quick } => test::test(filter.as_deref(), quick),
        Task::Matrix { check } => matrix::matrix(check),
        Task::Perftest { only, run } => perftest::perftest(only.as_deref(), run),
        Task::Compat { only, quick } => compat::compat(only.as_deref(), quick),
        Task::Pyverbs => test::write_page("pyverbs"),
        Task::Conformance => test::write_page("conformance").and_then(|()| matrix::matrix(false)),
        Task::Bench { what } => bench::bench(&what),
        Task::Rooms { list: true, .. } => rooms::rooms(rooms::Action::List),
        Task::Rooms { shrink: true, .. } => rooms::rooms(rooms::Action::Shrink),
        Task::Rooms { .. } => rooms::rooms(rooms::Action::Check),
        Task::Prose { shrink, list } => prose::prose(shrink, list),
        Task::Sanitize => sanitize::sanitize(),
        Task::Soak { guest: true, .. } => soak::long("rxe").and_then(|()| soak::long("conformance")),
        Task::Soak { chaos: true, .. } => soak::long("chaos"),
        Task::Soak { connections: true, .. } => {
            ["cm_faults", "hostile_packets", "rsockets"].into_iter().try_for_each(soak::long)
        }
        Task::Soak { api: true, minutes, seed, threads, .. } => soak::api(minutes, seed, threads),
        Task::Soak { minutes, seed, .. } => soak::soak(minutes, seed),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
