//! The account of itself that the process gives to its watchers (`ferroce ps`, the counters in `/sys`).
//!
//! The account is made when a watcher asks. The thread that answers other processes, as a rule the background thread, looks at one
//! object after the other. It doesn't wait for locks: it tries again while an object is busy, for [`PATIENCE`] for all objects
//! together, and then reports the object as busy.

use crate::Context;
use crate::adapter::{self, Adapter};
use crate::device::OfContext;
use ferroce_access::SharedMemory;
use ferroce_host::{KIND_WATCH, RequestHandler, Services, frame};
use ferroce_mem::KeyTable;
use ferroce_mem::MrInit;
use ferroce_netdev::PortState;
use ferroce_os::sys::{self, EngineFd};
use ferroce_parts::counted::PAST;
use ferroce_queues::{Cq, Srq};
use ferroce_watch::{
    CompletionQueue, ConnectionManager, Counters, DeviceSnapshot, Process, QueuePair, Region,
    SharedReceiveQueue, TOLD, Wish, WorkQueue,
};
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long busy objects are waited for, all together.
const PATIENCE: Duration = Duration::from_millis(2);

/// Answers processes that watch this one.
pub(crate) fn register(services: &Services) {
    services.register(KIND_WATCH, Arc::new(WatchService));
}

struct WatchService;

impl RequestHandler for WatchService {
    fn serve(&self, connection: EngineFd, message: &[u8], _: Vec<EngineFd>) {
        let wish = message.get(frame::HEADER).copied().and_then(Wish::from_byte);
        // Ignore send errors and unknown requests.
        if let (Some(adapter), Some(wish)) = (adapter::current(), wish) {
            let _ = tell(&connection, &account(adapter, wish));
        }
    }

    fn answers_root(&self) -> bool {
        true
    }
}

/// Hands over a memfd with the account: one message that never blocks, however slow the watcher is.
fn tell(connection: &EngineFd, process: &Process) -> io::Result<()> {
    let bytes = process.to_bytes();
    let memory = SharedMemory::create(bytes.len(), true)?;
    memory.write(0, &bytes);
    frame::send(connection.raw(), &mut frame::header(frame::GRANTED), &[memory.fd()])
}

fn account(adapter: &Adapter, wish: Wish) -> Process {
    let process = Process {
        version: env!("CARGO_PKG_VERSION").into(),
        slots: adapter.host.slots(),
        ..Process::default()
    };
    let mut account = Account {
        process,
        cqs: HashSet::new(),
        srqs: HashSet::new(),
        before: PAST.lock().told.clone().unwrap_or_default(),
        told: BTreeMap::new(),
        until: Instant::now() + PATIENCE,
    };
    for context in adapter::contexts() {
        account.context(&context, wish);
    }
    if wish == Wish::Everything {
        account.connection_manager(adapter);
        account.regions();
    }
    PAST.lock().told = Some(Arc::new(account.told));
    account.process
}

/// An account in the making.
struct Account {
    process: Process,
    /// Completion queues that are in it.
    cqs: HashSet<u64>,
    /// Shared receive queues that are in it.
    srqs: HashSet<u64>,
    /// The counters of queue pairs in the last account, and in this one.
    before: Arc<BTreeMap<u64, Counters>>,
    told: BTreeMap<u64, Counters>,
    /// Until then the account tries again to read busy objects.
    until: Instant,
}

impl Account {
    fn context(&mut self, context: &Context, wish: Wish) {
        let name = context.device().info().name.as_str();
        let mut counters = Counters::default();
        for qp in adapter::qps_of(context) {
            let mut pair = self.look(|| qp.try_look()).unwrap_or_else(|| qp.glance());
            if pair.busy {
                // A device's counters would fall without those of this one.
                pair.counters = self.before.get(&qp.serial()).copied().unwrap_or_default();
            }
            self.told.insert(qp.serial(), pair.counters);
            counters.add(&pair.counters);
            if wish != Wish::Everything {
                continue;
            }
            if self.process.queue_pairs.len() == TOLD {
                self.process.more_queue_pairs += 1;
                continue;
            }
            self.completion_queue(qp.send_cq());
            self.completion_queue(qp.recv_cq());
            if let Some(srq) = qp.srq() {
                self.shared_receive_queue(srq);
            }
            self.process.queue_pairs.push(QueuePair { device: name.into(), ..pair });
        }
        self.device(context, name, &counters);
    }

