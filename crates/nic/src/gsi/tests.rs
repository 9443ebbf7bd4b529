//! In which order the communication manager gets what has come.

use super::*;
use crate::namespace::{in_namespace, run};
use crate::start;
use ferroce_os::sys;
use ferroce_tests::record_skip;
use ferroce_tests::wait::eventually;
use ferroce_watch::ConnectionManager;
use ferroce_wire::cm::CommIds;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::mpsc::{Sender, channel};

const LIMIT: Duration = Duration::from_secs(10);
/// A slot of another process.
const SLOT: u16 = 3000;

#[derive(PartialEq, Eq, Debug)]
enum GsiEvent {
    /// A message from this communication ID.
    Message(u32),
    Gone(Option<u16>),
}

/// Notes what it gets, and stays with the first message until it may go on.
struct NotingManager(Sender<GsiEvent>, Arc<Barrier>);

impl CommunicationManager for NotingManager {
    fn work(&self, mads: &mut dyn Iterator<Item = AddressedMad>) {
        for mad in mads {
            let Message::ReadyToUse(ids) = mad.mad.message else { continue };
            self.0.send(GsiEvent::Message(ids.local)).unwrap();
            if ids.local == 1 {
                self.1.wait();
            }
        }
    }

    fn try_look(&self) -> Option<ConnectionManager> {
        None
    }

    fn gone(&self, slot: Option<u16>) {
        self.0.send(GsiEvent::Gone(slot)).unwrap();
    }
}

#[test]
fn the_last_message_of_a_process_comes_before_its_end() {
    in_namespace("gsi::tests::the_last_message_of_a_process_comes_before_its_end", || {
        let (note, noted) = channel();
        let goes_on = Arc::new(Barrier::new(2));
        let Gsi(adapter) =
            Gsi::start(start().unwrap(), |_| Arc::new(NotingManager(note, goes_on.clone()))).unwrap();
        let here = HostAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let own = u32::from(*adapter.host.slots().first().unwrap()) << COMM_ID_BITS;
        let send = |local| {
            let message = Message::ReadyToUse(CommIds { local, remote: own });
            let mad = Mad { transaction: 0, message };
            let mad = AddressedMad { from: here, to: here, traffic_class: 0, is_of_user: true, mad };
            adapter.send_mad(&mad, &mut adapter.gsi_packet(&mad.mad), true);
        };

        send(1);
        assert_eq!(noted.recv_timeout(LIMIT), Ok(GsiEvent::Message(1)));
        // The thread that is in the manager reads nothing meanwhile.
        adapter.lose(SLOT);
        send(2);
        GsiSource(adapter).serve();
        goes_on.wait();
        assert_eq!(noted.recv_timeout(LIMIT), Ok(GsiEvent::Message(2)));
        assert_eq!(noted.recv_timeout(LIMIT), Ok(GsiEvent::Gone(Some(SLOT))));
    });
}

/// A process of another user keeps no lifeline. The connections of clients end all the same.
#[test]
fn lifelines_of_another_users_process_are_not_waited_for() {
    const NAME: &str = "gsi::tests::lifelines_of_another_users_process_are_not_waited_for";
    run("-npf", NAME, || {
        let (note, noted) = channel();
        let manager = |_| Arc::new(NotingManager(note, Arc::new(Barrier::new(1)))) as Arc<_>;
        let Gsi(adapter) = Gsi::start(start().unwrap(), manager).unwrap();
        let holder = |slot: u16, backlog: u8| {
            format!(
                "import socket,time
s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET); s.bind('\\0ferroce-2-slot-{slot}'); s.listen({backlog})
print('ready',flush=True); time.sleep(50)"
            )
        };
        let begin = |uid: u32, code: String| {
            let mut python = Command::new("python3");
            let mut holder = python.args(["-c", &code]).uid(uid).stdout(Stdio::piped()).spawn().ok()?;
            let mut line = String::new();
            BufReader::new(holder.stdout.take()?).read_line(&mut line).ok()?;
            (line == "ready\n").then_some(holder)
        };
        // Room for many looks: each of them waits there.
        let Some(mut other) = begin(65534, holder(SLOT, 255)) else {
            return record_skip("no second user can be had here, or no python3");
        };
        let lifelines = &adapter.gsi.lifelines;
        assert!(adapter.follow(SLOT));
        for _ in 0..300 {
            assert!(!lifelines.are_missing(), "it never keeps one");
            sys::pause(Duration::from_millis(1));
        }
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(noted.recv_timeout(LIMIT), Ok(GsiEvent::Gone(Some(SLOT))), "its end is noticed");

        // One of this user that has too many waiting keeps one later.
        let mut own = begin(sys::user_id(), holder(SLOT, 0)).unwrap();
        while adapter.host.dial(SLOT).is_ok() {}
        assert!(adapter.follow(SLOT));
        eventually("its lifeline is waited for", || lifelines.are_missing());
        own.kill().unwrap();
        own.wait().unwrap();
    });
}
