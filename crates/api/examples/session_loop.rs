//! A connection without a runtime: the program has a loop of its own, which turns the driver and never sleeps.

use ferroce::session::{Connection, Driver};
use ferroce::verbs::{Device, Send};
use ferroce::{Inline, Result};

/// Two connections of this process.
pub fn connect(driver: &Driver) -> Result<[Connection; 2]> {
    let pool = driver.domain().pool(32, 4096)?;
    let (a, b) = (driver.rc().build()?, driver.rc().build()?);
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    Ok([
        driver.run(driver.join(a, &pool, async |_| Ok(b_end)))?,
        driver.run(driver.join(b, &pool, async |_| Ok(a_end)))?,
    ])
}

/// How many of the messages have come.
pub fn run(device: &Device, messages: u32) -> Result<u32> {
    let driver = Driver::manual(&device.open()?)?;
    let [client, server] = connect(&driver)?;
    let (mut sent, mut received) = (0, 0);
    while received < messages {
        // Sends as many as the queue takes. What has ended needs no look: dropping an `Op` cancels nothing.
        while sent < messages && client.try_post(Send::new(Inline::from(&sent.to_ne_bytes()))).is_ok() {
            sent += 1;
        }
        driver.turn();
        while let Some(message) = server.try_recv()? {
            assert_eq!(message[..], received.to_ne_bytes());
            received += 1;
        }
    }
    Ok(received)
}

fn main() -> Result<()> {
    println!("{} messages", run(&Device::native()?, 1000)?);
    Ok(())
}
