//! The process with the SRQs: what it does for targets of other processes.

use super::XrcTarget;
use super::connections::TURN;
use crate::adapter::{self, Adapter};
use crate::qp::Qp;
use ferroce_access::copy;
use ferroce_host::{RequestHandler, Services, frame};
use ferroce_hostlink::MAX_PAYLOAD;
use ferroce_mem::KeyTable;
use ferroce_os::{clock, sys::EngineFd};
use ferroce_types::{RemoteAccess, RemoteError};
use ferroce_xrc::message::{self, Hello, Outcomes, ReadRange, TargetRequest};
use ferroce_xrc::{ConnectionEnd, Guest, Target as _, handle_message, receive, send};
use std::sync::Arc;

/// Answers other processes that ask for the execution of their targets' requests, or for handles of targets.
pub(crate) fn register(services: &Services) {
    services.register(message::KIND, Arc::new(Execution));
    services.register(handle_message::KIND, Arc::new(TargetHandleService));
}

struct Execution;

impl RequestHandler for Execution {
    fn serve(&self, connection: EngineFd, bytes: &[u8], _: Vec<EngineFd>) {
        begin_service(connection, bytes);
    }
}

struct TargetHandleService;

impl RequestHandler for TargetHandleService {
    fn serve(&self, connection: EngineFd, bytes: &[u8], _: Vec<EngineFd>) {
        admit(connection, bytes);
    }
}

/// Another process wants a handle of a target.
fn admit(connection: EngineFd, bytes: &[u8]) {
    let connection = Arc::new(connection);
    let open = handle_message::Open::parse(bytes);
    let found = adapter::current().zip(open).and_then(|(adapter, open)| {
        let qp = adapter.qp(open.qpn).filter(|qp| qp.is_target_of_file(&open.file))?;
        (adapter.xrc.has_room() && qp.add_guest(&connection)).then_some((adapter, qp))
    });
    match found {
        Some((adapter, qp)) => Guest::admit(&adapter.xrc, qp, connection),
        // Ignored: the process that asked may have ended.
        None => _ = send(&connection, &mut frame::header(frame::REFUSED)),
    }
}

/// Another process asks for the execution of its target's requests.
fn begin_service(connection: EngineFd, bytes: &[u8]) {
    let served = Hello::parse(bytes).ok_or(()).and_then(|hello| serve(&hello));
    let (Ok(qp), Some(adapter)) = (served, adapter::current()) else {
        // Ignored: the process that asked may have ended.
        send(&connection, &mut frame::header(frame::REFUSED));
        return;
    };
    let connection = Arc::new(connection);
    if adapter.xrc.add(ConnectionEnd::Serving(qp.clone(), connection.clone())).is_some() {
        send(&connection, &mut frame::header(frame::GRANTED));
    } else {
        end_service(&qp);
    }
}

/// Makes the QP that executes the requests: a target with the number of the other process's target, which isn't in this process's
/// table of QPs.
fn serve(hello: &Hello) -> std::result::Result<Arc<Qp>, ()> {
    let adapter = adapter::current().ok_or(())?;
    let xrcd = adapter.srqs.xrcd_of(hello.srqn).ok_or(())?;
    // The other process has no target with a number of this process.
    let is_own = adapter.host.owns(hello.qpn);
    if xrcd.domain().file.as_ref() != Some(&hello.file) || hello.path_mtu == 0 || is_own {
        return Err(());
    }
    let (pd, init) = XrcTarget::parts(xrcd.context()).map_err(drop)?;
    let qp = Qp::create_proxy(&pd, init, xrcd.domain().clone(), hello.qpn).map_err(drop)?;
    qp.run_as_proxy(hello.dest_qpn, hello.path_mtu, hello.access);
    Ok(qp)
}

pub(super) fn end_service(qp: &Arc<Qp>) {
    // What was received completes, though nothing shows any more whether it was acknowledged. The receive of a message in progress is
    // flushed.
    qp.fail_proxy();
    qp.end();
}

impl Adapter {
    /// Executes requests of another process's target. `None` ends the connection.
    pub(super) fn execute_for(
        &'static self,
        qp: &Arc<Qp>,
        connection: &EngineFd,
        bytes: &mut [u8],
    ) -> Option<()> {
        let mut understood = Some(());
        let mut tell = |answer: &mut [u8]| {
            if !send(connection, answer) {
                understood = None;
            }
        };
        let mut outcomes = Outcomes::default();
        let mut ended = false;
        self.with_work(|work| {
            qp.work(work, clock::now(), |proto, env| {
                for _ in 0..TURN {
                    let received = receive(connection, bytes);
                    let Some(Some(len)) = received else {
                        ended = received.is_none();
                        break;
                    };
                    match message::parse_request(&bytes[..len]) {
                        Some(TargetRequest::Execute(run, headers, payload)) => {
                            let executed = proto.execute_for(&headers, &payload.into(), run, env);
                            outcomes.add(executed, &mut tell);
                        }
                        Some(TargetRequest::Fetch(range)) => {
                            outcomes.flush(&mut tell);
                            tell(&mut message::fetched(Self::read_for(qp, &range)));
                        }
                        Some(TargetRequest::Acknowledged(count)) => env.note_acknowledged(count),
                        None => {
                            ended = true;
                            break;
                        }
                    }
                }
                // Before the completions are published: the program may end after them.
                outcomes.flush(&mut tell);
            });
        });
        understood.filter(|()| !ended)
    }

    /// Bytes of this process's memory for another's READ response.
    fn read_for(qp: &Qp, range: &ReadRange) -> std::result::Result<Vec<u8>, RemoteError> {
        let srq = qp.srq_of_domain(range.srqn).ok_or(RemoteError::Access)?;
        if range.len as usize > MAX_PAYLOAD {
            return Err(RemoteError::Access);
        }
        let mut bytes = vec![0; range.len as usize];
        let (user, len) = (qp.user_of(&srq), u64::from(range.len));
        KeyTable::global().remote(user, range.rkey, range.va, len, RemoteAccess::Read, |addr| {
            copy::read(addr, &mut bytes)
        })?;
        Ok(bytes)
    }
}
