//! Requests at ports of other processes of the host: a process that is killed before it has asked for a lifeline takes them with it.
//!
//! A request goes over a connection of its own. This process keeps the last one to each port until the other end has seen to what came
//! over it: it looks at the request, asks for a lifeline, and only then reads the request ([`GsiSource::attend`]). Connections are usually
//! looked at in their order, so what went over earlier ones has been seen to then, too. If the connection ends before, the process or the
//! port is gone, and the requests are asked again.

use super::GsiSource;
use super::state::PendingInput;
use crate::network::Network;
use ferroce_engine::Handler;
use ferroce_host::AtPort;
use ferroce_os::sys;
use std::collections::VecDeque;
use std::time::Duration;

/// Ports at most where this process knows of requests that no process has seen to. Of more, the ones asked first are asked again in their time only.
const MOST: usize = 256;

impl<H: Handler> Network<H> {
    /// Keeps a connection over which a request went.
    pub(super) fn keep_at_port(&self, request: AtPort) {
        let fd = request.raw();
        let mut kept = self.gsi.at_ports.0.lock();
        let before = kept.iter().position(|kept| kept.is_beside(&request));
        let before = before.or((kept.len() == MOST).then_some(0)).and_then(|at| kept.remove(at));
        kept.push_back(request);
        // In the list before it is watched: the thread that sees its end looks for it there.
        let unwatched = if self.engine.watch_control(fd).is_err() { kept.pop_back() } else { None };
        drop(kept);
        drop((before, unwatched));
    }
}

impl<H: Handler, E: Fn()> GsiSource<H, E> {
    /// Lets the connections go that have ended, and has requests asked again if one of them hadn't been read.
    pub(super) fn look_at_ports(&self) {
        let mut kept = self.network.gsi.at_ports.0.lock();
        if kept.is_empty() {
            return;
        }
        let poll = |kept: &AtPort| libc::pollfd { fd: kept.raw(), events: libc::POLLIN, revents: 0 };
        let mut fds: Vec<libc::pollfd> = kept.iter().map(poll).collect();
        match sys::poll(&mut fds, Duration::ZERO) {
            Ok(0) => return,
            Ok(_) => {}
            // More than RLIMIT_NOFILE allows since: what can't be looked at would wake this thread again and again.
            Err(_) => {
                let all = std::mem::take(&mut *kept);
                drop(kept);
                drop(all);
                return;
            }
        }
        let mut states = fds.iter().map(|fd| fd.revents != 0);
        let (ended, waiting) = kept.drain(..).partition(|_| states.next().unwrap_or(false));
        *kept = waiting;
        drop(kept);
        let ended: VecDeque<AtPort> = ended;
        if ended.iter().any(AtPort::is_lost) {
            self.network.keep(PendingInput::Gone(None));
        }
    }
}
