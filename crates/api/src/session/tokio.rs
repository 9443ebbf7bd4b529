//! The task of a driver on tokio.

use crate::session::Driver;
use crate::session::driver::Inner;
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::task::{AbortHandle, yield_now};
use ferroce_buffers::{Error, Kind, Result};
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::Weak;
use std::task::Poll;

/// Starts the task on the current runtime.
///
/// # Errors
/// There is no descriptor left, or the runtime refuses it.
pub(crate) fn spawn(driver: &Driver) -> Result<AbortHandle> {
    let inner = driver.downgrade();
    let refused = |error: std::io::Error| Error::new(Kind::Os, "tokio", error.to_string());
    let task = match driver.descriptor() {
        None => ::tokio::spawn(turn(inner)),
        Some(descriptor) => {
            let descriptor = descriptor.try_clone_to_owned().map_err(refused)?;
            // Deprecated for types whose descriptor may change; an `OwnedFd`'s doesn't. What replaces it is unsafe.
            #[allow(deprecated)]
            let descriptor = AsyncFd::with_interest(descriptor, Interest::READABLE).map_err(refused)?;
            ::tokio::spawn(watch(inner, descriptor))
        }
    };
    Ok(task.abort_handle())
}

/// What a look for completions has come to.
enum Look {
    Found,
    /// The descriptor is readable when there is a completion, unless another thread takes the event.
    Armed(u64),
    Dead,
}

/// Polls until there is no completion, arms the queue, and sleeps.
async fn watch(inner: Weak<Inner>, descriptor: AsyncFd<OwnedFd>) {
    loop {
        let Some(driver) = Driver::upgrade(&inner) else { return };
        let look = poll_fn(|context| {
            let Some(mut turn) = driver.lead_or_wait(context.waker()) else { return Poll::Pending };
            if turn.dispatch() > 0 {
                return Poll::Ready(Look::Found);
            }
            Poll::Ready(match turn.arm() {
                Ok(Some(armed)) => Look::Armed(armed),
                Ok(None) => Look::Found,
                Err(error) => {
                    turn.is_dead(&error);
                    Look::Dead
                }
            })
        });
        let look = look.await;
        drop(driver);
        match look {
            // The tasks that were woken come first.
            Look::Found => yield_now().await,
            Look::Armed(armed) => {
                // Until there is a completion, or news that no completion announces.
                let sleep = poll_fn(|context| {
                    let driver = Driver::upgrade(&inner);
                    if driver.is_none_or(|driver| driver.is_nudged(armed, context.waker())) {
                        return Poll::Ready(Ok(()));
                    }
                    descriptor.poll_read_ready(context).map_ok(|mut ready| ready.clear_ready())
                });
                if sleep.await.is_err() {
                    return; // The runtime ends.
                }
            }
            Look::Dead => return,
        }
    }
}

/// Turns a simulation.
async fn turn(inner: Weak<Inner>) {
    while let Some(driver) = Driver::upgrade(&inner) {
        driver.turn();
        drop(driver);
        yield_now().await;
    }
}
