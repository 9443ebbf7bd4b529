//! What is outstanding on a queue pair, and what may come into a completion queue.

use super::memory::{Buffers, ToldMemory};
use super::quiet::Unasked;
use super::{CallTrace, found, lasts};
use ferroce_abi::verbs::{
    IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS, IBV_WC_TM_DATA_VALID, IBV_WC_TM_MATCH,
    IBV_WC_TM_NO_TAG, IBV_WC_TM_RECV, ibv_comp_channel, ibv_wc,
};
use ferroce_explain::Finding;
use ferroce_nic as nic;
use ferroce_os::sync::{Mutex, class};
use ferroce_parts::settings;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// A completion queue.
#[derive(Debug)]
pub struct CqWatch {
    /// Held while completions are taken and counted, and while an event is asked for: what two threads poll is counted in the
    /// order of the queue.
    turn: Mutex<class::CheckedTurn, ()>,
    nic: Weak<ferroce_queues::Cq>,
    /// The address of its channel; 0: it has none.
    channel: usize,
    /// Queues of watched queue pairs that complete into it.
    feeders: AtomicUsize,
    entries: AtomicI64,
    /// The oldest gives way to the newest.
    may_overrun: bool,
    /// Completions that aren't polled yet, and those that may come of what is posted.
    due: AtomicI64,
    /// Of the completions that were there when an event was asked for: those that aren't polled yet.
    armed_over: AtomicI64,
    /// XRC and tag-matching queues that complete into it, if their receives are looked at.
    srqs: Mutex<class::CheckedQps, Vec<Weak<SrqWatch>>>,
    /// Where an event of it was taken.
    taken: OnceLock<CallTrace>,
    told_size: AtomicBool,
    told_armed: AtomicBool,
}

/// A queue pair of a transport service.
#[derive(Debug)]
pub struct QpWatch {
    qpn: u32,
    max_send_wr: u32,
    max_recv_wr: u32,
    all_signaled: bool,
    send_cq: Arc<CqWatch>,
    /// `None` with a shared receive queue.
    recv_cq: Option<Arc<CqWatch>>,
    /// The shared receive queue, if its receives are looked at.
    srq: Option<Arc<SrqWatch>>,
    nic: Weak<nic::Qp>,
    outstanding: Mutex<class::Checked, Outstanding>,
    /// The peer's number, and the path MTU (IBV_MTU_*) in the lowest byte; 0 as long as there is none.
    connection: AtomicU64,
    told_full: AtomicBool,
    told_unasked: AtomicBool,
    told_memory: ToldMemory,
}

/// A send request as the checker sees it.
#[derive(Debug)]
pub struct CheckedSend {
    /// The program's number of it.
    pub wr_id: u64,
    /// It gets a completion also if it succeeds.
    pub signaled: bool,
    /// The memory that it names.
    pub buffers: Buffers,
}

/// Requests whose completion the program hasn't polled.
#[derive(Debug, Default)]
struct Outstanding {
    sends: VecDeque<CheckedSend>,
    signaled: i64,
    /// A request was signaled since RESET.
    has_asked: bool,
    /// Else: of the request that was posted last.
    unasked: Option<Unasked>,
    receives: i64,
    /// Those of the receives, with their wr_id, if they are looked at.
    received: VecDeque<(u64, Buffers)>,
}

impl Outstanding {
    /// Adds sends that were posted; `all_signaled`: each has a completion. Returns how many have one.
    #[inline]
    fn add(&mut self, sends: impl Iterator<Item = CheckedSend>, all_signaled: bool) -> i64 {
        let mut signaled = 0;
        for sent in sends {
            let flag = sent.signaled || all_signaled;
            signaled += i64::from(flag);
            self.sends.push_back(CheckedSend { signaled: flag, ..sent });
        }
        self.signaled += signaled;
        self.has_asked |= signaled > 0;
        if !self.has_asked {
            self.unasked = Some(Unasked::now());
        }
        signaled
    }
}

