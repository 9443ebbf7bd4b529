//! Two processes of one host over message sizes of 8 bytes to 8 MiB, beside UCX, libfabric and what the machine can do, in the
//! same run: the curves of `docs/benchmarks`. A test holds the curves to the figures.

use super::curves::{Curve, Picture, Point};
use super::peers::{
    POSIX_CMA, TCP, bare_copy, libfabric_latency, memcpy, memcpy_time, ucx_bandwidth, ucx_latency,
    ucx_messages,
};
use super::programs::Programs;
use super::report::{Machine, Row, save, write};
use crate::apt;
use crate::dist::workspace;
use ferroce_tests::World;
use serde::Serialize;
use std::path::PathBuf;
use std::{fs, io};

const SIZES: [u32; 8] = [8, 64, 512, 4096, 32 << 10, 256 << 10, 2 << 20, 8 << 20];
/// Sizes whose rate is given in messages instead of bytes.
const SMALL: [u32; 4] = [8, 64, 512, 4096];
/// Round trips of small messages; of large ones there are as many as make so many bytes.
const ROUND_TRIPS: usize = 10_000;
const BYTES: usize = 512 << 20;
const FEWEST_ROUND_TRIPS: usize = 50;

/// Measures, prints tables and writes `bench/sizes.json` in the target directory; `replace`: and what is in `docs/benchmarks`.
///
/// # Errors
/// A program isn't installed, fails, or prints something that isn't understood.
pub fn sizes(seconds: u64, rounds: usize, replace: bool) -> io::Result<()> {
    apt::install_for_bench();
    let tools =
        [("ib_write_bw", "perftest"), ("ucx_perftest", "ucx-utils"), ("fi_pingpong", "libfabric-bin")];
    let programs = Programs::new(|| World::one_host(9000), seconds, &tools)?;
    let plans = plans();
    let mut pictures: Vec<Picture> = plans.iter().map(Plan::picture).collect();
    for round in 1..=rounds {
        programs.begin_round(round, rounds);
        for (plan, picture) in plans.iter().zip(&mut pictures) {
            // All that is compared of one size follows each other: the machine is the same.
            for (at, &size) in plan.sizes.iter().enumerate() {
                for ((_, measure), curve) in plan.curves.iter().zip(&mut picture.curves) {
                    curve.points[at].figure.add(measure(&programs, size)?);
                }
            }
        }
    }
    let report = Report { machine: Machine::this(), seconds, pictures };
    println!("\n{}", report.machine);
    report.pictures.iter().for_each(Picture::print);
    save("sizes", &report)?;
    if replace {
        fs::create_dir_all(directory())?;
        for picture in &report.pictures {
            fs::write(directory().join(&picture.name).with_extension("svg"), picture.draw())?;
        }
        write(&figures(), &report)?;
    }
    Ok(())
}

/// Everything measured in one run.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    machine: Machine,
    seconds: u64,
    pictures: Vec<Picture>,
}

type Measure = Box<dyn Fn(&Programs, u32) -> io::Result<f64>>;

