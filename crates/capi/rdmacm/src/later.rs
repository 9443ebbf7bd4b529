//! Tasks of ids that no descriptor announces: a thread tries them from time to time, and ends when there are none left.

use std::time::Duration;

use ferroce_os::sync::{Mutex, class};

/// Something to be tried until it is done.
pub(crate) trait Task: Send {
    /// Tries it. True: it is over, one way or the other.
    fn is_over(&mut self) -> bool;

    /// It can't be tried again.
    fn give_up(&mut self);
}

/// What there is to try, and whether there is a thread that does: in which process.
struct RetryQueue {
    tasks: Vec<Box<dyn Task>>,
    thread_of: Option<u32>,
    /// The process is ending: nothing is tried.
    is_leaving: bool,
}

static WAITING: Mutex<class::CmWaiting, RetryQueue> =
    Mutex::new(RetryQueue { tasks: Vec::new(), thread_of: None, is_leaving: false });

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
/// Of the thread's stack.
const STACK: usize = 256 << 10;

/// Has a task tried until it is over, the first time after a pause.
pub(crate) fn try_later(task: Box<dyn Task>) {
    let mut waiting = WAITING.lock();
    waiting.tasks.push(task);
    let own = ferroce_os::fork::generation();
    if waiting.thread_of.replace(own) == Some(own) {
        return;
    }
    drop(waiting);
    if ferroce_os::sys::start_thread("ferroce-cm", STACK, run).is_err() {
        tracing::warn!("no thread for what connections wait for");
        let mut waiting = WAITING.lock();
        waiting.thread_of = None;
        let tasks = std::mem::take(&mut waiting.tasks);
        drop(waiting);
        tasks.into_iter().for_each(|mut task| task.give_up());
    }
}

/// Whether the process is ending: its tasks wait, and its peers get no new request.
pub(crate) fn set_leaving(is_leaving: bool) {
    WAITING.lock().is_leaving = is_leaving;
}

fn run() {
    let Ok(_inside) = ferroce_os::fork::enter_library() else { return };
    loop {
        ferroce_os::fork::outside_library(|| std::thread::sleep(PAUSE));
        let (mut tasks, is_leaving) = {
            let mut waiting = WAITING.lock();
            if waiting.tasks.is_empty() {
                waiting.thread_of = None;
                return;
            }
            (std::mem::take(&mut waiting.tasks), waiting.is_leaving)
        };
        tasks.retain_mut(|task| is_leaving || !task.is_over());
        WAITING.lock().tasks.append(&mut tasks);
    }
}