/// A shared receive queue, with the receives whose memory is looked at.
#[derive(Debug)]
pub struct SrqWatch {
    srq: Arc<ferroce_queues::Srq>,
    received: Mutex<class::Checked, PostedReceives>,
    told_memory: ToldMemory,
}

/// Receives of a shared queue.
#[derive(Debug, Default)]
struct PostedReceives {
    /// By number. Of receives with the same number it's the one that was posted last.
    posted: BTreeMap<u64, Buffers>,
    /// Those of tags, by their handles.
    tagged: BTreeMap<u32, (u64, Buffers)>,
}

/// What a completion ends in a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CompletedReceive {
    /// The end of a receive that was posted.
    Posted,
    /// The end of a tag's receive.
    Tagged,
    /// Something else.
    Nothing,
}

impl CompletedReceive {
    fn of(wc: &ibv_wc) -> Self {
        let of_tag = wc.wc_flags & (IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
        match wc.opcode {
            IBV_WC_RECV | IBV_WC_RECV_RDMA_WITH_IMM | IBV_WC_TM_NO_TAG => Self::Posted,
            IBV_WC_TM_RECV if wc.wc_flags & IBV_WC_TM_DATA_VALID != 0 => Self::Tagged,
            // Of a failure it isn't known which.
            IBV_WC_TM_RECV if of_tag == 0 && wc.status == IBV_WC_SUCCESS => Self::Posted,
            _ => Self::Nothing,
        }
    }
}

impl SrqWatch {
    /// `cq`: where it completes into by itself, as XRC and tag-matching queues do.
    pub fn new(srq: &Arc<ferroce_queues::Srq>, cq: Option<&CqWatch>) -> Arc<Self> {
        let (received, told_memory) = Default::default();
        let watch = Arc::new(Self { srq: srq.clone(), received, told_memory });
        if let Some(cq) = cq {
            cq.srqs.lock().push(Arc::downgrade(&watch));
        }
        watch
    }

    /// The program posts receives; `post` returns how many of the first of them were taken.
    pub fn posts<R>(
        &self,
        requests: impl Iterator<Item = (u64, Buffers)>,
        post: impl FnOnce() -> (R, usize),
    ) -> R {
        let mut received = self.received.lock();
        let requests: Vec<_> = requests.collect();
        let (result, taken) = post();
        received.posted.extend(requests.into_iter().take(taken));
        result
    }

    /// The program adds a tag with a receive, if there is one, or removes one; `post` returns the handle of the new one.
    pub fn changes_tag<E>(
        &self,
        receive: Option<(u64, Buffers)>,
        removed: Option<u32>,
        post: impl FnOnce() -> Result<Option<u32>, E>,
    ) -> Result<Option<u32>, E> {
        let mut received = self.received.lock();
        let handle = post()?;
        received.tagged.extend(handle.zip(receive));
        if let Some(removed) = removed {
            received.tagged.remove(&removed);
        }
        Ok(handle)
    }

    fn ended(&self, wc: &ibv_wc) -> Option<(u64, Buffers)> {
        let mut received = self.received.lock();
        match CompletedReceive::of(wc) {
            CompletedReceive::Posted => received.posted.remove_entry(&wc.wr_id),
            CompletedReceive::Tagged => {
                let has_number =
                    |(handle, (wr_id, _)): (&u32, &(u64, Buffers))| (*wr_id == wc.wr_id).then_some(*handle);
                let handles: Vec<u32> = received.tagged.iter().filter_map(has_number).collect();
                let ended: Vec<_> =
                    handles.iter().filter_map(|handle| received.tagged.remove(handle)).collect();
                // If several have one number, it isn't known which one ended.
                <[_; 1]>::try_from(ended).ok().map(|[ended]| ended)
            }
            CompletedReceive::Nothing => None,
        }
    }

