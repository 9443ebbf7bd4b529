//! A connection without a runtime: a thread of the driver looks for completions, and the program's threads wait for their requests.

use ferroce::session::{Driver, Idle};
use ferroce::verbs::{Device, Send};
use ferroce::{Inline, Result};

#[path = "session_loop.rs"]
#[expect(dead_code, reason = "only what makes the connections is used here")]
pub mod session_loop;

/// How many of the messages have come back.
pub fn run(device: &Device, messages: u32) -> Result<u32> {
    let driver = Driver::thread(&device.open()?, Idle::Sleep)?;
    let [client, server] = session_loop::connect(&driver)?;
    let echo = std::thread::spawn(move || -> Result<()> {
        for _ in 0..messages {
            let message = server.recv_blocking()?;
            server.driver().run(server.send(message.into_buffer()))?;
        }
        Ok(())
    });
    for number in 0..messages {
        let sent = client.driver().run(client.post(Send::new(Inline::from(&number.to_ne_bytes()))))?;
        assert_eq!(client.recv_blocking()?[..], number.to_ne_bytes());
        sent.wait()?;
    }
    echo.join().expect("the other thread")?;
    Ok(messages)
}

fn main() -> Result<()> {
    println!("{} messages", run(&Device::native()?, 1000)?);
    Ok(())
}
