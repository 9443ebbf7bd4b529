//! What queue pairs do in a second: what they have counted since processes were asked before, over the time between.

use super::WatchedProcess;
use super::waits::Pairs;
use ferroce_watch::{Counters, Process, QueuePair};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Instant;

/// What is done in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PerSecond {
    /// Send requests that have ended.
    pub sends: f64,
    /// Messages received.
    pub receives: f64,
    /// Bytes of messages sent.
    pub sent: f64,
    /// Bytes of messages received.
    pub received: f64,
    /// Local ACK timeouts and negative acknowledgements received: what was sent before is sent again.
    pub retries: f64,
}

impl PerSecond {
    fn of(counted: &Counters, seconds: f64) -> Self {
        let rate = |count: u64| count as f64 / seconds.max(0.001);
        let retries = counted.completer_retry_err
            + counted.rcvd_rnr_err
            + counted.rcvd_seq_err
            + counted.implied_nak_seq_err;
        Self {
            sends: rate(counted.rdma_sends),
            receives: rate(counted.rdma_recvs),
            sent: rate(counted.sent_bytes),
            received: rate(counted.rcvd_bytes),
            retries: rate(retries),
        }
    }

    fn add(&mut self, other: &Self) {
        self.sends += other.sends;
        self.receives += other.receives;
        self.sent += other.sent;
        self.received += other.received;
        self.retries += other.retries;
    }
}

/// A queue pair, or all queue pairs of a process, and how much they do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QpRate {
    /// The place of its process among those that were seen: one of another PID namespace has no number to be known by.
    pub process: usize,
    /// Of its process; `None`: of another PID namespace.
    pub pid: Option<u32>,
    pub command: String,
    /// The queue pair's number; `None`: all of the process.
    pub number: Option<u32>,
    /// The queue pair's state, or the process's condition.
    pub state: String,
    pub fabric: String,
    /// Send requests that haven't ended.
    pub outstanding: u32,
    pub rates: PerSecond,
    /// The fullest of its completion queues: completions in it, and how many it can hold.
    pub cq: Option<(u32, u32)>,
    /// What the queue pair waits for, or how many queue pairs the process has.
    pub says: String,
}

/// By what rows are sorted, the greatest or first on top.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Sort {
    /// Bytes a second, both ways
    Bytes,
    /// Messages a second, both ways
    Messages,
    /// Retries a second
    Retries,
    /// Fill of the fullest completion queue
    Cq,
    /// Send requests that haven't ended
    Outstanding,
    /// The process's number
    Process,
}

impl Sort {
    /// The next one.
    pub fn next(self) -> Self {
        match self {
            Self::Bytes => Self::Messages,
            Self::Messages => Self::Retries,
            Self::Retries => Self::Cq,
            Self::Cq => Self::Outstanding,
            Self::Outstanding => Self::Process,
            Self::Process => Self::Bytes,
        }
    }
}

/// What a queue pair had counted when it was last seen.
struct LastCount {
    counters: Counters,
    at: Instant,
    rates: PerSecond,
}

/// What is known of queue pairs from before, by process and number.
#[derive(Default)]
pub struct Meter(HashMap<(Option<u32>, u32), LastCount>);

impl Meter {
    /// What the queue pairs do, as they were seen at `at`. One that is new has done nothing that is known.
    pub fn take(&mut self, seen: &[WatchedProcess], at: Instant) -> Vec<QpRate> {
        let pairs = Pairs::of(seen);
        let mut before = std::mem::take(&mut self.0);
        let mut rates = Vec::new();
        for (process, seen_one) in seen.iter().enumerate() {
            let Some(account) = seen_one.account() else { continue };
            for pair in &account.queue_pairs {
                let key = (seen_one.pid, pair.number);
                let known = known(before.remove(&key), pair, at);
                let per_second = known.as_ref().map(|known| known.rates).unwrap_or_default();
                self.0.extend(known.map(|known| (key, known)));
                rates.push(QpRate {
                    process,
                    pid: seen_one.pid,
                    command: seen_one.command.clone(),
                    number: Some(pair.number),
                    state: pair.state.to_string(),
                    fabric: pair.fabric.to_string(),
                    outstanding: pair.send.outstanding,
                    rates: per_second,
                    cq: fullest(account, pair),
                    says: pairs.waits_for(pair, seen),
                });
            }
        }
        rates
    }
}

