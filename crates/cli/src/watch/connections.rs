//! The listeners and connections of librdmacm, in words.

use ferroce_watch::{ConnectionAccount, ConnectionManager, ListenerAccount};
use std::fmt::Write as _;

/// Established connections that are shown one by one.
const FEW: usize = 16;

/// A line for each listener and connection.
pub fn lines(manager: &ConnectionManager) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        let _ = writeln!(text, "{words}");
    };
    if manager.busy {
        line("its connections are busy (no details)".to_owned());
    }
    manager.listeners.iter().for_each(|listener| line(listening(listener)));
    if manager.more_listeners > 0 {
        line(format!("and {} more listeners", manager.more_listeners));
    }
    let is_established = |connection: &&ConnectionAccount| connection.state.as_str() == "ESTABLISHED";
    let established = manager.connections.iter().filter(is_established).count();
    let shown =
        manager.connections.iter().filter(|connection| established <= FEW || !is_established(connection));
    shown.for_each(|connection| line(connected(connection)));
    if established > FEW {
        line(format!("has {established} established connections"));
    }
    if manager.more_connections > 0 {
        line(format!("and {} more connections", manager.more_connections));
    }
    text
}

fn listening(listener: &ListenerAccount) -> String {
    let kind = match listener.port_space.as_str() {
        "TCP" => String::new(),
        space => format!(" (port space {space})"),
    };
    let waiting = match listener.waiting {
        0 => String::new(),
        waiting => format!("; {waiting} of at most {} requests wait in its backlog", listener.backlog),
    };
    format!("listens at {}{kind}{waiting}", listener.address)
}

/// What a connection waits for.
fn connected(connection: &ConnectionAccount) -> String {
    let seconds = connection.waited.unwrap_or(0) / 1000;
    let peer = &connection.peer;
    match connection.state.as_str() {
        "REQ_SENT" | "SIDR_REQ_SENT" => format!("waits {seconds} s for the answer of {peer}"),
        "REQ_RCVD" | "SIDR_REQ_RCVD" => {
            format!("has a request of {peer} that its program hasn't answered for {seconds} s")
        }
        "REP_SENT" => format!("has accepted {peer}, and waits {seconds} s until it is ready"),
        "REP_RCVD" => {
            format!("has the reply of {peer}; its program hasn't established the connection for {seconds} s")
        }
        "ESTABLISHED" => format!("is connected to {peer} (QP {:#08x})", connection.queue_pair),
        "DREQ_SENT" => format!("has disconnected, and waits {seconds} s for the agreement of {peer}"),
        "DREQ_RCVD" => {
            format!("was disconnected by {peer}; its program hasn't called rdma_disconnect for {seconds} s")
        }
        "TIMEWAIT" => format!("was connected to {peer} (time-wait)"),
        state => format!("has a connection to {peer} in {state}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(state: &str, waited: Option<u64>) -> ConnectionAccount {
        ConnectionAccount {
            state: state.into(),
            peer: "10.5.0.2:7174".into(),
            queue_pair: 0x12_3456,
            waited,
            ..ConnectionAccount::default()
        }
    }

    #[test]
    fn each_listener_and_connection_has_a_line() {
        let listener = ListenerAccount {
            port_space: "TCP".into(),
            address: "0.0.0.0:8765".into(),
            ..ListenerAccount::default()
        };
        let lookup = ListenerAccount { port_space: "UDP".into(), waiting: 2, backlog: 8, ..listener.clone() };
        let manager = ConnectionManager {
            listeners: vec![listener, lookup],
            connections: vec![connection("REQ_SENT", Some(4999)), connection("ESTABLISHED", None)],
            more_connections: 3,
            ..ConnectionManager::default()
        };
        assert_eq!(
            lines(&manager),
            "listens at 0.0.0.0:8765\n\
             listens at 0.0.0.0:8765 (port space UDP); 2 of at most 8 requests wait in its backlog\n\
             waits 4 s for the answer of 10.5.0.2:7174\n\
             is connected to 10.5.0.2:7174 (QP 0x123456)\n\
             and 3 more connections\n"
        );
    }

    #[test]
    fn many_established_connections_are_counted() {
        let established = vec![connection("ESTABLISHED", None); FEW + 1];
        let manager = ConnectionManager { connections: established, ..ConnectionManager::default() };
        assert_eq!(lines(&manager), "has 17 established connections\n");
    }
}
