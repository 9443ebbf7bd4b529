//! Connections on tokio.

use ferroce::session::{Connection, Driver};
use ferroce::verbs::Device;
use ferroce::{Inline, Result};

/// Two connections of this process.
async fn connect(driver: &Driver) -> Result<[Connection; 2]> {
    let pool = driver.domain().pool(32, 4096)?;
    let (a, b) = (driver.rc().build()?, driver.rc().build()?);
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    let a = driver.join(a, &pool, async |_| Ok(b_end)).await?;
    Ok([a, driver.join(b, &pool, async |_| Ok(a_end)).await?])
}

/// How many of the messages have come back.
pub async fn run(device: &Device, messages: u32) -> Result<u32> {
    let driver = Driver::tokio(&device.open()?)?;
    let [client, server] = connect(&driver).await?;
    let echo = tokio::spawn(async move {
        // Until the client closes its connection.
        while let Ok(message) = server.recv().await {
            server.send(message.into_buffer()).await?;
        }
        Ok::<_, ferroce::Error>(())
    });
    for number in 0..messages {
        client.send(Inline::from(&number.to_ne_bytes())).await?;
        assert_eq!(client.recv().await?[..], number.to_ne_bytes());
    }
    echo.abort();
    Ok(messages)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    println!("{} messages", runtime.block_on(run(&Device::native()?, 1000))?);
    Ok(())
}
