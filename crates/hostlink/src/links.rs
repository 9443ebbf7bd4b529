//! All links of this process: making them, answering those who make one, noticing that a peer has gone.

use super::PeerMemory;
use super::directory::{Directory, PeerDirectory};
use super::hello::{self, Introduction};
use super::limits;
use super::link::{self, Link, LinkEnd, PeerProcess, PeersAccess};
use ferroce_access::SharedMemory;
use ferroce_host::{RequestHandler, Services};
use ferroce_os::sync::{ForkReader, Mutex, MutexGuard, Published, RwLock, class};
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::{Error, Result};
use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a peer may take to answer before the link is used without an answer: it may be stopped.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 10_000 } else { 100 });
/// How long a slot that refused, or that no process holds, isn't asked again, and one that too many wait to ask is tried once at a time.
const REFUSED: Duration = Duration::from_millis(200);
/// How long a thread sleeps between two looks for an introduction.
const ROUND: Duration = Duration::from_micros(50);
/// In the `epoll`, beside a link's number: its process descriptor.
const PIDFD: u64 = 1 << 63;
/// Messages of a peer that are read before other work has its turn.
const TOGETHER: usize = 16;

/// The links of a process.
#[derive(Debug)]
pub struct Links {
    /// `None`: this process takes part in no link.
    own: Option<&'static Directory>,
    /// Packets are shown to a capture: their payloads must be in them.
    captured: bool,
    /// Peers may copy from and to this process's memory, also where the kernel asks for leave.
    copied: bool,
    /// Connections and process descriptors. Readable when a peer has rung, answered or ended.
    epoll: EngineFd,
    links: RwLock<class::LinkList, LinkLists>,
    /// Those to other processes, for pollers, who look without a lock. Written with the list locked.
    listed: Published<Vec<Arc<Link>>>,
    /// Links that have ended while the peer was in the middle of an access, each with that access.
    pub(super) ended: Mutex<class::LinksEnded, Vec<(Arc<Link>, PeersAccess)>>,
    next_id: AtomicU64,
    refused: Mutex<class::LinksRefused, HashMap<u16, (LinkRefusal, Instant)>>,
    making: Mutex<class::LinksMaking, ()>,
    /// The link of this process to itself, once something goes by it.
    to_itself: OnceLock<Arc<Link>>,
    /// Held from the look for a link of the peer's until this process has introduced itself, and from a peer's introduction until its
    /// link can be seen.
    introducing: Mutex<class::LinksIntroducing, ()>,
    /// A peer has rung since this was last cleared.
    rung: AtomicBool,
}

/// Why no link could be made to a slot a moment ago.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkRefusal {
    /// No process holds it, or its holder wants none.
    Refused,
    /// Too many waited to ask its holder, which is busy or stopped, or another user's processes crowd it.
    Crowded,
}

/// A link in which there may be something to do for a poller.
#[derive(Debug)]
pub struct LinkWithWork {
    /// The link.
    pub link: Arc<Link>,
    /// Where the list goes on; `None`: it is the last.
    pub next: Option<usize>,
}

impl LinkWithWork {
    #[inline(always)]
    fn find(links: &[Arc<Link>], from: usize) -> Option<Self> {
        let at = from + links.get(from..)?.iter().position(|link| link.may_have_work())?;
        Some(Self { link: links[at].clone(), next: Some(at + 1).filter(|&next| next < links.len()) })
    }
}

/// The links that there are.
#[derive(Default, Debug)]
struct LinkLists {
    all: Arc<Vec<Arc<Link>>>,
    /// Those to other processes. Pollers have the address of the list alone, by which memory checkers don't find it.
    others: Option<Arc<Vec<Arc<Link>>>>,
}

impl LinkLists {
    /// Replaces the lists. Returns that of the links to other processes.
    fn set(&mut self, all: Vec<Arc<Link>>) -> Option<Arc<Vec<Arc<Link>>>> {
        let others: Vec<_> = all.iter().filter(|link| !link.is_to_itself()).cloned().collect();
        self.all = Arc::new(all);
        self.others = (!others.is_empty()).then(|| Arc::new(others));
        self.others.clone()
    }
}