    /// A queue pair was destroyed or reset, and receives that it had taken may never complete. Receives that no queue pair
    /// has taken stay.
    fn forget_taken(&self) {
        let mut received = self.received.lock();
        let left: BTreeSet<u64> = self.srq.numbers().into_iter().collect();
        received.posted.retain(|wr_id, _| left.contains(wr_id));
    }
}

/// How many requests a queue of so many has room for, with so many outstanding.
fn room(size: u32, outstanding: usize, strict: bool) -> usize {
    if strict { (size as usize).saturating_sub(outstanding) } else { usize::MAX }
}

fn blocks(descriptor: c_int) -> bool {
    // SAFETY: any number may be asked for.
    unsafe { libc::fcntl(descriptor, libc::F_GETFL) & libc::O_NONBLOCK == 0 }
}

/// Those of the process, in no order.
pub(super) fn queue_pairs() -> Vec<Arc<QpWatch>> {
    QPS.lock().values().cloned().collect()
}

/// The path MTU of a queue pair that is connected to `peer`.
fn mtu_of(qpn: u32, peer: u32) -> Option<u8> {
    let connection = QPS.lock().get(&qpn)?.connection.load(Ordering::Relaxed);
    (connection >> 8 == u64::from(peer) && connection != 0).then_some(connection as u8)
}

/// Those of the process, by number.
static QPS: Mutex<class::CheckedQps, BTreeMap<u32, Arc<QpWatch>>> = Mutex::new(BTreeMap::new());

impl CqWatch {
    /// Watches a completion queue.
    pub fn new(
        nic: &Arc<ferroce_queues::Cq>,
        channel: *const ibv_comp_channel,
        may_overrun: bool,
    ) -> Arc<Self> {
        Self::of(nic.capacity(), Arc::downgrade(nic), channel, may_overrun)
    }

