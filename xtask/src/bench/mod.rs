//! `cargo xtask bench`: measures the figures of the README, next to programs for comparison.
//!
//! In here: starting the programs, reading their output, tables and JSON. Out of here: tests of outcome, which never look at a clock.

mod compare;
mod connections;
pub(crate) mod curves;
mod fabric;
mod instructions;
mod local;
mod peers;
mod programs;
mod raw_memory;
mod raw_packet;
mod raw_udp;
mod report;
mod sizes;
mod verbs;
mod watching;
mod wire;

use clap::Subcommand;
use std::io;
use std::net::IpAddr;

/// What to measure.
#[derive(Subcommand)]
pub enum Bench {
    /// RC between two hosts joined by veth of MTU 9000 and 1500, beside iperf3 and plain UDP sockets, and with losses, in the same run
    Wire {
        /// Seconds of each bandwidth measurement
        #[arg(long, default_value_t = 3)]
        seconds: u64,
        /// Rounds; the table shows medians
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Two processes of one host over shared memory, beside UCX's, TCP, and what the machine can do, in the same run
    Local {
        /// Seconds of each bandwidth measurement
        #[arg(long, default_value_t = 2)]
        seconds: u64,
        /// Rounds; the table shows medians
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Only rows whose name contains this, as `messages`
        #[arg(long, default_value = "")]
        only: String,
    },
    /// The same over sizes of 8 bytes to 8 MiB, as curves, beside UCX, libfabric and what the machine can do
    Sizes {
        /// Seconds of each bandwidth measurement
        #[arg(long, default_value_t = 1)]
        seconds: u64,
        /// Rounds; the curves show medians
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Replace the figures and the curves of docs/benchmarks
        #[arg(long)]
        write: bool,
    },
    /// Hundreds of hosts in virtual time: incast, all-to-all and loss, with the transport's window, without one, and at best
    Fabric {
        /// Replace the figures and the picture of docs/benchmarks
        #[arg(long)]
        write: bool,
    },
    /// Ethernet frames of raw packet QPs between two hosts joined by veth, beside a plain packet socket, in the same run
    Raw {
        /// Seconds of each measurement
        #[arg(long, default_value_t = 2)]
        seconds: u64,
        /// Rounds; the table shows medians
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// Memory, descriptors and time of unused queue pairs
    Verbs {
        /// How many, an even number
        #[arg(long, default_value_t = 20_000)]
        count: u32,
        /// Rounds; the table shows medians
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// Connections a second through librdmacm, bandwidth and latency, beside the kernel's rdma_rxe in the same guest
    Connections {
        /// How many at once
        #[arg(long, default_value_t = 1000)]
        count: u32,
        /// Rounds; the table shows medians
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// What watching costs a pair that exchanges messages: ps, top and trace
    Watching {
        /// Seconds of each measurement
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// Rounds; the table shows medians
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// Instructions, allocations and system calls of 8-byte operations, held to docs/instructions.json
    Instructions {
        /// Replace the committed figures
        #[arg(long)]
        write: bool,
    },
    /// What two processes can do without a library (started by `local` inside its host)
    #[command(hide = true)]
    RawMemory {
        /// What to measure
        #[command(subcommand)]
        what: RawMemory,
    },
    /// One side of the plain UDP comparison (started by `wire` inside its hosts)
    #[command(hide = true)]
    RawUdp {
        /// Which side
        #[command(subcommand)]
        side: RawUdp,
    },
}

/// A measurement of bare shared memory.
#[derive(Subcommand)]
pub enum RawMemory {
    /// Copy into another process with process_vm_writev
    Copy {
        /// Bytes at a time
        size: usize,
        /// For how long
        seconds: u64,
    },
    /// Copy within a process
    Memcpy {
        /// Bytes at a time
        size: usize,
        /// For how long
        seconds: u64,
    },
    /// Copy into another process through a ring
    Pipeline {
        /// Bytes at a time
        size: usize,
        /// For how long
        seconds: u64,
    },
    /// Pass a cache line to and fro
    PingPong {
        /// How often
        iterations: u64,
    },
    /// Wake each other
    Events {
        /// How often
        iterations: u64,
    },
}

/// A side of the plain UDP comparison.
#[derive(Subcommand)]
pub enum RawUdp {
    /// Count what arrives, with UDP_GRO
    Sink {
        /// Where to listen
        port: u16,
    },
    /// Send trains with UDP_SEGMENT
    Source {
        /// The address to send to
        address: IpAddr,
        /// Its port
        port: u16,
        /// For how long
        seconds: u64,
        /// Bytes of one datagram
        segment: u16,
    },
    /// Count what arrives, with recvmmsg
    Count {
        /// Where to listen
        port: u16,
    },
    /// Send single datagrams with sendmmsg
    Shower {
        /// The address to send to
        address: IpAddr,
        /// Its port
        port: u16,
        /// For how long
        seconds: u64,
        /// Bytes of one datagram
        size: usize,
    },
    /// Return what arrives, polling
    Echo {
        /// Where to listen
        port: u16,
    },
    /// Send, poll for the answer, and again
    Ping {
        /// The address to send to
        address: IpAddr,
        /// Its port
        port: u16,
        /// How often
        iterations: usize,
        /// Bytes of one datagram
        size: usize,
    },
}

/// Runs a benchmark.
///
/// # Errors
/// The build fails, or a program that is being measured does.
pub fn bench(what: &Bench) -> io::Result<()> {
    match what {
        Bench::Wire { seconds, rounds } => wire::wire(*seconds, *rounds),
        Bench::Local { seconds, rounds, only } => local::local(*seconds, *rounds, only),
        Bench::Fabric { write } => fabric::fabric(*write),
        Bench::Sizes { seconds, rounds, write } => sizes::sizes(*seconds, *rounds, *write),
        Bench::Raw { seconds, rounds } => raw_packet::raw(*seconds, *rounds),
        Bench::Verbs { count, rounds } => verbs::verbs(*count, *rounds),
        Bench::Connections { count, rounds } => connections::connections(*count, *rounds),
        Bench::Watching { seconds, rounds } => watching::watching(*seconds, *rounds),
        Bench::Instructions { write } => instructions::instructions(*write),
        Bench::RawMemory { what } => match *what {
            RawMemory::Copy { size, seconds } => raw_memory::copy(size, seconds),
            RawMemory::Memcpy { size, seconds } => {
                raw_memory::memcpy(size, seconds);
                Ok(())
            }
            RawMemory::Pipeline { size, seconds } => raw_memory::pipeline(size, seconds),
            RawMemory::PingPong { iterations } => raw_memory::ping_pong(iterations),
            RawMemory::Events { iterations } => raw_memory::events(iterations),
        },
        Bench::RawUdp { side } => match *side {
            RawUdp::Sink { port } => raw_udp::sink(port),
            RawUdp::Source { address, port, seconds, segment } => {
                raw_udp::source((address, port).into(), seconds, segment)
            }
            RawUdp::Count { port } => raw_udp::count(port),
            RawUdp::Shower { address, port, seconds, size } => {
                raw_udp::shower((address, port).into(), seconds, size)
            }
            RawUdp::Echo { port } => raw_udp::echo(port),
            RawUdp::Ping { address, port, iterations, size } => {
                raw_udp::ping((address, port).into(), iterations, size)
            }
        },
    }
}
