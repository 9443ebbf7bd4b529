//! E0599: a queue pair for datagrams has no peer.
use ferroce::verbs::{Cq, Domain, Endpoint};

pub fn f(domain: &Domain, cq: &Cq, to: &Endpoint) {
    let setup = domain.ud(cq).build().unwrap();
    let _ = (setup.number(), to.number());
    let _ = setup.connect(to); // WRONG
}