    fn of(
        entries: u32,
        nic: Weak<ferroce_queues::Cq>,
        channel: *const ibv_comp_channel,
        may_overrun: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            turn: Mutex::new(()),
            nic,
            channel: channel as usize,
            feeders: AtomicUsize::new(0),
            entries: AtomicI64::new(entries.into()),
            may_overrun,
            due: AtomicI64::new(0),
            armed_over: AtomicI64::new(0),
            srqs: Mutex::default(),
            taken: OnceLock::new(),
            told_size: AtomicBool::new(false),
            told_armed: AtomicBool::new(false),
        })
    }

    /// Takes completions, or asks for an event, while no other thread does.
    pub fn in_turn<R>(&self, f: impl FnOnce() -> R) -> R {
        let _turn = self.turn.lock();
        f()
    }

    /// It has another size now.
    pub fn resized(&self, entries: u32) {
        self.entries.store(entries.into(), Ordering::Relaxed);
    }

    /// Its events go to this channel.
    pub(super) fn has_channel(&self, channel: *const ibv_comp_channel) -> bool {
        self.channel == channel as usize
    }

    /// Completions are in it, or will come of what is posted.
    #[inline]
    pub(super) fn has_due(&self) -> bool {
        self.due.load(Ordering::Relaxed) > 0
    }

    /// As [`CqWatch::has_due`]; or others than watched queue pairs complete into it, such as shared receive queues.
    pub(super) fn may_get_more(&self) -> bool {
        let feeders = self.feeders.load(Ordering::Relaxed);
        self.has_due() || self.nic.upgrade().is_none_or(|nic| nic.users() != feeders)
    }

    /// So many more may come into it than before, or fewer.
    fn expect(&self, more: i64) {
        let due = self.due.fetch_add(more, Ordering::Relaxed) + more;
        let entries = self.entries.load(Ordering::Relaxed);
        if more > 0 && due > entries && !self.may_overrun && !self.told_size.swap(true, Ordering::Relaxed) {
            let known = format!("{due} completions may come");
            let about = format!("CQ of {entries} entries");
            found(&Finding { number: 102, about, known, place: CallTrace::here().place() });
        }
    }

    /// The program has been given these completions, the oldest ones.
    pub fn polled(&self, completions: &[ibv_wc]) {
        if self.armed_over.load(Ordering::Relaxed) > 0 {
            self.armed_over.fetch_sub(completions.len() as i64, Ordering::Relaxed);
        }
        let mut last: Option<Arc<QpWatch>> = None;
        for wc in completions {
            if last.as_ref().is_none_or(|qp| qp.qpn != wc.qp_num) {
                last = QPS.lock().get(&wc.qp_num).cloned();
            }
            match &last {
                Some(qp) => qp.ended(wc),
                None if settings::checks_memory() => self.shared_ended(wc),
                None => {}
            }
        }
    }

    /// As [`QpWatch::ended`], of a receive of an XRC or tag-matching queue.
    fn shared_ended(&self, wc: &ibv_wc) {
        let srqs: Vec<Arc<SrqWatch>> = {
            let mut srqs = self.srqs.lock();
            srqs.retain(|srq| srq.strong_count() > 0);
            srqs.iter().filter_map(Weak::upgrade).collect()
        };
        let mut ended = srqs.iter().filter_map(|srq| Some((srq, srq.ended(wc)?)));
        // If several have one number, it isn't known which one ended.
        if let (Some((srq, (wr_id, buffers))), None) = (ended.next(), ended.next()) {
            srq.told_memory.compare(|| format!("QP {:#08x}", wc.qp_num), wr_id, &buffers);
        }
    }

    /// The program has asked for an event, with so many completions in the queue that an adapter raises none for.
    pub fn armed(&self, over: usize) {
        self.armed_over.store(over as i64, Ordering::Relaxed);
    }

    /// The program has taken an event of it from a channel with this descriptor. One that doesn't block may be emptied at any
    /// time, also before the queue is polled. `filled` returns how many completions the queue has: a new one raises an event on
    /// an adapter too, and is waited for.
    pub fn event_taken(&self, channel: c_int, filled: impl Fn() -> u32) {
        self.taken.get_or_init(CallTrace::here);
        if self.armed_over.load(Ordering::Relaxed) <= 0 || !blocks(channel) {
            self.armed_over.store(0, Ordering::Relaxed);
            return;
        }
        let has_no_new = || {
            self.in_turn(|| {
                let over = self.armed_over.load(Ordering::Relaxed);
                over > 0 && over >= i64::from(filled())
            })
        };
        let is_alone = !self.told_armed.load(Ordering::Relaxed) && lasts(has_no_new);
        let over = self.armed_over.swap(0, Ordering::Relaxed);
        if over > 0 && is_alone && !self.told_armed.swap(true, Ordering::Relaxed) {
            let known = format!("completions from before: {over}");
            found(&Finding {
                number: 104,
                about: "ibv_get_cq_event".into(),
                known,
                place: CallTrace::here().place(),
            });
        }
    }

    /// Where an event of it was taken first.
    pub fn taken_at(&self) -> Option<&CallTrace> {
        self.taken.get()
    }
}

impl QpWatch {
    /// Watches a queue pair.
    pub fn new(
        qpn: u32,
        nic: Weak<nic::Qp>,
        (max_send_wr, max_recv_wr): (u32, u32),
        all_signaled: bool,
        send_cq: Arc<CqWatch>,
        recv_cq: Option<Arc<CqWatch>>,
        srq: Option<Arc<SrqWatch>>,
    ) -> Arc<Self> {
        let watch = Arc::new(Self {
            qpn,
            max_send_wr,
            max_recv_wr,
            all_signaled,
            send_cq,
            recv_cq,
            srq,
            nic,
            outstanding: Mutex::new(Outstanding::default()),
            connection: AtomicU64::new(0),
            told_full: AtomicBool::new(false),
            told_unasked: AtomicBool::new(false),
            told_memory: ToldMemory::default(),
        });
        for cq in watch.queues() {
            cq.feeders.fetch_add(1, Ordering::Relaxed);
        }
        QPS.lock().insert(qpn, watch.clone());
        watch
    }