/// What a picture is made of.
struct Plan {
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    sizes: &'static [u32],
    curves: Vec<(&'static str, Measure)>,
}

impl Plan {
    /// The picture, of which nothing has been measured yet.
    fn picture(&self) -> Picture {
        let points = || {
            let point = |&bytes: &u32| Point { bytes, figure: Row::default() };
            self.sizes.iter().map(point).collect()
        };
        let curves = self.curves.iter().map(|(what, _)| Curve { what: (*what).into(), points: points() });
        Picture {
            name: self.name.into(),
            title: self.title.into(),
            unit: self.unit.into(),
            curves: curves.collect(),
        }
    }
}

fn plans() -> Vec<Plan> {
    fn curve(
        what: &'static str,
        measure: impl Fn(&Programs, u32) -> io::Result<f64> + 'static,
    ) -> (&'static str, Measure) {
        (what, Box::new(measure))
    }
    let latency = |what, tool: &'static str, options: &'static [&'static str]| {
        curve(what, move |programs, size| programs.latency_of(tool, options, size, round_trips(size)))
    };
    let bandwidth =
        |what, tool: &'static str| curve(what, move |programs, size| programs.bandwidth(tool, size));
    let rate = |what, tool: &'static str, options: &'static [&'static str]| {
        curve(what, move |programs, size| programs.messages(tool, options, size))
    };
    vec![
        Plan {
            name: "latency",
            title: "One host: half a round trip in µs (less is better)",
            unit: "µs",
            sizes: &SIZES,
            curves: vec![
                latency("SEND (ib_send_lat)", "ib_send_lat", &[]),
                latency("SEND with events (ib_send_lat -e)", "ib_send_lat", &["-e"]),
                latency("WRITE (ib_write_lat)", "ib_write_lat", &[]),
                curve("WRITE to memory that can be shared (--mmap)", |programs, size| {
                    programs.latency_of_files("ib_write_lat", size, round_trips(size))
                }),
                curve("UCX posix and cma (tag_lat)", |programs, size| {
                    ucx_latency(programs, POSIX_CMA, "tag_lat", size, round_trips(size))
                }),
                curve("UCX tcp (tag_lat)", |programs, size| {
                    ucx_latency(programs, TCP, "tag_lat", size, round_trips(size))
                }),
                curve("libfabric shm (fi_pingpong)", |programs, size| {
                    libfabric_latency(programs, size, round_trips(size))
                }),
                curve("one memcpy", memcpy_time),
            ],
        },
        Plan {
            name: "bandwidth",
            title: "One host: Gbit/s (more is better)",
            unit: "Gbit/s",
            sizes: &SIZES,
            curves: vec![
                bandwidth("SEND (ib_send_bw)", "ib_send_bw"),
                bandwidth("WRITE (ib_write_bw)", "ib_write_bw"),
                bandwidth("READ (ib_read_bw)", "ib_read_bw"),
                curve("WRITE to memory that can be shared (--mmap)", |programs, size| {
                    programs.bandwidth_of_files("ib_write_bw", size)
                }),
                curve("UCX posix and cma (tag_bw)", |programs, size| {
                    ucx_bandwidth(programs, POSIX_CMA, "tag_bw", size)
                }),
                curve("UCX posix and cma (ucp_put_bw)", |programs, size| {
                    ucx_bandwidth(programs, POSIX_CMA, "ucp_put_bw", size)
                }),
                curve("UCX tcp (tag_bw)", |programs, size| ucx_bandwidth(programs, TCP, "tag_bw", size)),
                curve("process_vm_writev", bare_copy),
                curve("memcpy", memcpy),
            ],
        },
        Plan {
            name: "rate",
            title: "One host: million messages a second (more is better)",
            unit: "million a second",
            sizes: &SMALL,
            curves: vec![
                rate("SEND, 1 QP (ib_send_bw)", "ib_send_bw", &[]),
                rate("SEND, 16 QPs (ib_send_bw -q 16)", "ib_send_bw", &["-q", "16"]),
                rate("WRITE, 1 QP (ib_write_bw)", "ib_write_bw", &[]),
                rate("WRITE, 16 QPs (ib_write_bw -q 16)", "ib_write_bw", &["-q", "16"]),
                curve("UCX posix and cma (tag_bw)", |programs, size| {
                    ucx_messages(programs, POSIX_CMA, "tag_bw", size)
                }),
                curve("UCX tcp (tag_bw)", |programs, size| ucx_messages(programs, TCP, "tag_bw", size)),
            ],
        },
    ]
}

fn round_trips(size: u32) -> usize {
    (BYTES / size as usize).clamp(FEWEST_ROUND_TRIPS, ROUND_TRIPS)
}

/// Where the committed figures and curves are.
fn directory() -> PathBuf {
    workspace().join("docs/benchmarks")
}

/// The committed figures.
fn figures() -> PathBuf {
    directory().join("sizes.json")
}

#[test]
fn the_curves_are_those_of_the_figures() {
    #[derive(serde::Deserialize)]
    struct Committed {
        pictures: Vec<Picture>,
    }
    let text = fs::read_to_string(figures()).expect("the committed figures");
    let committed: Committed = serde_json::from_str(&text).expect("figures");
    let page = fs::read_to_string(directory().join("README.md")).expect("the page");
    for (picture, plan) in committed.pictures.iter().zip(plans()) {
        let curves: Vec<&str> = picture.curves.iter().map(|curve| curve.what.as_str()).collect();
        let planned: Vec<&str> = plan.curves.iter().map(|(what, _)| *what).collect();
        assert_eq!((picture.name.as_str(), curves), (plan.name, planned), "measure with --write");
        let there = fs::read_to_string(directory().join(&picture.name).with_extension("svg"));
        assert!(
            there.is_ok_and(|there| there == picture.draw()),
            "{}.svg isn't of the figures",
            picture.name
        );
        assert!(
            page.contains(&format!("{}.svg", picture.name)),
            "the page doesn't show {}.svg",
            picture.name
        );
    }
    assert_eq!(committed.pictures.len(), plans().len());
}
