//! A program of a user: an echo over RDMA, which knows nothing of simulation.

use ferroce::Result;
use ferroce::verbs::{Device, Endpoint, Send};

/// Answers `count` messages. The connection lasts until `goodbye` returns: the last acknowledgement may be lost, so neither side
/// ends before the other is done.
pub fn serve(
    device: &Device,
    count: u64,
    meet: impl FnOnce(Endpoint) -> Endpoint,
    goodbye: impl FnOnce(),
) -> Result<()> {
    let domain = device.open()?;
    let pool = domain.pool(4, 1024)?;
    let mut cq = domain.cq(16)?;
    let mut setup = domain.rc(&cq).build()?;
    for tag in 0..2 {
        setup.recv(tag, pool.try_take().expect("a buffer"))?;
    }
    let peer = meet(setup.endpoint());
    let mut qp = setup.connect(&peer)?;
    let (mut answered, mut sent) = (0, 0);
    while sent < count {
        let mut done = cq.next(None)?.expect("a completion");
        done.result()?;
        let memory = done.take().buffer().expect("the memory of the request");
        if done.tag() < 2 {
            qp.post(2, Send::new(memory))?;
            answered += 1;
            if answered + 1 < count {
                qp.recv(0, pool.try_take().expect("a buffer"))?;
            }
        } else {
            sent += 1;
        }
    }
    goodbye();
    Ok(())
}

/// Sends messages, and returns the answers.
pub fn call(
    device: &Device,
    messages: &[&[u8]],
    meet: impl FnOnce(Endpoint) -> Endpoint,
    goodbye: impl FnOnce(),
) -> Result<Vec<Vec<u8>>> {
    let domain = device.open()?;
    let mut cq = domain.cq(16)?;
    let mut setup = domain.rc(&cq).build()?;
    for _ in messages {
        setup.recv(0, domain.alloc(1024)?)?;
    }
    let peer = meet(setup.endpoint());
    let mut qp = setup.connect(&peer)?;
    let mut answers = Vec::new();
    for message in messages {
        let mut buffer = domain.alloc(1024)?;
        buffer.fill(message);
        qp.post(1, Send::new(buffer))?;
        let (mut sent, mut received) = (false, false);
        while !(sent && received) {
            let mut done = cq.next(None)?.expect("a completion");
            done.result()?;
            if done.tag() == 1 {
                sent = true;
            } else {
                received = true;
                answers.push(done.take().buffer().expect("the memory of the receive").to_vec());
            }
        }
    }
    goodbye();
    Ok(answers)
}