    /// Where its own queues complete into.
    fn queues(&self) -> impl Iterator<Item = &Arc<CqWatch>> {
        [Some(&self.send_cq), self.recv_cq.as_ref()].into_iter().flatten()
    }

    pub(super) fn send_cq(&self) -> &Arc<CqWatch> {
        &self.send_cq
    }

    /// The thread that has posted an unsignaled request last, if no request has been signaled since RESET.
    pub(super) fn unasked(&self) -> Option<Unasked> {
        let outstanding = self.outstanding.lock();
        outstanding.unasked.filter(|_| !outstanding.has_asked)
    }

    /// Its send requests have ended, as far as is known.
    pub(super) fn has_nothing_under_way(&self) -> bool {
        self.nic.upgrade().is_some_and(|nic| nic.has_nothing_under_way())
    }

    /// How many of its requests have ended without a completion; `None` if there are none, or they were reported already.
    pub(super) fn tells_unasked(&self) -> Option<usize> {
        let count = self.outstanding.lock().sends.len();
        (count > 0 && !self.told_unasked.swap(true, Ordering::Relaxed)).then_some(count)
    }

    /// The program posts send requests: `post` returns the call's result and how many of the first of them it has taken. Its
    /// argument is how many there is room for, by a strict adapter's rule: a request
    /// keeps its place until a completion is polled that covers it.
    pub fn posts<R>(
        &self,
        requests: impl Iterator<Item = CheckedSend>,
        post: impl FnOnce(usize) -> (R, usize),
    ) -> R {
        let mut outstanding = self.outstanding.lock();
        let room = room(self.max_send_wr, outstanding.sends.len(), settings::is_strict());
        let (result, signaled) = if settings::checks_memory() {
            // Memory is looked at before the adapter is.
            let requests: Vec<_> = requests.collect();
            let (result, taken) = post(room);
            (result, outstanding.add(requests.into_iter().take(taken), self.all_signaled))
        } else {
            let (result, taken) = post(room);
            (result, outstanding.add(requests.take(taken), self.all_signaled))
        };
        let count = outstanding.sends.len();
        drop(outstanding);
        if signaled > 0 {
            self.send_cq.expect(signaled);
        }
        if count > self.max_send_wr as usize && !self.told_full.swap(true, Ordering::Relaxed) {
            let known = format!("{count}, max_send_wr is {}", self.max_send_wr);
            found(&Finding { number: 100, about: self.name(), known, place: CallTrace::here().place() });
        }
        result
    }

    /// As [`QpWatch::posts`], of receives.
    pub fn posts_receives<R>(
        &self,
        requests: impl Iterator<Item = (u64, Buffers)>,
        post: impl FnOnce(usize) -> (R, usize),
    ) -> R {
        let mut outstanding = self.outstanding.lock();
        let room = self.receive_room(outstanding.receives, settings::is_strict());
        let (result, taken) = if settings::checks_memory() {
            let requests: Vec<_> = requests.collect();
            let (result, taken) = post(room);
            outstanding.received.extend(requests.into_iter().take(taken));
            (result, taken)
        } else {
            post(room)
        };
        outstanding.receives += taken as i64;
        drop(outstanding);
        if let Some(cq) = self.recv_cq.as_ref().filter(|_| taken > 0) {
            cq.expect(taken as i64);
        }
        result
    }

    /// How many receives there is room for. Without a queue of its own there is no rule: the adapter refuses each receive.
    fn receive_room(&self, outstanding: i64, strict: bool) -> usize {
        let outstanding = usize::try_from(outstanding).unwrap_or(0);
        self.recv_cq.as_ref().map_or(usize::MAX, |_| room(self.max_recv_wr, outstanding, strict))
    }

    /// Its name in lines.
    pub fn name(&self) -> String {
        format!("QP {:#08x}", self.qpn)
    }

