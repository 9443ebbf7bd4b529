//! A client that writes to two servers, of which one crashes at a moment of the seed. What the client was promised is there.

use ferroce::sim::{Disturbance, Faults, Host, Licences, Receiver, Sender, World, explore};
use ferroce::verbs::{Device, Endpoint, RcQp, Write};
use ferroce::{Inline, Kind, Remote, Result, rights};
use std::time::Duration;

/// How the programs exchange endpoints and tokens: in a real program, by TCP.
type Line = (Sender<Vec<u8>>, Receiver<Vec<u8>>);

/// Keeps a number that the client writes, until the client is done. Returns the number.
fn keep(device: &Device, line: &Line) -> Result<u64> {
    let domain = device.open()?;
    let cq = domain.cq(16)?;
    let number = domain.alloc(8)?.expose(rights::Write)?;
    let setup = domain.rc(&cq).build()?;
    line.0.send([&setup.endpoint().to_bytes()[..], &number.token().to_bytes()].concat());
    let theirs = line.1.recv().expect("an endpoint").try_into().expect("64 bytes");
    let _qp = setup.connect(&Endpoint::from_bytes(theirs)?)?;
    let _ = line.1.recv();
    Ok(number.word(0).load())
}

/// Writes 1, 2, 3 … to all servers, and returns the last number that each of those that still work has acknowledged.
fn write(device: &Device, lines: &[Line; 2], last: u64) -> Result<[Option<u64>; 2]> {
    let domain = device.open()?;
    let mut cq = domain.cq(64)?;
    let mut servers: Vec<Option<(RcQp, Remote<rights::Write>)>> = Vec::new();
    for line in lines {
        let setup = domain.rc(&cq).timeout(Duration::from_micros(20), 3).build()?;
        let theirs = line.1.recv().expect("an endpoint and a token");
        line.0.send(setup.endpoint().to_bytes().to_vec());
        let (endpoint, token) = theirs.split_at(64);
        let qp = setup.connect(&Endpoint::from_bytes(endpoint.try_into().expect("64 bytes"))?)?;
        servers.push(Some((qp, Remote::from_bytes(token.try_into().expect("24 bytes"))?)));
    }
    let mut acknowledged = [Some(0); 2];
    for number in 1..=last {
        let mut outstanding = 0;
        for (index, server) in servers.iter_mut().enumerate() {
            if let Some((qp, to)) = server {
                qp.post(index as u64, Write::new(Inline::from(&number.to_ne_bytes()), *to))?;
                outstanding += 1;
            }
        }
        for _ in 0..outstanding {
            let done = cq.next(None)?.expect("without a limit it ends with a completion");
            let index = done.tag() as usize;
            if done.result().is_ok() {
                acknowledged[index] = Some(number);
            } else {
                (servers[index], acknowledged[index]) = (None, None);
            }
        }
    }
    Ok(acknowledged)
}

fn line(world: &World) -> (Line, Line) {
    let ((to_server, at_server), (to_client, at_client)) = (world.channel(), world.channel());
    ((to_server, at_client), (to_client, at_server))
}

/// Runs a seed. Returns how many servers have survived.
pub fn run(world: &World) -> usize {
    const LAST: u64 = 20;
    world.faults(Faults { loss: 0.05, ..Faults::default() });
    let hosts: [Host; 3] = ["client", "one", "two"].map(|name| world.host(name));
    hosts.iter().for_each(|host| host.licences(Licences::all()));
    world.at(world.draw(Duration::ZERO..Duration::from_millis(60)), Disturbance::Crash(&hosts[1]));
    let ((one, at_one), (two, at_two)) = (line(world), line(world));
    let [client, one_device, two_device] = [0, 1, 2].map(|host| Device::simulated(&hosts[host]));
    let servers = [
        hosts[1].spawn(move || keep(&one_device, &at_one)),
        hosts[2].spawn(move || keep(&two_device, &at_two)),
    ];
    let lines = [one, two];
    let acknowledged = write(&client, &lines, LAST).unwrap();
    drop(lines);
    let mut survived = 0;
    for (server, acknowledged) in servers.into_iter().zip(acknowledged) {
        match server.result() {
            Some(kept) => {
                survived += 1;
                let kept = kept.unwrap();
                // More than was acknowledged may have arrived, and nothing less.
                assert!(
                    acknowledged.is_none_or(|acknowledged| kept >= acknowledged),
                    "{kept} of {acknowledged:?}"
                );
            }
            None => assert_eq!(Device::simulated(&hosts[1]).open().unwrap_err().kind(), Kind::Dead),
        }
    }
    assert_eq!(world.check(), Ok(()));
    survived
}

fn main() {
    explore(0..200, |world| assert!(run(&world) >= 1));
    println!("200 seeds: no acknowledged number was lost");
}