/// The new state of a queue pair. A busy one reports nothing and keeps its state.
fn known(before: Option<LastCount>, pair: &QueuePair, at: Instant) -> Option<LastCount> {
    if pair.busy {
        return before;
    }
    let since = |before: LastCount| {
        let passed = at.saturating_duration_since(before.at).as_secs_f64();
        PerSecond::of(&pair.counters.since(&before.counters), passed)
    };
    Some(LastCount { counters: pair.counters, at, rates: before.map(since).unwrap_or_default() })
}

/// The fill of the fuller of a queue pair's completion queues.
fn fullest(account: &Process, pair: &QueuePair) -> Option<(u32, u32)> {
    let its = account.completion_queues.iter().filter(|cq| pair.completion_queues.contains(&cq.number));
    its.filter(|cq| cq.depth > 0).map(|cq| (cq.filled, cq.depth)).max_by(|a, b| fill(*a).total_cmp(&fill(*b)))
}

/// From 0 to 1.
pub fn fill((filled, depth): (u32, u32)) -> f64 {
    f64::from(filled) / f64::from(depth.max(1))
}

/// A row for each process, of those for its queue pairs, which are of the same look. A process that reports nothing has one, too.
pub fn of_processes(seen: &[WatchedProcess], pairs: &[QpRate]) -> Vec<QpRate> {
    let of_one = |(process, seen): (usize, &WatchedProcess)| {
        let mut all = QpRate {
            process,
            pid: seen.pid,
            command: seen.command.clone(),
            state: seen.condition().to_owned(),
            ..QpRate::default()
        };
        let mut count = 0;
        for pair in pairs.iter().filter(|pair| pair.process == process) {
            count += 1;
            all.rates.add(&pair.rates);
            all.outstanding = all.outstanding.saturating_add(pair.outstanding);
            if pair.cq.map_or(-1.0, fill) > all.cq.map_or(-1.0, fill) {
                all.cq = pair.cq;
            }
        }
        all.says = format!("{count} queue pairs: {}", seen.command);
        all
    };
    seen.iter().enumerate().map(of_one).collect()
}

/// Puts rows in order.
pub fn sort(rows: &mut [QpRate], by: Sort) {
    rows.sort_by(|a, b| {
        let key = |rate: &QpRate| match by {
            Sort::Bytes => rate.rates.sent + rate.rates.received,
            Sort::Messages => rate.rates.sends + rate.rates.receives,
            Sort::Retries => rate.rates.retries,
            Sort::Cq => rate.cq.map_or(-1.0, fill),
            Sort::Outstanding => f64::from(rate.outstanding),
            Sort::Process => 0.0,
        };
        key(b).total_cmp(&key(a)).then(a.pid.cmp(&b.pid)).then(a.number.cmp(&b.number))
    });
}

impl QpRate {
    /// For scripts.
    pub fn to_json(&self) -> Value {
        let PerSecond { sends, receives, sent, received, retries } = self.rates;
        let mut value = json!({
            "pid": self.pid,
            "command": self.command,
            "state": self.state,
            "outstanding": self.outstanding,
            "sends_per_second": sends,
            "receives_per_second": receives,
            "sent_bytes_per_second": sent,
            "received_bytes_per_second": received,
            "retries_per_second": retries,
            "cq_filled": self.cq.map(|cq| cq.0),
            "cq_depth": self.cq.map(|cq| cq.1),
        });
        if let Some(number) = self.number {
            value["number"] = number.into();
            value["fabric"] = self.fabric.as_str().into();
            value["waits"] = self.says.as_str().into();
        }
        value
    }
}