impl Deref for LinkLists {
    type Target = Arc<Vec<Arc<Link>>>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl Links {
    /// The links of the process that `own` is of. `captured` and `copied`: as for [`Links::new`].
    pub(super) fn of(own: Option<&'static Directory>, captured: bool, copied: bool) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            own,
            captured,
            copied,
            epoll: sys::epoll_create().map_err(Error::os("epoll_create1"))?,
            links: RwLock::default(),
            listed: Published::default(),
            ended: Mutex::default(),
            next_id: AtomicU64::new(1),
            refused: Mutex::default(),
            making: Mutex::default(),
            to_itself: OnceLock::new(),
            introducing: Mutex::default(),
            rung: AtomicBool::new(false),
        }))
    }

    /// Answers other processes that want to share memory from now on.
    pub fn register(self: &Arc<Self>, services: &Services) {
        services.register(hello::KIND, self.clone());
    }

    /// Readable when [`Links::attend`] has something to do.
    pub fn poll_fd(&self) -> RawFd {
        self.epoll.raw()
    }

    /// There is no link to another process.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// The links that there are now.
    #[inline]
    pub fn snapshot(&self) -> Arc<Vec<Arc<Link>>> {
        self.links.read().clone()
    }

    /// The links to the process that `link` leads to: answers to what has left by one may come by another.
    pub fn to_same_process(&self, link: &Link) -> Vec<Arc<Link>> {
        self.links.read().iter().filter(|other| other.peer().is(&link.peer())).cloned().collect()
    }

    /// The first link to another process, from number `from` of the list on, in which there may be something to do for a poller. A link
    /// that comes or goes meanwhile may be seen twice, or only the next time.
    #[inline(always)]
    pub fn next_with_work(&self, from: usize) -> Option<LinkWithWork> {
        if self.listed.is_empty() {
            return None;
        }
        match ForkReader::enter() {
            Some(reader) => LinkWithWork::find(self.listed.get(&reader)?, from),
            None => self.next_with_work_of_locked(from),
        }
    }

    #[cold]
    fn next_with_work_of_locked(&self, from: usize) -> Option<LinkWithWork> {
        LinkWithWork::find(&self.links.read(), from)
    }

    /// The link to the process that holds `slot`. `dial` makes a connection to that process: a slot in a peer's directory counts
    /// only if the kernel reports the same process at the other end.
    pub fn to_slot(&self, slot: u16, dial: impl Fn() -> io::Result<EngineFd>) -> Option<Arc<Link>> {
        let links = self.snapshot();
        if let Some(link) = links.iter().find(|link| link.leads_to(slot) && !link.is_dead()) {
            return Some(link.clone());
        }
        let link = links.iter().find(|link| link.claims(slot) && !link.is_dead())?;
        let holder = sys::peer_credentials(dial().ok()?.raw()).ok()?.pid;
        (holder != 0 && holder == link.pid).then(|| {
            link.confirm(slot);
            link.clone()
        })
    }

    /// Why no link could be made to a slot a moment ago; `None`: it is worth trying.
    pub fn refusal(&self, slot: u16) -> Option<LinkRefusal> {
        let refused = self.refused.lock();
        refused.get(&slot).filter(|(_, at)| at.elapsed() <= REFUSED).map(|&(why, _)| why)
    }

    /// No link can be made to that slot now.
    pub fn refused(&self, slot: u16, why: LinkRefusal) {
        let mut refused = self.refused.lock();
        refused.retain(|_, (_, at)| at.elapsed() <= REFUSED);
        refused.insert(slot, (why, Instant::now()));
    }

    /// Makes a link over a new connection to the holder of `slot`; `None` when it, or the system, doesn't want one.
    /// `idle` is called every millisecond meanwhile.
    pub fn open(&self, connection: EngineFd, slot: u16, idle: &mut dyn FnMut()) -> Option<Arc<Link>> {
        let own = self.own?;
        let refused = |error| tracing::debug!(%error, slot, "no link to a process of this host");
        let memory = SharedMemory::create(link::LEN, false).map_err(refused).ok()?;
        let link = self.add(slot, connection, Arc::new(memory), LinkEnd::Maker).map_err(refused).ok()?;
        hello::ask(link.connection.raw())
            .inspect_err(|_| drop(self.drop_link(&link)))
            .map_err(refused)
            .ok()?;
        let mut deadline = Instant::now() + PATIENCE;
        let mut waits_for_other = false;
        loop {
            idle();
            let is_late = Instant::now() >= deadline;
            let round = if is_late { Duration::ZERO } else { Duration::from_millis(1) };
            if link.is_dead() {
                // The peer's introduction is on its way.
                sys::pause(ROUND);
            } else if sys::wait_for(link.connection.raw(), libc::POLLIN, round) {
                self.finish(&link);
            }
            // A peer that has introduced itself and has the higher number makes, or has made, this link yield. So does this process
            // where it learns of the peer's link before it may introduce itself.
            if let Some(other) = self.made_by_peer(&link, |peer| peer > own.process || link.has_yielded()) {
                if !link.is_dead() {
                    self.drop_link(&link);
                }
                return Some(other);
            }
            // In this order: the peer writes that the link yields before it hangs up.
            let is_dead = link.is_dead();
            if link.remote.get().is_some() || (is_dead && !link.has_yielded()) {
                break;
            }
            if is_late && (waits_for_other || !is_dead && link.use_unanswered()) {
                break;
            }
            if is_late {
                // The peer has made this link yield to its own, whose introduction it has sent before: waits for that once more.
                waits_for_other = true;
                deadline += PATIENCE;
            }
        }
        if waits_for_other && !link.is_dead() && link.remote.get().is_none() {
            self.drop_link(&link);
        }
        if link.is_dead() {
            return None;
        }
        if link.remote.get().is_none() {
            tracing::info!(slot, "a process of this host doesn't answer (stopped?): packets wait for it");
        }
        link.settle();
        Some(link)
    }

    /// A link that the process at the other end of `link` has made at the same time, if `takes` is true of its number. Of two processes
    /// that make one, the one with the lower number gives up its own.
    fn made_by_peer(&self, link: &Arc<Link>, takes: impl Fn(u64) -> bool) -> Option<Arc<Link>> {
        let links = self.snapshot();
        let other = links.iter().find(|other| {
            let taken = other.remote.get().is_some_and(|remote| takes(remote.process));
            other.id != link.id
                && link.pid != 0
                && other.pid == link.pid
                && taken
                // Not all slots of a process fit into its directory. The kernel has named the holder of the slot that made this link yield.
                && (other.claims(link.slot) || link.has_yielded())
                && !other.is_dead()
        })?;
        other.confirm(link.slot);
        Some(other.clone())
    }

    /// Held by a thread that makes links.
    pub fn making(&self) -> MutexGuard<'_, class::LinksMaking, ()> {
        self.making.lock()
    }

    fn add(
        &self,
        slot: u16,
        connection: EngineFd,
        memory: Arc<SharedMemory>,
        end: LinkEnd,
    ) -> io::Result<Arc<Link>> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let peer = sys::peer_credentials(connection.raw())?;
        let other_user = (!ferroce_host::is_of_this_user(connection.raw())).then_some(peer.uid);
        let link = Arc::new(Link::new(id, slot, peer.pid, other_user, connection, memory, end));
        if self.copied && link.is_entitled() {
            sys::allow_copies_by_others();
        }
        // Before the peer gets anything that it may fetch.
        link.entitle();
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
        // In the table first: from the moment the peer knows the directory, its access words count.
        self.list(&link)?;
        sys::epoll_control(self.epoll.raw(), libc::EPOLL_CTL_ADD, link.connection.raw(), events, id)
            .inspect_err(|_| drop(self.drop_link(&link)))?;
        Ok(link)
    }

    fn list(&self, link: &Arc<Link>) -> io::Result<()> {
        let mut links = self.links.write();
        if !limits::has_room(&links, link) {
            return Err(io::Error::from_raw_os_error(libc::EDQUOT));
        }
        let all = links.iter().cloned().chain([link.clone()]).collect();
        let replaced = self.listed.replace(links.set(all));
        drop(links);
        drop(replaced);
        Ok(())
    }

    /// The link of this process to itself, once it was [made](Links::make_to_itself).
    #[inline]
    pub fn to_itself(&self) -> Option<&Arc<Link>> {
        self.to_itself.get()
    }

    /// Makes that link, if there is none. It has no introduction, and no bell: a thread that leaves something there takes it, too.
    pub fn make_to_itself(&self) -> Option<&Arc<Link>> {
        let own = self.own?;
        if self.to_itself().is_none() {
            let made = self.try_make_to_itself(own);
            let made =
                made.inspect_err(|error| tracing::info!(%error, "no memory for messages to itself")).ok()?;
            // The caller holds `making`: no other thread makes one.
            let _ = self.to_itself.set(made);
        }
        self.to_itself()
    }

    fn try_make_to_itself(&self, own: &Directory) -> io::Result<Arc<Link>> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id().cast_signed();
        let connection = sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM)?;
        let memory = SharedMemory::create(link::LEN, false)?;
        let link = Arc::new(Link::new(id, 0, pid, None, connection, Arc::new(memory), LinkEnd::Both));
        link.entitle();
        let directory = PeerDirectory::open(sys::duplicate_engine(own.fd())?)?;
        let copies = PeerMemory::probe(pid, own.cookie.at(), own.cookie.value());
        let _ = link.remote.set(PeerProcess { process: own.process, directory, memory: copies });
        if !self.captured {
            link.offer_compact();
        }
        self.list(&link)?;
        link.settle();
        Ok(link)
    }

    /// Takes a link out of the table, and returns the numbers of the QPs that waited for room in it.
    fn drop_link(&self, link: &Arc<Link>) -> Vec<u32> {
        let waiting = link.end();
        // Before it leaves the table: a revocation reads the table first, and then `ended`.
        let mut ended = self.ended.lock();
        ended.retain(|(link, access)| link.goes_on(*access));
        ended.extend(link.accesses_of_peer().map(|access| (link.clone(), access)));
        drop(ended);
        let mut links = self.links.write();
        let all = links.iter().filter(|other| other.id != link.id).cloned().collect();
        let replaced = self.listed.replace(links.set(all));
        drop(links);
        drop(replaced);
        for fd in [Some(&link.connection), link.pidfd.as_ref()].into_iter().flatten() {
            // Gone already is fine.
            let _ = sys::epoll_control(self.epoll.raw(), libc::EPOLL_CTL_DEL, fd.raw(), 0, 0);
        }
        waiting
    }

    /// Sends the introduction to a peer that has given leave. A link that the peer has made meanwhile is used instead, unless something has
    /// gone by this one.
    fn introduce_itself(&self, own: &Directory, link: &Arc<Link>) -> io::Result<()> {
        if self.made_by_peer(link, |_| true).is_some() && link::ask_to_yield(&link.memory) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        hello::send(link.connection.raw(), &hello::hello(own), &[link.memory.fd(), own.fd()])
    }

    /// Reads what the peer of a link of ours has answered so far. Returns the numbers of the QPs that waited for room in vain.
    fn finish(&self, link: &Arc<Link>) -> Vec<u32> {
        let _introducing = self.introducing.lock();
        let mut introduced = link.finishing.lock();
        if link.remote.get().is_some() || link.is_dead() {
            return Vec::new();
        }
        let mut answer = Err(io::ErrorKind::WouldBlock.into());
        // What is left is an event of the connection again.
        for _ in 0..TOGETHER {
            answer = match hello::receive(link.connection.raw()) {
                // A bell: the peer already has something for this process.
                Ok((bytes, _)) if bytes.len() == 1 => continue,
                // Leave is given once.
                Ok((bytes, _)) if hello::is_leave(&bytes) && !*introduced => {
                    *introduced = true;
                    match self.own.map_or(Ok(()), |own| self.introduce_itself(own, link)) {
                        Ok(()) => continue,
                        Err(error) => Err(error),
                    }
                }
                answer => answer,
            };
            break;
        }
        let accepted = match answer {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Vec::new(),
            Err(error) => Err(error),
            Ok((bytes, fds)) => match (Introduction::parse_answer(&bytes), <[EngineFd; 1]>::try_from(fds)) {
                (Some(introduction), Ok([directory])) => self.introduce(link, &introduction, directory),
                _ => {
                    self.refused(link.slot, LinkRefusal::Refused);
                    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
                }
            },
        };
        let Err(error) = accepted else { return Vec::new() };
        if !link.has_yielded() {
            tracing::debug!(%error, slot = link.slot, "no shared memory with a process of this host");
        }
        self.drop_link(link)
    }

    fn introduce(
        &self,
        link: &Arc<Link>,
        introduction: &Introduction,
        directory: EngineFd,
    ) -> io::Result<()> {
        let pid = link.pid;
        // The peer chooses its cookie's place and value, so the cookie proves nothing where the kernel lets this process, as root, write
        // to each program that the peer may execute.
        let of_this_user = link.other_user.is_none().then_some(pid);
        let memory =
            of_this_user.and_then(|pid| PeerMemory::probe(pid, introduction.cookie_at, introduction.cookie));
        if let Some(pidfd) = &link.pidfd {
            sys::epoll_control(
                self.epoll.raw(),
                libc::EPOLL_CTL_ADD,
                pidfd.raw(),
                libc::EPOLLIN as u32,
                link.id | PIDFD,
            )?;
        }
        let directory = PeerDirectory::open(directory)?;
        tracing::debug!(
            pid,
            process = introduction.process,
            copies = memory.is_some(),
            sees_exit = link.pidfd.is_some(),
            "shares memory with a process"
        );
        let reads = memory.is_some();
        let remote = PeerProcess { process: introduction.process, directory, memory };
        if !self.captured {
            link.offer_compact();
        }
        // Set once: the thread that has read the one introduction is here.
        let _ = link.remote.set(remote);
        if reads {
            link.take_offers();
        }
        // What was sent before it could be woken.
        link.ring_bell();
        Ok(())
    }

    /// Looks after connections: bells, answers, and peers that are gone. `last` is called with a link before it ends, so that
    /// what the peer has left is dealt with, and with the other links to that peer: QPs give it up with the first that
    /// ends. Returns the numbers of the QPs that waited for room.
    pub fn attend(&self, last: &mut dyn FnMut(&Link)) -> Vec<u32> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        let ready = sys::epoll_wait(self.epoll.raw(), &mut events, Some(Duration::ZERO)).unwrap_or(0);
        let mut waiting = Vec::new();
        for event in &events[..ready] {
            let data = event.u64;
            let link = self.links.read().iter().find(|link| link.id == data & !PIDFD).cloned();
            let Some(link) = link else { continue };
            if link.remote.get().is_none() && !link.is_dead() && data & PIDFD == 0 {
                waiting.extend(self.finish(&link));
                continue;
            }
            if data & PIDFD == 0 && link.take_bells() {
                link.drop_revoked_views();
                self.rung.store(true, Ordering::Relaxed);
                continue;
            }
            last(&link);
            let others = self.to_same_process(&link);
            others.iter().filter(|other| other.id != link.id).for_each(|other| last(other));
            tracing::info!(pid = link.pid, "a link with a process of this host has ended");
            waiting.extend(self.drop_link(&link));
        }
        waiting
    }

    /// Whether a peer has rung since this was asked last: it has left something, or is about to.
    pub fn was_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::Relaxed)
    }

    /// Something is there that a sleeper should see to first.
    pub fn has_work(&self) -> bool {
        self.snapshot().iter().any(|link| link.has_records() || link.has_room_for_blocked())
    }

    /// This process's directory; `None` when it takes part in no link.
    #[inline]
    pub fn own(&self) -> Option<&'static Directory> {
        self.own
    }
}

