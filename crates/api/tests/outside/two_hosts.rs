//! A user's tests of two hosts.

use ferroce::sim::{Faults, World, explore};
use ferroce::verbs::Device;
use outside::{call, serve};

fn echo(world: &World, answered: u64) {
    world.faults(Faults { loss: 0.05, reorder: 0.1, duplicate: 0.05, ..Faults::default() });
    let (client, server) = (world.host("client"), world.host("server"));
    let (to_server, at_server) = world.channel();
    let (to_client, at_client) = world.channel();
    let (client_done, until_client_done) = world.channel();
    let (server_done, until_server_done) = world.channel();
    let device = Device::simulated(&server);
    let server = server.spawn(move || {
        let meet = |mine| {
            to_client.send(mine);
            at_server.recv().unwrap()
        };
        let goodbye = || {
            server_done.send(());
            until_client_done.recv().unwrap();
        };
        serve(&device, answered, meet, goodbye).unwrap();
    });
    let messages: [&[u8]; 5] = [b"one", b"two", b"", b"three", &[9; 1024]];
    let meet = |mine| {
        to_server.send(mine);
        at_client.recv().unwrap()
    };
    let goodbye = || {
        client_done.send(());
        until_server_done.recv().unwrap();
    };
    let answers = call(&Device::simulated(&client), &messages, meet, goodbye);
    assert_eq!(answers.unwrap(), messages);
    server.join();
}

#[test]
fn an_echo_survives_loss() {
    explore(0..50, |world| echo(&world, 5));
}

#[test]
#[ignore = "fails, as it should: the server forgets receives, and the seeds find it"]
fn a_server_that_forgets_receives_is_found() {
    explore(0..50, |world| {
        let wrong = world.host("wrong");
        let right = world.host("right");
        let a = Device::simulated(&wrong).open().unwrap();
        let b = Device::simulated(&right).open().unwrap();
        let (a_cq, mut b_cq) = (a.cq(16).unwrap(), b.cq(16).unwrap());
        let retry = std::time::Duration::from_millis(1);
        let forgets = a.rc(&a_cq).receiver_not_ready(retry, None).build().unwrap();
        let sends = b.rc(&b_cq).receiver_not_ready(retry, None).build().unwrap();
        let ends = (forgets.endpoint(), sends.endpoint());
        let _forgets = forgets.connect(&ends.1).unwrap();
        let mut sends = sends.connect(&ends.0).unwrap();
        sends.post(1, ferroce::verbs::Send::new(())).unwrap();
        b_cq.next(None).unwrap().unwrap().result().unwrap();
    });
}
