//! What an administrator may set, in `/etc/rdma/rsocket`: one number a file.

use std::sync::OnceLock;
use std::time::Duration;

/// Defaults of sockets and of waiting.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a call looks for completions before it sleeps.
    pub polling: Duration,
    /// Bytes of a message that its request contains, at most.
    pub inline: u32,
    /// Places of the send queue.
    pub send_queue: u16,
    /// Places of the receive queue.
    pub receive_queue: u16,
    /// Bytes of the receive buffer.
    pub receive_buffer: u32,
    /// Bytes of the send buffer.
    pub send_buffer: u32,
    /// Regions that a peer may write to by `riowrite`, at most.
    pub io_map_size: u16,
}

/// Fewest places of a queue.
pub const SMALLEST_QUEUE: u16 = 16;
/// Most places of a queue.
pub const LARGEST_QUEUE: u16 = 0xfffe;

fn number(file: &str) -> Option<u32> {
    std::fs::read_to_string(format!("/etc/rdma/rsocket/{file}")).ok()?.split_whitespace().next()?.parse().ok()
}

fn queue(file: &str, default: u16) -> u16 {
    let places = number(file).unwrap_or(default.into()).clamp(SMALLEST_QUEUE.into(), LARGEST_QUEUE.into());
    u16::try_from(places).unwrap_or(LARGEST_QUEUE)
}

/// Read once a process.
pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings {
        polling: Duration::from_micros(number("polling_time").unwrap_or(10).into()),
        inline: number("inline_default").unwrap_or(64),
        send_queue: queue("sqsize_default", 384),
        receive_queue: queue("rqsize_default", 384),
        receive_buffer: number("mem_default").unwrap_or(1 << 17).max(2),
        send_buffer: number("wmem_default").unwrap_or(1 << 17).max(1),
        io_map_size: u16::try_from(number("iomap_size").unwrap_or(0)).unwrap_or(u16::MAX),
    })
}
