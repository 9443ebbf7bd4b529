//! Buffers of one size out of one registration.

use crate::home::{Home, Places};
use crate::{Buffer, Error};
use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// A pool of buffers. A dropped buffer returns to it.
#[derive(Clone)]
pub struct Pool {
    size: usize,
    places: Arc<Places>,
}

impl Pool {
    /// Divides memory into buffers of `size` bytes.
    ///
    /// # Errors
    /// `memory` has less than `size` bytes, `size` is 0, or `memory` is a part of a region or of a pool.
    pub fn new(memory: Buffer, size: usize) -> Result<Self, Error> {
        let region = memory.region().clone();
        let whole = memory.capacity() == region.mapping().len() && !memory.is_pooled();
        if size == 0 || memory.capacity() < size || !whole {
            let why = format!("buffers of {size} bytes out of {} bytes", memory.capacity());
            return Err(Error::invalid("pool", why));
        }
        // The only buffer of its region, so all bytes are free to be divided.
        drop(memory);
        let count = u32::try_from(region.mapping().len() / size).unwrap_or(u32::MAX);
        let places = Arc::new(Places::new(&region, count, size));
        Ok(Self { size, places })
    }

    /// Takes a buffer, if one is free. Its length is 0, and its bytes are old.
    #[must_use]
    pub fn try_take(&self) -> Option<Buffer> {
        let (home, piece) = Home::take(&self.places)?;
        Some(Buffer::of_pool(piece, home))
    }

    /// Takes a buffer when one is free. The pool may end before the future.
    ///
    /// Buffers aren't handed out in the order of the waits.
    pub fn take(&self) -> impl Future<Output = Buffer> + Send + 'static {
        let pool = self.clone();
        std::future::poll_fn(move |context| {
            pool.poll_take(context.waker()).map_or(Poll::Pending, Poll::Ready)
        })
    }

    /// Takes a buffer, or has `waker` woken by the next one that is dropped.
    #[doc(hidden)]
    pub fn poll_take(&self, waker: &Waker) -> Option<Buffer> {
        loop {
            match self.try_take() {
                None if self.places.wait(waker) => return None,
                // One was dropped in between.
                None => {}
                taken => return taken,
            }
        }
    }

    /// Buffers that are free now.
    #[must_use]
    pub fn free(&self) -> usize {
        self.places.free().places.len()
    }

    /// The capacity of each buffer.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("size", &self.size).field("free", &self.free()).finish()
    }
}