impl RequestHandler for Links {
    fn answers_trusted(&self) -> bool {
        true
    }

    fn serve(&self, connection: EngineFd, message: &[u8], fds: Vec<EngineFd>) {
        let Some(own) = self.own else { return hello::refuse(connection.raw()) };
        let (Some(introduction), Ok([memory, directory])) =
            (Introduction::parse_hello(message), <[EngineFd; 2]>::try_from(fds))
        else {
            return hello::refuse(connection.raw());
        };
        let memory = match SharedMemory::open(memory, link::LEN, true) {
            Ok(memory) => Arc::new(memory),
            // The connection ends, and the other side goes by UDP.
            Err(error) => return tracing::debug!(%error, "a process offers memory that can't be shared"),
        };
        let introducing = self.introducing.lock();
        // Both have introduced themselves: the link of the process with the higher number is used. One that has waited for too long
        // uses its own all the same.
        let has_offered = |pid| {
            let process = introduction.process;
            self.snapshot().iter().any(|link| link.was_offered_to(pid, process))
        };
        if introduction.process < own.process
            && sys::peer_credentials(connection.raw()).is_ok_and(|peer| has_offered(peer.pid))
            && link::ask_to_yield(&memory)
        {
            // The connection ends, and the other side uses this process's link.
            return;
        }
        let opened = self.add(0, connection, memory, LinkEnd::Peer);
        let link = match opened {
            Ok(link) => link,
            // The connection ends, and the other side goes by UDP.
            Err(error) => return tracing::debug!(%error, "there is no room for a link"),
        };
        if let Err(error) = self.introduce(&link, &introduction, directory) {
            tracing::debug!(%error, "no link with a process of this host");
            self.drop_link(&link);
            return;
        }
        link.settle();
        drop(introducing);
        // A peer that has gone meanwhile has left what is in its ring, which is seen to when its end is.
        let _ = hello::send(link.connection.raw(), &hello::answer(own), &[own.fd()]);
        link.answered();
    }
}

#[cfg(test)]
mod tests;
