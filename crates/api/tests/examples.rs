//! The examples, run as processes.

use ferroce_tests::helper::{self, Helper};
use ferroce_tests::inside::in_namespace;
use std::net::{TcpListener, TcpStream};

#[path = "../examples/greet.rs"]
#[allow(dead_code)] // its `main`
mod greet;

fn client() {
    let mut address = String::new();
    std::io::stdin().read_line(&mut address).unwrap();
    greet::greet(TcpStream::connect(address.trim_end()).unwrap()).unwrap();
}

#[test]
fn a_client_greets_a_server() {
    if !helper::play(&[("client", client)]) {
        in_namespace("a_client_greets_a_server", || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = Helper::start("client");
            client.tell(&listener.local_addr().unwrap().to_string());
            assert_eq!(greet::serve(listener.accept().unwrap().0).unwrap(), "hello over RDMA");
        });
    }
}
