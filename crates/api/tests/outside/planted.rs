//! Programs of a user, each with a mistake that most adapters forgive. They know nothing of simulation.

use ferroce::verbs::{Device, Endpoint, Operated, RcQp, Read, Send, Write};
use ferroce::{Exposed, Inline, Remote, Result, rights};
use std::time::Duration;

/// Bytes of a block: several packets.
pub const BLOCK: usize = 4096;

/// How endpoints and tokens go from one program to the other.
pub trait Meet {
    /// Exchanges endpoints.
    fn endpoints(&self, mine: Endpoint) -> Endpoint;
    /// Sends a token.
    fn send_token(&self, token: [u8; 24]);
    /// Receives a token.
    fn token(&self) -> [u8; 24];
    /// Waits until the other side is done, too: the last acknowledgement may be lost.
    fn goodbye(&self);
}

/// Which version of a program runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Version {
    Right,
    Wrong,
}

fn is_whole(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == block[0])
}

/// Waits for a block that the peer writes, and returns whether all of it was there. Mistake: it polls the last byte.
pub fn await_block(device: &Device, meet: &impl Meet, version: Version) -> Result<bool> {
    let domain = device.open()?;
    let mut cq = domain.cq(16)?;
    let mut setup = domain.rc(&cq).build()?;
    setup.recv(1, domain.alloc(8)?)?;
    let block = domain.alloc(BLOCK)?.expose(rights::Write)?;
    let peer = meet.endpoints(setup.endpoint());
    let _qp = setup.connect(&peer)?;
    meet.send_token(block.token().to_bytes());
    match version {
        Version::Right => cq.next(None)?.expect("a completion").result()?,
        Version::Wrong => {
            let mut last = [0];
            while last == [0] {
                block.load(BLOCK - 1, &mut last);
            }
        }
    }
    let mut bytes = vec![0; BLOCK];
    block.load(0, &mut bytes);
    meet.goodbye();
    Ok(bytes[0] == 7 && is_whole(&bytes))
}

/// Writes the block of [`await_block`].
pub fn write_block(device: &Device, meet: &impl Meet) -> Result<()> {
    let domain = device.open()?;
    let mut cq = domain.cq(16)?;
    let setup = domain.rc(&cq).build()?;
    let peer = meet.endpoints(setup.endpoint());
    let mut qp = setup.connect(&peer)?;
    let to = Remote::<rights::Write>::from_bytes(meet.token())?;
    let mut block = domain.alloc(BLOCK)?;
    block.fill(&[7; BLOCK]);
    qp.post(1, Write::new(block, to).imm(0))?;
    cq.next(None)?.expect("a completion").result()?;
    meet.goodbye();
    Ok(())
}

/// Answers requests: writes the number of the request to the place that it names, and notifies.
pub fn serve_numbers(device: &Device, meet: &impl Meet, requests: usize) -> Result<()> {
    let domain = device.open()?;
    let mut cq = domain.cq(64)?;
    let mut setup = domain.rc(&cq).send_depth(32).recv_depth(32).build()?;
    for _ in 0..requests {
        setup.recv(1, domain.alloc(32)?)?;
    }
    let peer = meet.endpoints(setup.endpoint());
    let mut qp = setup.connect(&peer)?;
    let mut open = requests * 3;
    while open > 0 {
        let mut done = cq.next(None)?.expect("a completion");
        done.result()?;
        open -= 1;
        if done.what() == Operated::Received {
            let request = done.take().buffer().expect("the memory of the receive");
            let to = Remote::<rights::Write>::from_bytes(request[8..].try_into().expect("a token"))?;
            qp.post(2, Write::new(Inline::from(&request[..8]), to))?;
            qp.post(3, Send::new(()))?;
        }
    }
    meet.goodbye();
    Ok(())
}

