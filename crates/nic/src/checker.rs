//! What the checker of the C interface asks the adapter.

use crate::adapter;
use crate::{Context, Qp};
use ferroce_mem::Mr;

impl Context {
    /// Send requests of a queue pair that are under way and name a region of this context: the queue pair's number, and how
    /// many there are.
    #[must_use]
    pub fn sends_naming(&self, region: &Mr) -> Option<(u32, usize)> {
        let of = |qp: &Qp| (qp.qpn(), qp.sends_naming(region.key()));
        adapter::qps_of(self).iter().map(|qp| of(qp)).find(|(_, count)| *count > 0)
    }
}
