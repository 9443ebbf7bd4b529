//! In which order the communication manager gets what has come.

use crate::namespace::{in_namespace, run};
use crate::start;
use ferroce_cm::AddressedMad;
use ferroce_engine::Source as _;
use ferroce_host::frame;
use ferroce_network::gsi::{COMM_ID_BITS, CommunicationManager, Gsi};
use ferroce_os::sys::{self, AbstractName};
use ferroce_parts::{Path, ResolvedAv};
use ferroce_tests::record_skip;
use ferroce_tests::wait::eventually;
use ferroce_types::HostAddr;
use ferroce_udp::send_alone;
use ferroce_watch::ConnectionManager;
use ferroce_wire::cm::{CommIds, GSI_QKEY, GSI_QPN, MAD_LEN, Mad, Message};
use ferroce_wire::{BTH_LEN, Bth, Deth, Headers, ICRC_LEN, Opcode};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::Duration;

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

fn here() -> HostAddr {
    HostAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)
}

/// The packet of a MAD with this message, without its ICRC.
fn packet_of(message: Message) -> Vec<u8> {
    let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, GSI_QPN, 0));
    headers.deth = Some(Deth { qkey: GSI_QKEY, src_qp: GSI_QPN });
    let mut packet = vec![0; BTH_LEN + 8 + MAD_LEN + ICRC_LEN];
    let begin = headers.emit(&mut packet).unwrap();
    packet[begin..begin + MAD_LEN].copy_from_slice(&Mad { transaction: 0, message }.emit());
    packet
}

#[test]
fn the_last_message_of_a_process_comes_before_its_end() {
    in_namespace("drive::gsi_tests::the_last_message_of_a_process_comes_before_its_end", || {
        let (note, noted) = channel();
        let goes_on = Arc::new(Barrier::new(2));
        let adapter = start().unwrap();
        let gsi = Gsi::start(adapter, |_| Arc::new(NotingManager(note, goes_on.clone()))).unwrap();
        let own = u32::from(*adapter.host.slots().first().unwrap()) << COMM_ID_BITS;
        let send = |local| {
            let message = Message::ReadyToUse(CommIds { local, remote: own });
            let mut packet = packet_of(message);
            adapter.add_address(here()).unwrap();
            let route = ResolvedAv { from: here(), to: here(), tos: 0, ttl: 64, flow_label: 0 };
            let Path::Udp { dest, .. } = adapter.udp_path(&route, GSI_QPN).unwrap() else {
                panic!("a path over UDP")
            };
            dest.write_icrc(&mut packet, 0);
            send_alone(&dest, &mut packet);
        };
        // The process with that slot, which has a lifeline.
        let holder = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap();
        sys::bind(holder.raw(), &AbstractName::new(&format!("ferroce-2-slot-{SLOT}"))).unwrap();
        sys::listen(holder.raw(), 1).unwrap();
        assert!(gsi.follow(here(), u32::from(SLOT) << COMM_ID_BITS));
        let lifeline = sys::accept(holder.raw()).unwrap();
        frame::receive(lifeline.raw(), &mut [0; 64]).unwrap();

        send(1);
        assert_eq!(noted.recv_timeout(LIMIT), Ok(GsiEvent::Message(1)));
        // The thread that is in the manager reads nothing meanwhile.
        frame::send(lifeline.raw(), &mut frame::header(frame::GRANTED), &[]).unwrap();
        drop(lifeline);
        send(2);
        // Its answer, and its end.
        adapter.gsi_source().serve();
        adapter.gsi_source().serve();
        goes_on.wait();
        assert_eq!(noted.recv_timeout(LIMIT), Ok(GsiEvent::Message(2)));
        assert_eq!(noted.recv_timeout(LIMIT), Ok(GsiEvent::Gone(Some(SLOT))));
    });
}

/// A process of another user keeps no lifeline. The connections of clients end all the same.
#[test]
fn lifelines_of_another_users_process_are_not_waited_for() {
    const NAME: &str = "drive::gsi_tests::lifelines_of_another_users_process_are_not_waited_for";
    run("-npf", NAME, || {
        let (note, noted) = channel();
        let manager = |_| Arc::new(NotingManager(note, Arc::new(Barrier::new(1)))) as Arc<_>;
        let adapter = start().unwrap();
        let gsi = Gsi::start(adapter, manager).unwrap();
        let follow = || gsi.follow(here(), u32::from(SLOT) << COMM_ID_BITS);
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
        assert!(follow());
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
        assert!(follow());
        eventually("its lifeline is waited for", || lifelines.are_missing());
        own.kill().unwrap();
        own.wait().unwrap();
    });
}