/// Asks for numbers, and returns those that came. Mistake: after a timeout it uses the memory of the answer for the next request.
pub fn ask_numbers(device: &Device, meet: &impl Meet, requests: u64, version: Version) -> Result<Vec<(u64, u64)>> {
    let domain = device.open()?;
    let (sends, mut receives) = (domain.cq(64)?, domain.cq(64)?);
    let mut setup = domain.rc(&sends).recv_cq(&receives).send_depth(32).recv_depth(32).build()?;
    for _ in 0..requests {
        setup.recv(1, domain.alloc(8)?)?;
    }
    let answer = domain.alloc(8)?.expose(rights::Write)?;
    let peer = meet.endpoints(setup.endpoint());
    let mut qp = setup.connect(&peer)?;
    let mut answers = Vec::new();
    for number in 1..=requests {
        let request = [&number.to_le_bytes()[..], &answer.token().to_bytes()].concat();
        qp.post(2, Send::new(Inline::from(&request[..])))?;
        let limit = (version == Version::Wrong).then_some(Duration::from_micros(50));
        if receives.wait(limit)? {
            receives.next(None)?.expect("a completion").result()?;
            answers.push((number, answer.word(0).load()));
        }
    }
    meet.goodbye();
    Ok(answers)
}

/// Receives messages in pairs. Mistake: when none has come for a while, it forgets the receives that it owes.
pub fn receive_pairs(device: &Device, meet: &impl Meet, messages: usize, version: Version) -> Result<()> {
    let domain = device.open()?;
    let pool = domain.pool(4, 64)?;
    let mut cq = domain.cq(16)?;
    let mut setup = domain.rc(&cq).build()?;
    for _ in 0..4 {
        setup.recv(1, pool.try_take().expect("a buffer"))?;
    }
    let peer = meet.endpoints(setup.endpoint());
    let mut qp = setup.connect(&peer)?;
    let (mut received, mut owed) = (0, 0);
    while received < messages {
        match cq.next(Some(Duration::from_micros(20)))? {
            Some(done) => {
                done.result()?;
                (received, owed) = (received + 1, owed + 1);
            }
            None if version == Version::Wrong => owed = 0,
            None => {}
        }
        if owed == 2 {
            for _ in 0..2 {
                qp.recv(1, pool.try_take().expect("a buffer"))?;
            }
            owed = 0;
        }
    }
    meet.goodbye();
    Ok(())
}

/// Sends messages in pairs.
pub fn send_pairs(device: &Device, meet: &impl Meet, messages: usize) -> Result<()> {
    let domain = device.open()?;
    let mut cq = domain.cq(16)?;
    let setup = domain.rc(&cq).receiver_not_ready(Duration::from_micros(40), None).build()?;
    let peer = meet.endpoints(setup.endpoint());
    let mut qp = setup.connect(&peer)?;
    for _ in 0..messages / 2 {
        qp.post(1, Send::new(()))?;
        qp.post(1, Send::new(()))?;
        for _ in 0..2 {
            cq.next(None)?.expect("a completion").result()?;
        }
    }
    meet.goodbye();
    Ok(())
}

/// Writes a block and notifies the peer. Mistake: the notification goes by another queue pair.
pub fn write_and_notify(device: &Device, meet: &impl Meet, version: Version) -> Result<()> {
    let domain = device.open()?;
    let mut cq = domain.cq(32)?;
    let connect = || -> Result<RcQp> {
        let setup = domain.rc(&cq).build()?;
        let theirs = meet.endpoints(setup.endpoint());
        Ok(setup.connect(&theirs)?)
    };
    let (mut data, mut control) = (connect()?, connect()?);
    let to = Remote::<rights::Write>::from_bytes(meet.token())?;
    let mut block = domain.alloc(BLOCK)?;
    block.fill(&[7; BLOCK]);
    data.post(1, Write::new(block, to))?;
    let notifies = if version == Version::Wrong { &mut control } else { &mut data };
    notifies.post(2, Send::new(()))?;
    for _ in 0..2 {
        cq.next(None)?.expect("a completion").result()?;
    }
    meet.goodbye();
    Ok(())
}

/// Waits for a notification by either of two queue pairs, and returns whether the block was there.
pub fn await_notification(device: &Device, meet: &impl Meet) -> Result<bool> {
    let domain = device.open()?;
    let mut cq = domain.cq(32)?;
    let block = domain.alloc(BLOCK)?.expose(rights::Write)?;
    let mut both = Vec::new();
    for _ in 0..2 {
        let mut setup = domain.rc(&cq).build()?;
        setup.recv(1, domain.alloc(8)?)?;
        let theirs = meet.endpoints(setup.endpoint());
        both.push(setup.connect(&theirs)?);
    }
    meet.send_token(block.token().to_bytes());
    cq.next(None)?.expect("a completion").result()?;
    let mut bytes = vec![0; BLOCK];
    block.load(0, &mut bytes);
    meet.goodbye();
    Ok(bytes[0] == 7 && is_whole(&bytes))
}

