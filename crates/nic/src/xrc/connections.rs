//! What comes over the connections of XRC, which the background thread reads. A target gives requests that name an SRQ of another process to
//! that process, over a connection to its slot, and answers the initiator itself as the results come. The connection is closed when the
//! other process dies or gives up the QP.

use super::serve::end_service;
use crate::adapter::Adapter;
use crate::qp::{Lost, Qp};
use ferroce_engine::Source;
use ferroce_host::frame;
use ferroce_hostlink::MAX_PAYLOAD;
use ferroce_os::{
    clock,
    sys::{self, EngineFd},
};
use ferroce_parts::QpAttr;
use ferroce_proto::Executed;
use ferroce_types::{Result, slot_of};
use ferroce_wire::NakCode;
use ferroce_xrc::message::{self, SrqReply};
use ferroce_xrc::{ConnectError, ConnectionEnd, Domain, Target, receive, send};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

/// No message is longer.
const LONGEST: usize = MAX_PAYLOAD + 256;
/// Messages of one connection in a row.
pub(super) const TURN: usize = 32;

impl Target for Qp {
    fn query(&self) -> Result<QpAttr> {
        self.query()
    }

    fn modify(self: &Arc<Self>, attr: &QpAttr, bits: u32) -> Result<()> {
        self.modify(attr, bits)
    }

    fn remove_guest(&self, connection: &Arc<EngineFd>) -> bool {
        self.remove_guest(connection)
    }

    fn end(self: &Arc<Self>) {
        if let Err(error) = self.destroy_target() {
            tracing::warn!(%error, "an XRC target that other processes had can't be destroyed");
        }
    }
}

/// The connections as a source.
pub(crate) struct XrcSource(pub(crate) &'static Adapter);

impl Source for XrcSource {
    fn serve(&self) {
        self.0.attend_xrc();
    }
}

impl Adapter {
    /// Asks the process that has an SRQ to execute a target's requests. Doesn't wait for the answer: the process may be stopped.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub(crate) fn ask_srq_process(
        &'static self,
        qp: &Arc<Qp>,
        domain: &Domain,
        srqn: u32,
    ) -> std::result::Result<EngineFd, ConnectError> {
        let file = domain.file.clone().ok_or(ConnectError::NoSrq)?;
        let mut hello = qp.hello(srqn, file).to_bytes();
        let connection = self.host.dial(slot_of(srqn)).map_err(|error| match error.kind() {
            // Too many wait to ask the process: the peer sends its requests again.
            ErrorKind::WouldBlock => ConnectError::Refused,
            _ => ConnectError::NoSrq,
        })?;
        sys::large_buffer(connection.raw(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
        if send(&connection, &mut hello) { Ok(connection) } else { Err(ConnectError::Refused) }
    }

    /// Reads the messages of other processes.
    fn attend_xrc(&'static self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        let ready = sys::epoll_wait(self.xrc.poll_fd(), &mut events, Some(Duration::ZERO));
        let mut bytes = Vec::new();
        for event in &events[..ready.unwrap_or(0)] {
            let number = event.u64;
            let Some(end) = self.xrc.get(number) else { continue };
            bytes.resize(LONGEST, 0);
            let understood = match &end {
                ConnectionEnd::Serving(qp, connection) => self.execute_for(qp, connection, &mut bytes),
                _ => self.take_messages(number, &end, &mut bytes),
            };
            if understood.is_none() {
                self.end(number);
            }
        }
    }

    /// `None` ends the connection.
    fn take_messages(&'static self, number: u64, end: &ConnectionEnd<Qp>, bytes: &mut [u8]) -> Option<()> {
        for _ in 0..TURN {
            let Some(len) = receive(end.connection(), bytes)? else { break };
            let bytes = &bytes[..len];
            match end {
                ConnectionEnd::Asking(qp, _) => {
                    let qp = qp.upgrade()?;
                    match frame::kind_of(bytes) {
                        None => self.take_answer(number, &qp, message::parse_answer(bytes)?),
                        Some(frame::GRANTED) => self.srq_process_reached(number, &qp),
                        // It has no such SRQ.
                        Some(_) => return None,
                    }
                }
                ConnectionEnd::Guest(guest) => guest.take_message(&self.xrc, bytes)?,
                ConnectionEnd::Remote(remote, _) => remote.upgrade()?.take_message(bytes)?,
                ConnectionEnd::Serving(..) => return None,
            }
        }
        Some(())
    }

    /// A process executes requests of a target from here on.
    fn srq_process_reached(&'static self, number: u64, qp: &Arc<Qp>) {
        self.with_work(|work| {
            let now = clock::now();
            qp.work(work, now, |proto, env| {
                proto.note_result();
                env.srq_process_reached(number);
                env.handle_backlog(proto, now);
            });
        });
    }

    fn take_answer(&'static self, number: u64, qp: &Arc<Qp>, answer: SrqReply<'_>) {
        self.with_work(|work| {
            let now = clock::now();
            qp.work(work, now, |proto, env| {
                proto.note_result();
                match answer {
                    SrqReply::Executed(executed, count) => {
                        env.take_back(proto, number, count, Some(executed));
                    }
                    SrqReply::Dropped(count) => env.take_back(proto, number, count, None),
                    SrqReply::Fetched(result) => env.fetched(number, result.map(<[u8]>::to_vec)),
                }
                env.handle_backlog(proto, now);
            });
        });
    }

    /// Ends a queue pair that executes requests of another process's target, as its device context ends; the other process connects
    /// again. False: `qp` isn't such a queue pair.
    pub(crate) fn stop_serving(&'static self, qp: &Arc<Qp>) -> bool {
        let number = self.xrc.served_by(qp);
        if let Some(number) = number {
            self.end(number);
        }
        number.is_some()
    }

    /// The other process has ended, or has closed the connection.
    fn end(&'static self, number: u64) {
        match self.xrc.remove(number) {
            Some(ConnectionEnd::Serving(qp, connection)) => {
                // A thread that is reading the connection keeps it open for longer. Without the shutdown, requests that the peer sends
                // in that time would be lost.
                sys::shutdown(connection.raw());
                end_service(&qp);
            }
            Some(ConnectionEnd::Guest(guest)) => guest.leave(),
            Some(ConnectionEnd::Remote(remote, _)) => {
                if let Some(remote) = remote.upgrade() {
                    remote.lose();
                }
            }
            Some(ConnectionEnd::Asking(qp, _)) => {
                let Some(qp) = qp.upgrade() else { return };
                self.with_work(|work| {
                    qp.work(work, clock::now(), |proto, env| {
                        let now = clock::now();
                        match env.lose_srq_process(number) {
                            Lost::Nothing => {}
                            Lost::Requests => {
                                let code = NakCode::RemoteOperationalError;
                                proto.executed(Executed::Refused(code), env);
                                env.handle_backlog(proto, now);
                            }
                            Lost::Answer(slot) => env.refuse_backlog(proto, now, slot),
                        }
                    });
                });
            }
            None => {}
        }
    }
}
