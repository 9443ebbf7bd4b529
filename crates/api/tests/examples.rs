//! The examples, run as processes.

use ferroce::verbs::Device;
use ferroce_tests::helper::{self, Helper};
use ferroce_tests::inside::in_namespace;
use std::net::{TcpListener, TcpStream};

#[path = "../examples/greet.rs"]
#[expect(dead_code, reason = "the tests call what its `main` calls")]
mod greet;
#[path = "../examples/session_smol.rs"]
#[expect(dead_code, reason = "the tests call what its `main` calls")]
mod session_smol;
#[path = "../examples/session_thread.rs"]
#[expect(dead_code, reason = "the tests call what its `main` calls")]
mod session_thread;
#[cfg(feature = "tokio")]
#[path = "../examples/session_tokio.rs"]
#[expect(dead_code, reason = "the tests call what its `main` calls")]
mod session_tokio;

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
    assert_eq!(blocks(&page).len(), 4);
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

fn native() -> ferroce::verbs::Device {
    ferroce::verbs::Device::native().unwrap()
}

#[test]
fn a_loop_without_a_runtime_sends_messages() {
    in_namespace("a_loop_without_a_runtime_sends_messages", || {
        assert_eq!(session_thread::session_loop::run(&native(), 500).unwrap(), 500);
    });
}

#[test]
fn threads_wait_for_a_drivers_thread() {
    in_namespace("threads_wait_for_a_drivers_thread", || {
        assert_eq!(session_thread::run(&native(), 200).unwrap(), 200);
    });
}

#[test]
fn tasks_of_smol_exchange_messages() {
    in_namespace("tasks_of_smol_exchange_messages", || {
        assert_eq!(smol::block_on(session_smol::run(&native(), 200)).unwrap(), 200);
    });
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_of_tokio_exchange_messages() {
    in_namespace("tasks_of_tokio_exchange_messages", || {
        let runtimes =
            [tokio::runtime::Builder::new_multi_thread(), tokio::runtime::Builder::new_current_thread()];
        for mut runtime in runtimes {
            let runtime = runtime.enable_io().build().unwrap();
            assert_eq!(runtime.block_on(session_tokio::run(&native(), 200)).unwrap(), 200);
        }
    });
}

#[path = "../../../book/programs/mailbox.rs"]
#[expect(dead_code, reason = "the mistake is for the simulation")]
mod book_mailbox;

#[path = "../../../book/programs/mailbox_main.rs"]
#[expect(dead_code, reason = "the test is between its sides")]
mod book_mailbox_main;

// The name of the program's library.
extern crate self as mailbox;
pub use book_mailbox::{LETTER, Outcome, by_completion, deliver, receive};

fn sender() {
    let mut address = String::new();
    std::io::stdin().read_line(&mut address).unwrap();
    let tcp = TcpStream::connect(address.trim_end()).unwrap();
    deliver(&Device::native().unwrap(), tcp, &[7; LETTER]).unwrap();
}

#[test]
fn the_books_mailbox_works_between_processes() {
    if !helper::play(&[("sender", sender)]) {
        in_namespace("the_books_mailbox_works_between_processes", || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut sender = Helper::start("sender");
            sender.tell(&listener.local_addr().unwrap().to_string());
            let (tcp, _) = listener.accept().unwrap();
            let letter = receive(&Device::native().unwrap(), tcp, by_completion);
            assert_eq!(letter.unwrap(), [7; LETTER]);
        });
    }
}
