//! A mailbox: one program opens memory for letters, another writes a letter to it. Neither knows which device it runs on.

// ANCHOR: begin
use ferroce::verbs::{Cq, Device, Endpoint, Write};
use ferroce::{Exposed, Remote, rights};
use std::error::Error;
use std::io::{self, Read};

/// Bytes of a letter.
pub const LETTER: usize = 4000;

/// Memory that the other program may write.
pub type Mailbox = Exposed<rights::Write>;
/// A result, or any error.
pub type Outcome<T> = Result<T, Box<dyn Error>>;
// ANCHOR_END: begin

// ANCHOR: receive
/// Opens a mailbox, and returns the first letter. `arrived` waits for it.
/// `tcp` is a connection to the other program.
pub fn receive(
    device: &Device,
    mut tcp: impl Read + io::Write,
    arrived: fn(&mut Cq, &Mailbox) -> Outcome<()>,
) -> Outcome<Vec<u8>> {
    let domain = device.open()?;
    let mut cq = domain.cq(16)?;
    let mailbox = domain.alloc(LETTER)?.expose(rights::Write)?;
    let mut setup = domain.rc(&cq).build()?;
    setup.recv(1, domain.alloc(1)?)?;
    tcp.write_all(&setup.endpoint().to_bytes())?;
    tcp.write_all(&mailbox.token().to_bytes())?;
    let mut theirs = [0; 64];
    tcp.read_exact(&mut theirs)?;
    let _qp = setup.connect(&Endpoint::from_bytes(theirs)?)?;

    arrived(&mut cq, &mailbox)?;
    let mut letter = vec![0; LETTER];
    mailbox.load(0, &mut letter);
    // The other program's last acknowledgement may be lost: the queue pair exists until it is done.
    tcp.read_exact(&mut [0])?;
    Ok(letter)
}
// ANCHOR_END: receive

// ANCHOR: deliver
/// Writes a letter to the other program's mailbox.
pub fn deliver(device: &Device, mut tcp: impl Read + io::Write, letter: &[u8]) -> Outcome<()> {
    let domain = device.open()?;
    let mut cq = domain.cq(16)?;
    let setup = domain.rc(&cq).build()?;
    tcp.write_all(&setup.endpoint().to_bytes())?;
    let (mut theirs, mut token) = ([0; 64], [0; 24]);
    tcp.read_exact(&mut theirs)?;
    tcp.read_exact(&mut token)?;
    let mut qp = setup.connect(&Endpoint::from_bytes(theirs)?)?;

    let mut buffer = domain.alloc(LETTER)?;
    buffer.fill(letter);
    // The 32 bits make it a message: the other side gets a completion.
    qp.post(1, Write::new(buffer, Remote::<rights::Write>::from_bytes(token)?).imm(0))?;
    cq.next(None)?.expect("without a limit it ends with a completion").result()?;
    tcp.write_all(&[1])?;
    Ok(())
}
// ANCHOR_END: deliver

// ANCHOR: completion
/// Waits for the completion of the letter's WRITE.
pub fn by_completion(cq: &mut Cq, _: &Mailbox) -> Outcome<()> {
    Ok(cq.next(None)?.expect("without a limit it ends with a completion").result()?)
}
// ANCHOR_END: completion

// ANCHOR: last_byte
/// Waits until the last byte of the letter is there. Letters contain no zero.
pub fn by_last_byte(_: &mut Cq, mailbox: &Mailbox) -> Outcome<()> {
    let mut last = [0];
    while last == [0] {
        mailbox.load(LETTER - 1, &mut last);
    }
    Ok(())
}
// ANCHOR_END: last_byte
