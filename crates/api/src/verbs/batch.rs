//! Requests that are posted together.

use crate::verbs::core::{Core, Prepared};
use crate::verbs::{Operation, Transport};
use ferroce_buffers::Failed;
use smallvec::SmallVec;
use std::fmt;
use std::marker::PhantomData;

/// Requests that are posted together: all that were [pushed](Batch::push), or none. [`Qp::batch`](crate::verbs::Qp::batch) makes it.
///
/// A batch that is dropped posts nothing, and drops their memory.
///
/// ```
/// # use ferroce::{Inline, rights, sim::World, verbs::{Device, Send, Write}};
/// # fn main() -> ferroce::Result<()> {
/// # let world = World::new(1);
/// # let [a, b] = ["a", "b"].map(|name| Device::simulated(&world.host(name)).open().unwrap());
/// # let (mut a_cq, b_cq) = (a.cq(32)?, b.cq(32)?);
/// # let (a_setup, mut b_setup) = (a.rc(&a_cq).build()?, b.rc(&b_cq).build()?);
/// # b_setup.recv(1, b.alloc(8)?)?;
/// # let (a_end, b_end) = (a_setup.endpoint(), b_setup.endpoint());
/// # let (mut qp, _b_qp) = (a_setup.connect(&b_end)?, b_setup.connect(&a_end)?);
/// # let token = b.alloc(64)?.expose(rights::Write)?;
/// # let token = token.token();
/// let mut batch = qp.batch();
/// batch.push(1, Write::new(Inline::from(b"first"), token.slice(..5)).quiet())?;
/// batch.push(2, Send::new(Inline::from(b"written")))?;
/// batch.post();
/// # for _ in 0..2 { a_cq.next(None)?.unwrap().result()?; }
/// # Ok(())
/// # }
/// ```
#[must_use = "a batch does nothing before it is posted"]
pub struct Batch<'q, T> {
    core: &'q mut Core,
    prepared: SmallVec<[Prepared; 4]>,
    transport: PhantomData<T>,
}

impl<'q, T: Transport> Batch<'q, T> {
    pub(crate) fn new(core: &'q mut Core) -> Self {
        Self { core, prepared: SmallVec::new(), transport: PhantomData }
    }

    /// Adds a request.
    ///
    /// # Errors
    /// As [`Qp::post`](crate::verbs::Qp::post): the request comes back, and the batch is as it was.
    pub fn push<O: Operation<T>>(&mut self, tag: u64, operation: O) -> Result<&mut Self, Failed<O>> {
        match self.core.prepare(tag, operation, self.prepared.len() as u32) {
            Ok(prepared) => {
                self.prepared.push(prepared);
                Ok(self)
            }
            Err(failed) => Err(failed),
        }
    }

    /// Posts the requests, in order.
    pub fn post(self) {
        for prepared in self.prepared {
            self.core.commit(prepared);
        }
    }
}

impl<T> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("requests", &self.prepared.len()).finish()
    }
}