/// Lets a peer read a block that changes. Mistake: it changes while it may be read.
pub fn publish_block(device: &Device, meet: &impl Meet, version: Version) -> Result<()> {
    let domain = device.open()?;
    let mut cq = domain.cq(16)?;
    let mut setup = domain.rc(&cq).build()?;
    setup.recv(1, domain.alloc(8)?)?;
    let block: Exposed<rights::Read> = domain.alloc(BLOCK)?.expose(rights::Read)?;
    let peer = meet.endpoints(setup.endpoint());
    let _qp = setup.connect(&peer)?;
    meet.send_token(block.token().to_bytes());
    // The reader's message ends the loop.
    for version_of_block in (0..=u8::MAX).cycle() {
        if cq.wait(Some(Duration::from_micros(5)))? {
            break;
        }
        if version == Version::Wrong {
            block.store(0, &[version_of_block; BLOCK]);
        }
    }
    cq.next(None)?.expect("a completion").result()?;
    meet.goodbye();
    Ok(())
}

/// Reads the block of [`publish_block`], and returns whether it was of one version.
pub fn read_block(device: &Device, meet: &impl Meet) -> Result<bool> {
    let domain = device.open()?;
    let mut cq = domain.cq(16)?;
    let setup = domain.rc(&cq).timeout(Duration::from_micros(10), 7).build()?;
    let peer = meet.endpoints(setup.endpoint());
    let mut qp = setup.connect(&peer)?;
    let from = Remote::<rights::Read>::from_bytes(meet.token())?;
    let mut whole = true;
    for _ in 0..4 {
        qp.post(1, Read::new(domain.alloc(BLOCK)?, from))?;
        let mut read = cq.next(None)?.expect("a completion");
        whole &= is_whole(&read.buffer()?.expect("the memory of the READ"));
    }
    qp.post(2, Send::new(()))?;
    cq.next(None)?.expect("a completion").result()?;
    meet.goodbye();
    Ok(whole)
}

/// Sends a message to a peer that has a receive posted. Mistake: it allows no RNR retry.
pub fn send_at_once(device: &Device, meet: &impl Meet, version: Version) -> Result<()> {
    let domain = device.open()?;
    let mut cq = domain.cq(16)?;
    let retries = if version == Version::Wrong { 0 } else { 3 };
    let setup = domain.rc(&cq).receiver_not_ready(Duration::from_micros(10), Some(retries)).build()?;
    let peer = meet.endpoints(setup.endpoint());
    let mut qp = setup.connect(&peer)?;
    qp.post(1, Send::new(()))?;
    let sent = cq.next(None)?.expect("a completion").result();
    meet.goodbye();
    Ok(sent?)
}

/// Receives the message of [`send_at_once`].
pub fn receive_one(device: &Device, meet: &impl Meet) -> Result<()> {
    let domain = device.open()?;
    let mut cq = domain.cq(16)?;
    let mut setup = domain.rc(&cq).build()?;
    setup.recv(1, domain.alloc(8)?)?;
    let peer = meet.endpoints(setup.endpoint());
    let _qp = setup.connect(&peer)?;
    cq.next(None)?.expect("a completion").result()?;
    meet.goodbye();
    Ok(())
}

/// Makes what a server of many connections needs. Mistake: it expects a completion queue of any size, and memory without end.
pub fn prepare(device: &Device, version: Version) -> Result<usize> {
    let domain = device.open()?;
    let wanted = 4096;
    let entries = if version == Version::Right { wanted.min(device.limits().cq_entries) } else { wanted };
    let _cq = domain.cq(entries)?;
    let mut buffers = Vec::new();
    for _ in 0..8 {
        match domain.alloc(64) {
            Ok(buffer) => buffers.push(buffer),
            Err(_) if version == Version::Right => break,
            Err(error) => return Err(error),
        }
    }
    Ok(buffers.len())
}