/// A number with a unit in three or four letters: "1.2M".
pub fn short(number: f64) -> String {
    let units = ["", "k", "M", "G", "T"];
    let mut scaled = number;
    let mut unit = 0;
    while scaled >= 999.5 && unit + 1 < units.len() {
        scaled /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && scaled < 99.95);
    format!("{scaled:.digits$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::super::ProcessAnswer;
    use super::*;
    use ferroce_watch::CompletionQueue;
    use std::time::Duration;

    fn pair(number: u32, sends: u64) -> QueuePair {
        QueuePair {
            number,
            completion_queues: [1, 2],
            counters: Counters {
                rdma_sends: sends,
                sent_bytes: 8 * sends,
                rcvd_rnr_err: sends / 10,
                ..Counters::default()
            },
            ..QueuePair::default()
        }
    }

    fn seen(queue_pairs: Vec<QueuePair>) -> [WatchedProcess; 1] {
        let cq = |number, filled| CompletionQueue { number, filled, depth: 8, ..CompletionQueue::default() };
        let completion_queues = vec![cq(1, 2), cq(2, 6), cq(3, 8)];
        let account = Process { queue_pairs, completion_queues, ..Process::default() };
        [WatchedProcess {
            uid: 0,
            pid: Some(9),
            command: "x".into(),
            slots: Vec::new(),
            answer: ProcessAnswer::Account(Box::new(account)),
        }]
    }

    #[test]
    fn rates_are_what_has_been_done_since_and_the_busiest_is_on_top() {
        let (mut meter, at) = (Meter::default(), Instant::now());
        meter.take(&seen(vec![pair(1, 100), pair(2, 100)]), at);
        let now = seen(vec![pair(1, 110), pair(2, 300), pair(3, 50)]);
        let mut rates = meter.take(&now, at + Duration::from_secs(2));
        sort(&mut rates, Sort::Bytes);
        let short: Vec<_> =
            rates.iter().map(|rate| (rate.number, rate.rates.sends, rate.rates.sent, rate.cq)).collect();
        let cq = Some((6, 8));
        assert_eq!(short, [(Some(2), 100.0, 800.0, cq), (Some(1), 5.0, 40.0, cq), (Some(3), 0.0, 0.0, cq)]);
        let processes = of_processes(&now, &rates);
        assert_eq!((processes.len(), processes[0].rates.sends, processes[0].rates.retries), (1, 105.0, 10.5));
        assert_eq!((processes[0].cq, processes[0].state.as_str()), (cq, "running"));
    }

    #[test]
    fn processes_without_a_number_are_told_apart() {
        let now = [1, 2].map(|number| {
            let [one] = seen(vec![pair(number, 0)]);
            WatchedProcess { pid: None, command: String::new(), ..one }
        });
        let pairs = Meter::default().take(&now, Instant::now());
        let says: Vec<_> = of_processes(&now, &pairs).into_iter().map(|process| process.says).collect();
        assert_eq!(says, ["1 queue pairs: ", "1 queue pairs: "]);
    }

    #[test]
    fn a_busy_queue_pair_keeps_its_rates_until_it_tells_again() {
        let (mut meter, at) = (Meter::default(), Instant::now());
        let mut sends = |sends, busy, second| {
            let pair = QueuePair { busy, ..pair(1, sends) };
            meter.take(&seen(vec![pair]), at + Duration::from_secs(second))[0].rates.sends
        };
        assert_eq!(sends(100, false, 0), 0.0);
        assert_eq!(sends(300, false, 1), 200.0);
        assert_eq!(sends(0, true, 2), 200.0);
        assert_eq!(sends(900, false, 3), 300.0);
        // Another queue pair that has got the number.
        assert_eq!(sends(0, false, 4), 0.0);
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 7.0, 999.0, 999.9, 12_345.0, 99_990.0, 1.5e6, 2e9, 3e15].map(short);
        assert_eq!(all, ["0", "7", "999", "1.0k", "12.3k", "100k", "1.5M", "2.0G", "3000T"]);
    }
}
