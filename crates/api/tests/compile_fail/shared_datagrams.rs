//! E0599: datagrams need memory for their headers, which a shared receive queue doesn't have.
use ferroce::verbs::{Cq, Domain, Srq};

pub fn f(domain: &Domain, cq: &Cq, srq: &Srq) {
    let _ = domain.rc(cq).srq(srq).build();
    let _ = domain.ud(cq).srq(srq).build(); // WRONG
}
