//! Messages between programs beside the simulated network, as a TCP connection would carry them.

use crate::wait::{MailBox, Wait};
use crate::world::World;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

struct Channel<T> {
    mail: Arc<MailBox>,
    queue: Mutex<VecDeque<T>>,
}

/// The end of a [channel](World::channel) that sends.
pub struct Sender<T>(Arc<Channel<T>>);

/// The end of a [channel](World::channel) that receives.
pub struct Receiver<T> {
    world: World,
    channel: Arc<Channel<T>>,
}

impl World {
    /// A channel between programs, for what they exchange before RDMA: endpoints and tokens. A message arrives at once, and
    /// waiting for one lets virtual time pass. (A program that waits by other means stops the world.)
    #[must_use]
    pub fn channel<T>(&self) -> (Sender<T>, Receiver<T>) {
        let mail = Arc::new(MailBox::default());
        mail.senders.store(1, Ordering::Relaxed);
        let channel = Arc::new(Channel { mail, queue: Mutex::default() });
        (Sender(channel.clone()), Receiver { world: self.clone(), channel })
    }
}

impl<T> Sender<T> {
    /// Sends a message.
    pub fn send(&self, message: T) {
        let mut queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(message);
        self.0.mail.messages.store(queue.len(), Ordering::Relaxed);
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.mail.senders.fetch_add(1, Ordering::Relaxed);
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.mail.senders.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T> Receiver<T> {
    /// Waits for a message. `None`: all senders are gone.
    ///
    /// # Panics
    /// No message will ever come.
    #[must_use]
    pub fn recv(&self) -> Option<T> {
        self.world.block(Wait::Mail(self.channel.mail.clone()));
        self.try_recv()
    }

    /// Takes a message if there is one.
    #[must_use]
    pub fn try_recv(&self) -> Option<T> {
        let mut queue = self.channel.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let message = queue.pop_front();
        self.channel.mail.messages.store(queue.len(), Ordering::Relaxed);
        message
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sender").field(&self.0.mail).finish()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receiver").field(&self.channel.mail).finish()
    }
}
