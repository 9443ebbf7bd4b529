//! How a thread of a model is woken.

use loom::sync::Condvar;

/// What the background thread sleeps on. It has no time limit: a wake-up that is missed is a deadlock, which loom finds.
#[derive(Debug)]
pub(crate) struct Alarm {
    rung: loom::sync::Mutex<bool>,
    changed: Condvar,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self { rung: loom::sync::Mutex::new(false), changed: Condvar::new() }
    }

    pub(crate) fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    pub(crate) fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !std::mem::take(&mut *rung) {
            rung = self.changed.wait(rung).unwrap();
        }
    }
}
