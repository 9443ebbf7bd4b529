//! The examples, run as processes.

use ferroce_tests::helper::{self, Helper};
use ferroce_tests::inside::in_namespace;
use std::net::{TcpListener, TcpStream};

#[path = "../examples/greet.rs"]
#[expect(dead_code, reason = "the tests call what its `main` calls")]
mod greet;

/// What the book shows is the README's, whose blocks are compiled and run.
#[test]
fn the_books_programs_are_those_of_the_readme() {
    let read = |path| std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    let (readme, page) = (read("README.md").unwrap(), read("../../book/src/rust.md").unwrap());
    let blocks = |text: &str| -> Vec<String> {
        let ends = text.split("```").collect::<Vec<_>>();
        ends.iter()
            .skip(1)
            .step_by(2)
            .filter(|block| block.starts_with("rust"))
            .map(|&b| b.to_owned())
            .collect()
    };
    assert_eq!(blocks(&page), blocks(&readme));
    assert_eq!(blocks(&page).len(), 2);
}

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