    fn ended(&self, wc: &ibv_wc) {
        let mut outstanding = self.outstanding.lock();
        if wc.opcode & IBV_WC_RECV != 0 {
            let receives = outstanding.receives.min(1);
            outstanding.receives -= receives;
            let at = outstanding.received.iter().position(|(wr_id, _)| *wr_id == wc.wr_id);
            let ended = at.and_then(|at| outstanding.received.remove(at));
            drop(outstanding);
            let ended = ended.or_else(|| self.srq.as_ref()?.ended(wc));
            if let Some(cq) = &self.recv_cq {
                cq.expect(-receives);
            }
            if let Some((wr_id, buffers)) = ended {
                self.told_memory.compare(|| self.name(), wr_id, &buffers);
            }
            return;
        }
        let sends = &mut outstanding.sends;
        let last = if wc.status == IBV_WC_SUCCESS {
            sends.iter().position(|sent| sent.signaled)
        } else {
            // Requests may have the same wr_id: the last one that it can be. Those before have ended.
            let signaled = sends.iter().position(|sent| sent.signaled);
            let until = signaled.map_or(sends.len(), |at| at + 1);
            sends.range(..until).rposition(|sent| sent.wr_id == wc.wr_id)
        };
        let ended = last.map_or(0, |last| last + 1).min(sends.len());
        let (mut signaled, mut looked_at) = (0, Vec::new());
        for _ in 0..ended {
            let Some(sent) = sends.pop_front() else { break };
            signaled += i64::from(sent.signaled);
            if !sent.buffers.is_empty() {
                looked_at.push((sent.wr_id, sent.buffers));
            }
        }
        outstanding.signaled -= signaled;
        drop(outstanding);
        self.send_cq.expect(-signaled);
        for (wr_id, buffers) in looked_at {
            self.told_memory.compare(|| self.name(), wr_id, &buffers);
        }
    }

    /// It goes to RESET: nothing is outstanding any more, no completion comes, and it has no peer.
    pub fn reset(&self) {
        let Outstanding { signaled, receives, .. } = std::mem::take(&mut *self.outstanding.lock());
        self.connection.store(0, Ordering::Relaxed);
        if let Some(srq) = &self.srq {
            srq.forget_taken();
        }
        self.send_cq.expect(-signaled);
        if let Some(cq) = &self.recv_cq {
            cq.expect(-receives);
        }
    }

    /// It has a peer and a path MTU (IBV_MTU_*). `of_peer` asks for the peer's, if the peer knows this end.
    pub fn connected(&self, peer: u32, mtu: u8, of_peer: impl FnOnce() -> Option<u8>) {
        nic::path_mtu::know_by(mtu_of);
        self.connection.store(u64::from(peer) << 8 | u64::from(mtu), Ordering::Relaxed);
        if let Some(other) = of_peer().filter(|other| *other != mtu) {
            let known = format!("{} bytes here, {} at the peer", 128 << mtu, 128 << other);
            found(&Finding { number: 105, about: self.name(), known, place: CallTrace::here().place() });
        }
    }

    /// It has been destroyed.
    pub fn end(self: &Arc<Self>) {
        self.reset();
        for cq in self.queues() {
            cq.feeders.fetch_sub(1, Ordering::Relaxed);
        }
        let mut all = QPS.lock();
        // The number may be another's by now.
        if all.get(&self.qpn).is_some_and(|watch| Arc::ptr_eq(watch, self)) {
            all.remove(&self.qpn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_without_a_receive_queue_leaves_receives_to_the_adapter() {
        let cq = CqWatch::of(16, Weak::new(), std::ptr::null(), false);
        let of = |own: bool| {
            QpWatch::new(7, Weak::new(), (4, 4), false, cq.clone(), own.then(|| cq.clone()), None)
        };
        let rooms = |own| [0, 3, 5].map(|outstanding| of(own).receive_room(outstanding, true));
        assert_eq!(rooms(true), [4, 1, 0]);
        assert_eq!(rooms(false), [usize::MAX; 3]);
        assert_eq!(of(true).receive_room(5, false), usize::MAX);
    }
}
