//! repoll_create, repoll_ctl and repoll_wait: epoll(7), also for rsockets.
//!
//! An instance has a set of all descriptors, which wakes, and in it a set of the ordinary ones, which tells. Whether an
//! rsocket is ready is computed. The program gets a third, which is its own to close.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use libc::epoll_event;

use crate::call::{Outcome, Refusal};
use crate::table::{Socket, find};
use crate::waiting::{Awaited, Set, Waker, look_or_sleep, readable, sleep};

#[derive(Debug)]
struct Instance {
    all: Set,
    ordinary: Set,
    /// Wakes who waits when the interests change.
    changed: Waker,
    sockets: Mutex<BTreeMap<RawFd, Interest>>,
}

#[derive(Clone, Debug)]
struct Interest {
    socket: Socket,
    events: u32,
    data: u64,
    /// What the socket was ready for when that was told last, and the socket's count of changes then.
    told: (u32, u64),
    /// EPOLLONESHOT has fired.
    spent: bool,
}

static INSTANCES: Mutex<Option<BTreeMap<RawFd, Arc<Instance>>>> = Mutex::new(None);

fn get(fd: c_int) -> Outcome<Arc<Instance>> {
    find_instance(fd).ok_or_else(|| Refusal::new(libc::EBADF, "no instance of repoll has this number"))
}

fn find_instance(fd: c_int) -> Option<Arc<Instance>> {
    INSTANCES.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(&fd).cloned()
}

/// As epoll_create1(2).
pub(crate) fn create(flags: c_int) -> Outcome<c_int> {
    if flags & !libc::EPOLL_CLOEXEC != 0 {
        return Err(Refusal::new(libc::EINVAL, "the only flag is EPOLL_CLOEXEC"));
    }
    let (all, ordinary, changed) = (Set::new()?, Set::new()?, Waker::new()?);
    all.add(ordinary.fd(), 0)?;
    all.add(changed.fd(), 0)?;
    let instance = Instance { all, ordinary, changed, sockets: Mutex::default() };
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::epoll_create1(flags) };
    if fd < 0 {
        return Err(Refusal::last("epoll_create1"));
    }
    let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: a valid event.
    if unsafe { libc::epoll_ctl(fd, libc::EPOLL_CTL_ADD, instance.all.fd(), &mut event) } != 0 {
        let refusal = Refusal::last("epoll_ctl");
        // SAFETY: the descriptor that has just been made.
        unsafe { libc::close(fd) };
        return Err(refusal);
    }
    let mut instances = INSTANCES.lock().unwrap_or_else(PoisonError::into_inner);
    instances.get_or_insert_default().insert(fd, Arc::new(instance));
    Ok(fd)
}

/// Ends an instance; whether there was one. One whose descriptor was closed otherwise ends when its number is used again.
pub(crate) fn close(fd: c_int) -> bool {
    let mut instances = INSTANCES.lock().unwrap_or_else(PoisonError::into_inner);
    let instance = instances.as_mut().and_then(|instances| instances.remove(&fd));
    if instance.is_some() {
        // SAFETY: a descriptor that was made for the program, which ends it by this.
        unsafe { libc::close(fd) };
    }
    instance.is_some()
}

/// As epoll_ctl(2).
pub(crate) fn control(
    instance: c_int,
    operation: c_int,
    fd: c_int,
    event: Option<epoll_event>,
) -> Outcome<()> {
    let instance = get(instance)?;
    let wanted = || event.ok_or_else(|| Refusal::new(libc::EFAULT, "no event"));
    let Some(socket) = find(fd) else {
        let event = event.unwrap_or(epoll_event { events: 0, u64: 0 });
        instance.ordinary.control(operation, fd, event.events, event.u64)?;
        return Ok(());
    };
    let mut sockets = instance.sockets.lock().unwrap_or_else(PoisonError::into_inner);
    // A number may have been another socket's.
    sockets.retain(|fd, interest| find(*fd).is_some_and(|found| found.is(&interest.socket)));
    let known = sockets.contains_key(&fd);
    match operation {
        libc::EPOLL_CTL_ADD if known => return Err(Refusal::plain(libc::EEXIST)),
        libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !known => return Err(Refusal::plain(libc::ENOENT)),
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
            let event = wanted()?;
            if !known {
                instance.all.add(fd, 0)?;
            }
            let (events, data) = (event.events, event.u64);
            sockets.insert(fd, Interest { socket, events, data, told: (0, 0), spent: false });
        }
        libc::EPOLL_CTL_DEL => {
            sockets.remove(&fd);
            instance.all.remove(fd);
        }
        _ => return Err(Refusal::new(libc::EINVAL, "no such operation")),
    }
    instance.changed.wake();
    Ok(())
}

impl Instance {
    fn interests(&self) -> Vec<(RawFd, Interest)> {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.iter().map(|(fd, interest)| (*fd, interest.clone())).collect()
    }
}

/// What one call waits for.
struct Interests<'a> {
    instance: &'a Instance,
    interests: Vec<(RawFd, Interest)>,
    room: &'a mut [epoll_event],
}

impl Awaited for Interests<'_> {
    fn look(&mut self, waker: Option<&Arc<Waker>>) -> Outcome<usize> {
        let mut ready = self.instance.ordinary.wait(self.room, 0)?.len();
        for (fd, interest) in self.interests.iter().filter(|(_, interest)| !interest.spent) {
            let events = (interest.events & 0xffff) as libc::c_short;
            let (now, changes) = interest.socket.core().readiness(events, waker);
            let now = u32::from(now.cast_unsigned());
            let edge = interest.events & libc::EPOLLET as u32 != 0;
            if now == 0 || now & (libc::POLLNVAL as u32) != 0 || edge && interest.told == (now, changes) {
                continue;
            }
            let Some(place) = self.room.get_mut(ready) else { continue };
            *place = epoll_event { events: now, u64: interest.data };
            ready += 1;
            let mut sockets = self.instance.sockets.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(interest) = sockets.get_mut(fd) {
                interest.told = (now, changes);
                interest.spent = interest.events & libc::EPOLLONESHOT as u32 != 0;
            }
        }
        Ok(ready)
    }

    fn sleep(&self, waker: &Waker, until: Option<Instant>) -> Outcome<()> {
        sleep(&mut [readable(waker.fd()), readable(self.instance.all.fd())], until)?;
        Ok(())
    }

    fn dont_wake(&self, waker: &Arc<Waker>) {
        for (_, interest) in &self.interests {
            interest.socket.core().dont_wake(waker);
        }
    }
}

/// As epoll_wait(2).
pub(crate) fn wait(fd: c_int, room: &mut [epoll_event], until: Option<Instant>) -> Outcome<c_int> {
    let instance = get(fd)?;
    loop {
        instance.changed.clear();
        let interests = instance.interests();
        let mut interests = Interests { instance: &instance, interests, room: &mut *room };
        if let Some(ready) = look_or_sleep(&mut interests, until)? {
            return Ok(ready);
        }
    }
}
