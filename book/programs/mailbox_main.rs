//! The mailbox between two processes.

// ANCHOR: main
use ferroce::verbs::Device;
use mailbox::{LETTER, Outcome, by_completion, deliver, receive};
use std::net::{TcpListener, TcpStream};

/// `mailbox_main [system]` waits for a letter; `mailbox_main DEVICE HOST` delivers one.
fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let device = match words.first().map(String::as_str) {
        Some("system") => Device::system()?,
        _ => Device::native()?,
    };
    if let Some(host) = words.get(1) {
        return deliver(&device, TcpStream::connect((&**host, 7471))?, &[7; LETTER]);
    }
    let (tcp, _) = TcpListener::bind(("::", 7471))?.accept()?;
    let letter = receive(&device, tcp, by_completion)?;
    println!("a letter of {} bytes", letter.len());
    Ok(())
}
// ANCHOR_END: main
