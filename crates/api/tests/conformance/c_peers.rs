//! C programs of librdmacm as peers of the adapter in the process, in both directions.

use ferroce::cm::Listener;
use ferroce::session::{Connection, Driver};
use ferroce::verbs::Device;
use ferroce_tests::inside::in_namespace;
use ferroce_tests::{Artifacts, require};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Where the C program and Ferroce's library for C are. They are made outside of the test's namespace.
const PROGRAM: &str = "FERROCE_TEST_C_PEER";
const LIBRARIES: &str = "FERROCE_TEST_C_LIBRARIES";

/// A C program, which is killed if it hasn't ended.
struct Peer {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Peer {
    fn start(words: &[&str]) -> Self {
        let mut child = Command::new(std::env::var_os(PROGRAM).unwrap())
            .args(words)
            .env("LD_LIBRARY_PATH", std::env::var_os(LIBRARIES).unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Its output, if it has succeeded.
    fn end(mut self) -> String {
        let mut text = String::new();
        self.lines.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success(), "{text}");
        text
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn driver() -> Driver {
    Driver::manual(&Device::native().unwrap().open().unwrap()).unwrap()
}

fn prepare() -> Result<(), ferroce_tests::Skip> {
    if std::env::var_os(PROGRAM).is_none() {
        let program = Artifacts::get().c_program("connections/rust_peer")?;
        // SAFETY: the test's process has no other thread that uses the environment.
        unsafe {
            std::env::set_var(PROGRAM, program);
            std::env::set_var(LIBRARIES, Artifacts::get().library_dir());
        }
    }
    Ok(())
}

#[test]
fn a_c_program_connects_to_a_listener() {
    require!(prepare());
    in_namespace("c_peers::a_c_program_connects_to_a_listener", || {
        let driver = driver();
        let pool = driver.domain().pool(16, 256).unwrap();
        let mut listener = Listener::bind(&driver, "127.0.0.1:0").unwrap();
        let peer = Peer::start(&["client", &listener.local_addr().port().to_string()]);
        driver.run(async {
            let incoming = listener.accept().await.unwrap();
            assert_eq!(&incoming.private_data()[..7], b"from C\0");
            let connection = incoming.answer(b"from Rust").accept(&pool).await.unwrap();
            let message = connection.recv().await.unwrap();
            assert_eq!(&message[..], b"hello from C");
            // The program may end before its last acknowledgement is here.
            let _ = connection.send(message.into_buffer()).await;
            let fault = connection.closed().await;
            assert!(fault.to_string().contains("the peer has ended"), "{fault}");
        });
        let said = peer.end();
        assert!(said.contains("private data: from Rust") && said.contains("message: hello from C"), "{said}");
    });
}

#[test]
fn a_connection_is_made_with_a_c_program() {
    require!(prepare());
    in_namespace("c_peers::a_connection_is_made_with_a_c_program", || {
        let driver = driver();
        let pool = driver.domain().pool(16, 256).unwrap();
        let mut peer = Peer::start(&["server"]);
        let line = peer.line();
        let port = line.strip_prefix("port ").unwrap_or_else(|| panic!("{line}"));
        driver.run(async {
            let connecting = Connection::connect(&driver, &format!("127.0.0.1:{port}"), &pool);
            let connection = connecting.private_data(b"from Rust").await.unwrap();
            assert_eq!(&connection.private_data()[..7], b"from C\0");
            let mut hello = pool.take().await;
            hello.fill(b"hello from Rust");
            connection.send(hello).await.unwrap();
            assert_eq!(&connection.recv().await.unwrap()[..], b"hello from Rust");
            let fault = connection.closed().await;
            assert!(fault.to_string().contains("the peer has ended"), "{fault}");
        });
        let said = peer.end();
        assert!(
            said.contains("private data: from Rust") && said.contains("message: hello from Rust"),
            "{said}"
        );
    });
}
