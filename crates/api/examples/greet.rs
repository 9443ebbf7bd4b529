//! Two programs, on one host or on two: `cargo run --example greet`, and then `cargo run --example greet HOST`.

use ferroce::verbs::{Device, Endpoint, RcQp, Reliable, Send, Setup};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const PORT: u16 = 18_515;

fn main() -> Result<()> {
    match std::env::args().nth(1) {
        None => {
            println!("waiting for a client at TCP port {PORT}");
            let (tcp, _) = TcpListener::bind(("::", PORT))?.accept()?;
            println!("received: {}", serve(tcp)?);
        }
        Some(host) => greet(TcpStream::connect((host, PORT))?)?,
    }
    Ok(())
}

/// Exchanges endpoints with the peer, and connects to its queue pair.
fn connect(setup: Setup<Reliable>, tcp: &mut TcpStream) -> Result<RcQp> {
    tcp.write_all(&setup.endpoint().to_bytes())?;
    let mut theirs = [0; 64];
    tcp.read_exact(&mut theirs)?;
    let qp = setup.connect(&Endpoint::from_bytes(theirs)?)?;
    // The peer sends when both are connected.
    tcp.write_all(b"!")?;
    tcp.read_exact(&mut [0])?;
    Ok(qp)
}

/// Receives one message.
pub fn serve(mut tcp: TcpStream) -> Result<String> {
    let domain = Device::native()?.open()?;
    let mut cq = domain.cq(16)?;
    let mut setup = domain.rc(&cq).build()?;
    setup.recv(1, domain.alloc(256)?)?;
    let _qp = connect(setup, &mut tcp)?;
    let mut received = cq.next(None)?.ok_or("a wait without a limit ends with a completion")?;
    let message = received.buffer()?.ok_or("a receive has a buffer")?;
    // The queue pair is destroyed only after the client has its acknowledgement.
    tcp.read_to_end(&mut Vec::new())?;
    Ok(String::from_utf8_lossy(&message).into_owned())
}

/// Sends one message.
pub fn greet(mut tcp: TcpStream) -> Result<()> {
    let domain = Device::native()?.open()?;
    let mut cq = domain.cq(16)?;
    let setup = domain.rc(&cq).build()?;
    let mut qp = connect(setup, &mut tcp)?;
    let mut hello = domain.alloc(256)?;
    hello.fill(b"hello over RDMA");
    qp.post(2, Send::new(hello))?;
    let sent = cq.next(None)?.ok_or("a wait without a limit ends with a completion")?;
    sent.result()?;
    Ok(())
}