    /// A device, which may be open more than once.
    fn device(&mut self, context: &Context, name: &str, counters: &Counters) {
        if let Some(known) = self.process.devices.iter_mut().find(|device| device.name == name) {
            return known.counters.add(counters);
        }
        let mut counters = *counters;
        counters.send_err += context.dropped_packets();
        if let Some(past) = PAST.lock().gone.get(name) {
            counters.add(past);
        }
        self.process.devices.push(DeviceSnapshot {
            name: name.into(),
            interface: context.device().info().netdev.name.as_str().into(),
            active: context.port().state == PortState::Active,
            counters,
        });
    }

    fn completion_queue(&mut self, cq: &Arc<Cq>) {
        let number = cq.serial();
        if !self.cqs.insert(number) {
            return;
        }
        let fill = self.look(|| cq.try_fill());
        self.process.completion_queues.push(CompletionQueue {
            number,
            device: cq.context().device().info().name.as_str().into(),
            depth: fill.map_or(0, |fill| fill.capacity),
            filled: fill.map_or(0, |fill| fill.filled),
            armed: fill.is_some_and(|fill| fill.armed),
            overrun: cq.has_overrun(),
        });
    }

    fn shared_receive_queue(&mut self, srq: &Arc<Srq>) {
        let number = srq.serial();
        if !self.srqs.insert(number) {
            return;
        }
        let (depth, outstanding, limit) = self.look(|| srq.try_fill()).unwrap_or_default();
        self.process.shared_receive_queues.push(SharedReceiveQueue {
            number,
            device: srq.context().device().info().name.as_str().into(),
            receive: WorkQueue { depth, outstanding },
            limit,
        });
    }

    fn regions(&mut self) {
        let (regions, count) = KeyTable::global().regions(TOLD);
        self.process.more_regions = (count - regions.len()) as u64;
        for mr in regions {
            let Some((init, pd)) = mr.try_look() else { continue };
            self.process.registered += init.length;
            self.process.regions.push(Region {
                key: mr.key(),
                device: pd.owner().device_name().into(),
                address: init.iova,
                length: init.length,
                access: rights(&init).as_str().into(),
            });
        }
    }

    fn connection_manager(&mut self, adapter: &Adapter) {
        let busy = || ConnectionManager { busy: true, ..ConnectionManager::default() };
        self.process.connection_manager =
            adapter.manager().map(|manager| self.look(|| manager.try_look()).unwrap_or_else(busy));
    }

    /// Returns what `look` returns. Calls it again while the object is busy and there is time.
    fn look<T>(&self, look: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            let seen = look();
            if seen.is_some() || Instant::now() >= self.until {
                return seen;
            }
            sys::pause(Duration::from_micros(20));
        }
    }
}

impl Context {
    /// Packets from addresses of the device that the kernel didn't take.
    fn dropped_packets(&self) -> u64 {
        let Some(adapter) = adapter::current() else { return 0 };
        let gids = self.gids();
        adapter.dropped_packets(|ip| gids.iter().any(|(_, entry)| entry.ip == ip))
    }
}

/// The rights of a region, as "local-write,remote-read".
fn rights(init: &MrInit) -> String {
    let access = &init.access;
    let all = [
        (access.local_write, "local-write"),
        (access.remote_write, "remote-write"),
        (access.remote_read, "remote-read"),
        (access.remote_atomic, "remote-atomic"),
        (access.flush.bits() != 0, "flush"),
        (access.bind_windows, "mw-bind"),
        (access.on_demand, "on-demand"),
    ];
    all.iter().filter(|(granted, _)| *granted).map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::in_namespace;
    use crate::side::{Side, open};
    use ferroce_proto::SendOp;
    use ferroce_wire::Service;

    #[test]
    fn the_counters_of_a_device_stay_while_a_queue_pair_is_busy() {
        const NAME: &str = "watched::tests::the_counters_of_a_device_stay_while_a_queue_pair_is_busy";
        in_namespace(NAME, || {
            let side = Side::new(&open(), Service::Rc, 64);
            side.connect(side.qp.qpn());
            side.recv(1, side.sge(0, 32));
            side.send(2, SendOp::Send, side.sge(32, 8), None);
            side.wait();
            side.wait();
            let adapter = side.context.adapter().unwrap();
            let look = || {
                let Process { devices, queue_pairs, .. } = account(adapter, Wish::Everything);
                (queue_pairs[0].busy, queue_pairs[0].counters, devices[0].counters)
            };
            let before = look();
            let while_busy = side.qp.while_busy(look);
            assert_eq!(before.2.sent_bytes, 8);
            assert_eq!((before.0, while_busy), (false, (true, before.1, before.2)));
            side.close();
        });
    }
}
