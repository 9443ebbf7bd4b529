//! Two hosts in turmoil, which has their TCP connections and the clock, and in a simulated RDMA network that follows this clock.

use ferroce::sim::{Faults, Licences, World};
use ferroce::verbs::{Cq, Device, Domain, Endpoint, RcQp, Send};
use ferroce::{Buffer, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use turmoil::net::{TcpListener, TcpStream};

/// The next completion: its tag and its buffer.
async fn next(world: &World, cq: &mut Cq) -> Result<(u64, Option<Buffer>)> {
    loop {
        let changed = world.changed();
        if let Some(mut done) = cq.poll()?.next() {
            return Ok((done.tag(), done.buffer()?));
        }
        changed.await;
    }
}

/// Connects a queue pair: the endpoints go over TCP.
async fn connect(device: &Device, tcp: &mut TcpStream) -> turmoil::Result<(Domain, Cq, RcQp)> {
    let domain = device.open()?;
    let cq = domain.cq(16)?;
    let mut setup = domain.rc(&cq).build()?;
    setup.recv(1, domain.alloc(4096)?)?;
    tcp.write_all(&setup.endpoint().to_bytes()).await?;
    let mut theirs = [0; 64];
    tcp.read_exact(&mut theirs).await?;
    Ok((domain, cq, setup.connect(&Endpoint::from_bytes(theirs)?)?))
}

/// Answers a message with its bytes in reverse order.
async fn serve(device: Device, world: World) -> turmoil::Result {
    let listener = TcpListener::bind(("0.0.0.0", 7471)).await?;
    let (mut tcp, _) = listener.accept().await?;
    let (_domain, mut cq, mut qp) = connect(&device, &mut tcp).await?;
    let (_, received) = next(&world, &mut cq).await?;
    let mut buffer = received.expect("the memory of the receive");
    buffer.reverse();
    qp.post(2, Send::new(buffer))?;
    next(&world, &mut cq).await?;
    // The last acknowledgement may be lost, so the queue pair lasts as long as the TCP connection.
    tcp.read_u8().await?;
    Ok(())
}

/// Sends a message, and returns the answer.
async fn call(device: Device, world: World, message: &[u8]) -> turmoil::Result<Vec<u8>> {
    let mut tcp = TcpStream::connect("server:7471").await?;
    let (domain, mut cq, mut qp) = connect(&device, &mut tcp).await?;
    let mut buffer = domain.alloc(4096)?;
    buffer.fill(message);
    qp.post(2, Send::new(buffer))?;
    let mut answer = None;
    while answer.is_none() {
        let (tag, buffer) = next(&world, &mut cq).await?;
        answer = buffer.filter(|_| tag == 1);
    }
    tcp.write_u8(0).await?;
    Ok(answer.expect("the loop ends with it").to_vec())
}

/// A client, a server, and the network between them.
pub fn run(seed: u64, message: &'static [u8]) -> turmoil::Result<String> {
    let mut sim = turmoil::Builder::new().rng_seed(seed).build();
    let world = World::driven(seed, || turmoil::sim_elapsed().unwrap_or_default());
    world.faults(Faults { loss: 0.1, ..Faults::default() });
    let (client, server) = (world.host("client"), world.host("server"));
    client.licences(Licences::all());
    server.licences(Licences::all());
    let network = world.clone();
    sim.host("network", move || {
        let world = network.clone();
        async move {
            world.drive(tokio::time::sleep).await;
            Ok(())
        }
    });
    let (device, beside) = (Device::simulated(&server), world.clone());
    sim.host("server", move || serve(device.clone(), beside.clone()));
    let (device, beside) = (Device::simulated(&client), world.clone());
    sim.client("client", async move {
        let expected: Vec<u8> = message.iter().rev().copied().collect();
        assert_eq!(call(device, beside, message).await?, expected);
        Ok(())
    });
    sim.run()?;
    Ok(world.trace().to_string())
}

fn main() -> turmoil::Result {
    print!("{}", run(7, b"hello over RDMA")?);
    Ok(())
}
