//! An adapter that knows what was registered, and notes what happens.

use ferroce_buffers::{AccessBy, Buffer, Error, Exposure, Held, Kind, Registration, Rights, Tap};
use std::sync::{Arc, Mutex};

/// What a slot owns when a request has been posted.
pub fn held(hold: impl FnOnce(&mut Held)) -> Held {
    let mut slot = Held::default();
    hold(&mut slot);
    slot
}

/// What the tests see of the adapter.
#[derive(Clone, Default)]
pub struct Adapter {
    pub regions: Arc<Mutex<Vec<Option<Tap>>>>,
    pub log: Arc<Mutex<Vec<&'static str>>>,
    pub refuses: bool,
}

pub struct Registered {
    adapter: Adapter,
    number: usize,
}

impl Adapter {
    pub fn register(&self, tap: Tap) -> Result<Box<dyn Registration>, Error> {
        if self.refuses {
            return Err(Error::new(Kind::NoMemory, "register", "refused"));
        }
        Ok(Box::new(self.add(tap)))
    }

    fn add(&self, tap: Tap) -> Registered {
        let mut regions = self.regions.lock().unwrap();
        regions.push(Some(tap));
        Registered { adapter: self.clone(), number: regions.len() - 1 }
    }

    /// All of a region, while it is registered.
    pub fn tap(&self, number: usize) -> Option<Tap> {
        self.regions.lock().unwrap()[number].clone()
    }

    pub fn alloc(&self, len: usize) -> Buffer {
        ferroce_buffers::alloc(len, AccessBy::Tap, |tap| self.register(tap)).unwrap()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let tap = self.adapter.regions.lock().unwrap()[self.number].take();
        drop(tap);
        self.adapter.log.lock().unwrap().push("deregistered");
    }
}

impl Registration for Registered {
    fn key(&self) -> u32 {
        self.number as u32
    }

    fn address(&self) -> u64 {
        (self.number as u64) << 32
    }

    fn expose(&self, part: Tap, _address: u64, _rights: Rights) -> Result<Box<dyn Exposure>, Error> {
        if self.adapter.refuses {
            return Err(Error::new(Kind::NoMemory, "expose", "refused"));
        }
        Ok(Box::new(self.adapter.add(part)))
    }
}

impl Exposure for Registered {
    fn key(&self) -> u32 {
        self.number as u32
    }
}
