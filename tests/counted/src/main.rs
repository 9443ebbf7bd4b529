//! `counted [-2] native|system|session BATCHES ROUNDS`: does each operation of `ferroce::verbs`, or of `ferroce::session` without a
//! runtime, in batches of rounds, for callgrind to count what they take. It is `tests/c/bench/counted.c` in Rust, with the same log, the same turns and the same clock that stands still,
//! which that file describes.

use ferroce::session::{Connection, Driver, Op, Outcome};
use ferroce::verbs::{
    Cq, Device, Domain, Endpoint, FetchAdd, Operation, Qp, Read, Reliable, Send, Setup, Write,
};
use ferroce::{Buffer, Exposed, Remote, rights};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::error::Error;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SIZE: usize = 8;
const PATIENCE_SECONDS: u32 = 150;
const WARM_UP: u32 = 80;
const ROUND_NS: u64 = 5000;
/// As `JUMP_NS` and `NAP_US` there.
const JUMP_NS: u64 = 1_000_000_000;
const NAP: Duration = Duration::from_millis(30);
/// As `LONG_AGO_US` there.
const LONG_AGO: Duration = Duration::from_micros(600);

const OPERATIONS: [&str; 5] = ["send", "write", "read", "atomic", "empty poll"];

/// CLOCK_MONOTONIC, or 0 while it is the machine's.
static CLOCK_NS: AtomicU64 = AtomicU64::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The call that is under way is counted.
    static COLLECTING: Cell<bool> = const { Cell::new(false) };
}

/// It stands before the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(id: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    let ns = CLOCK_NS.load(Ordering::Relaxed);
    if ns == 0 || id != libc::CLOCK_MONOTONIC {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, id, time) } as libc::c_int;
    }
    let value = libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ };
    // SAFETY: the caller promises that a time may be written there.
    unsafe { time.write(value) };
    0
}

struct Counting;

fn allocator_called() {
    if COLLECTING.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocator_called();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        allocator_called();
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A request to valgrind, which sees it in these instructions; without valgrind they do nothing.
#[cfg(target_arch = "x86_64")]
fn request(number: usize, argument: usize, second: usize) {
    let request = [number, argument, second, 0, 0, 0];
    // SAFETY: the instructions change no register but rdx. Valgrind reads the array, and the string that it names.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") request.as_ptr(), inout("rdx") 0usize => _, out("rdi") _,
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn request(_number: usize, _argument: usize, _second: usize) {}

const CALLGRIND: usize = ((b'C' as usize) << 24) | ((b'T' as usize) << 16);

fn toggle_collect() {
    request(CALLGRIND + 2, 0, 0);
}

/// Writes a line to valgrind's log. It contains no `%`.
fn log(line: &str) {
    const PRINTF_BY_REFERENCE: usize = 0x1403;
    let (text, no_arguments) = (format!("{line}\n\0"), [0usize; 4]);
    request(PRINTF_BY_REFERENCE, text.as_ptr() as usize, no_arguments.as_ptr() as usize);
}

/// A side of the connection.
struct Side {
    layer: Layer,
    _domain: Domain,
    /// Memory that isn't posted.
    buffers: Vec<Buffer>,
    remote: Remote<rights::All>,
    _exposed: Exposed<rights::All>,
    counted: bool,
}

/// What carries out the operations.
enum Layer {
    Verbs(Cq, Qp<Reliable>),
    Session(Connection, Option<Posted>),
}

/// The outstanding request of a session.
enum Posted {
    Send(Op<Send<Buffer>>),
    Write(Op<Write<Buffer>>),
    Read(Op<Read<Buffer>>),
    Atomic(Op<FetchAdd>),
}

/// The queue of the completions.
enum Queue {
    Verbs(Cq),
    Session(Driver),
}

/// The value of a call, which is counted.
fn counted<T>(is_counted: bool, call: impl FnOnce() -> T) -> T {
    if !is_counted {
        return call();
    }
    log("begin");
    COLLECTING.set(true);
    toggle_collect();
    let value = call();
    toggle_collect();
    COLLECTING.set(false);
    log("end");
    value
}

/// What a side consists of, before it is connected.
struct Apart {
    domain: Domain,
    queue: Queue,
    setup: Setup<Reliable>,
    exposed: Exposed<rights::All>,
}

/// The endpoint of a queue pair, and memory.
type Address = [u8; 64 + 24];

impl Apart {
    fn new(device: &Device, is_session: bool) -> Result<Self> {
        let domain = device.open()?;
        let queue =
            if is_session { Queue::Session(Driver::manual(&domain)?) } else { Queue::Verbs(domain.cq(16)?) };
        let builder = match &queue {
            Queue::Verbs(cq) => domain.rc(cq),
            Queue::Session(driver) => driver.rc(),
        };
        let setup = builder.send_depth(8).recv_depth(8).build()?;
        let exposed = domain.alloc(4096)?.expose(rights::All).map_err(|failed| failed.error)?;
        Ok(Self { domain, queue, setup, exposed })
    }

    /// Makes progress until this side has surely answered the other.
    fn attend(&mut self) -> Result<()> {
        const TIME: Duration = Duration::from_millis(50);
        match &mut self.queue {
            Queue::Verbs(cq) => drop(cq.wait(Some(TIME))?),
            Queue::Session(driver) => {
                let since = Instant::now();
                while since.elapsed() < TIME {
                    driver.turn();
                }
            }
        }
        Ok(())
    }

    fn address(&self) -> Address {
        let mut address = [0; 64 + 24];
        address[..64].copy_from_slice(&self.setup.endpoint().to_bytes());
        address[64..].copy_from_slice(&self.exposed.token().to_bytes());
        address
    }

    fn join(self, theirs: Address) -> Result<Side> {
        let Self { domain, queue, setup, exposed } = self;
        let buffers = (0..4).map(|_| domain.alloc(SIZE)).collect::<ferroce::Result<Vec<_>>>()?;
        let endpoint = Endpoint::from_bytes(theirs[..64].try_into()?)?;
        let remote = Remote::from_bytes(theirs[64..].try_into()?)?;
        let layer = match queue {
            Queue::Verbs(cq) => Layer::Verbs(cq, setup.connect(&endpoint).map_err(|failed| failed.error)?),
            Queue::Session(driver) => {
                let pool = domain.pool(8, SIZE)?;
                let joined = driver.run(driver.join(setup, &pool, async |_| Ok(endpoint)))?;
                Layer::Session(joined, None)
            }
        };
        Ok(Side { layer, _domain: domain, buffers, remote, _exposed: exposed, counted: false })
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Round,
    Receive,
    Poll,
    Dump,
}

const PARTS: [Part; 4] = [Part::Round, Part::Receive, Part::Poll, Part::Dump];

impl Side {
    /// Does a part; `number` is whether a round is counted, or which operation has been.
    fn part(&mut self, part: Part, number: u8) -> Result<bool> {
        match part {
            Part::Round => {
                if CLOCK_NS.load(Ordering::Relaxed) == 0 {
                    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                    // SAFETY: a time may be written to `now`.
                    unsafe { clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
                    let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
                    CLOCK_NS.store(now + JUMP_NS, Ordering::Relaxed);
                    std::thread::sleep(NAP);
                }
                CLOCK_NS.fetch_add(ROUND_NS, Ordering::Relaxed);
                self.counted = number != 0;
            }
            Part::Receive => {
                let is_counted = self.counted;
                // A connection posts its receives itself.
                if let Layer::Verbs(_, qp) = &mut self.layer {
                    let buffer = spare(&mut self.buffers);
                    counted(is_counted, || qp.recv(1, buffer)).map_err(|failed| failed.error)?;
                }
            }
            Part::Poll => return self.poll_once(),
            Part::Dump => {
                let name = OPERATIONS[usize::from(number)];
                let text = format!("{name}\0");
                request(CALLGRIND + 3, text.as_ptr() as usize, 0);
                log(&format!("allocations {} {name}", ALLOCATIONS.swap(0, Ordering::Relaxed)));
            }
        }
        Ok(true)
    }

    /// Whether there was a completion.
    fn poll_once(&mut self) -> Result<bool> {
        let buffers = &mut self.buffers;
        match &mut self.layer {
            Layer::Verbs(cq, _) => counted(self.counted, || -> Result<bool> {
                let mut completions = cq.poll()?;
                let Some(mut completion) = completions.next() else { return Ok(false) };
                if let Some(buffer) = completion.buffer()? {
                    buffers.push(buffer);
                }
                Ok(true)
            }),
            Layer::Session(connection, posted) => counted(self.counted, || -> Result<bool> {
                connection.driver().turn();
                let before = posted.take();
                Ok(match before {
                    None => connection.try_recv()?.is_some(),
                    Some(Posted::Send(op)) => ended(op, Posted::Send, posted, |it| buffers.push(it)),
                    Some(Posted::Write(op)) => ended(op, Posted::Write, posted, |it| buffers.push(it)),
                    Some(Posted::Read(op)) => ended(op, Posted::Read, posted, |it| buffers.push(it)),
                    Some(Posted::Atomic(op)) => ended(op, Posted::Atomic, posted, |_| ()),
                })
            }),
        }
    }

    fn post(&mut self, operation: &str) -> Result<()> {
        let remote = self.remote.slice(SIZE..2 * SIZE);
        if operation == "atomic" {
            return self.carry_out(FetchAdd::new(remote, 1), Posted::Atomic);
        }
        let buffer = spare(&mut self.buffers);
        match operation {
            "send" => self.carry_out(Send::new(buffer), Posted::Send),
            "write" => self.carry_out(Write::new(buffer, remote), Posted::Write),
            _ => self.carry_out(Read::new(buffer, remote), Posted::Read),
        }
    }

    fn carry_out<O: Outcome + Operation<Reliable>>(
        &mut self,
        operation: O,
        as_posted: impl FnOnce(Op<O>) -> Posted,
    ) -> Result<()> {
        match &mut self.layer {
            Layer::Verbs(_, qp) => {
                counted(self.counted, || qp.post(2, operation).map_err(|failed| failed.error))?;
            }
            Layer::Session(connection, posted) => {
                let op =
                    counted(self.counted, || connection.try_post(operation).map_err(|failed| failed.error))?;
                *posted = Some(as_posted(op));
            }
        }
        Ok(())
    }
}

/// Memory for a request.
fn spare(buffers: &mut Vec<Buffer>) -> Buffer {
    let mut buffer = buffers.pop().expect("few requests are outstanding");
    buffer.set_len(SIZE);
    buffer
}

/// Whether a request of a session has ended, with success.
fn ended<O: Outcome>(
    op: Op<O>,
    as_posted: impl FnOnce(Op<O>) -> Posted,
    posted: &mut Option<Posted>,
    take: impl FnOnce(O::Done),
) -> bool {
    match op.try_done() {
        Ok(Ok(done)) => {
            take(done);
            true
        }
        Ok(Err(_)) => panic!("a request has failed"),
        Err(op) => {
            *posted = Some(as_posted(op));
            false
        }
    }
}

/// The second side: of this process, or of the other one.
enum Second {
    Here(Box<Side>),
    There(UnixStream),
}

impl Second {
    /// Has the second side do a part.
    fn ask(&mut self, part: Part, number: u8) -> Result<bool> {
        match self {
            Self::Here(side) => side.part(part, number),
            Self::There(other) => {
                other.write_all(&[part as u8, number])?;
                let mut answer = [0];
                other.read_exact(&mut answer)?;
                Ok(answer[0] != 0)
            }
        }
    }
}

/// The other process: does what it is asked for until the first one has gone.
fn serve(mut side: Side, mut other: UnixStream) -> Result<()> {
    let mut request = [0; 2];
    while other.read_exact(&mut request).is_ok() {
        let answer = side.part(PARTS[usize::from(request[0])], request[1])?;
        other.write_all(&[answer.into()])?;
    }
    Ok(())
}

fn round(first: &mut Side, second: &mut Second, operation: &str, is_counted: bool) -> Result<()> {
    first.part(Part::Round, is_counted.into())?;
    // The clock is one for both sides of a process, so only the other process counts its own.
    match second {
        Second::Here(side) => side.counted = is_counted,
        Second::There(_) => _ = second.ask(Part::Round, is_counted.into())?,
    }
    let mut of_second = false;
    match operation {
        "empty poll" => {
            std::thread::sleep(LONG_AGO);
            assert!(!first.poll_once()?, "a completion of nothing");
            return Ok(());
        }
        "send" => of_second = second.ask(Part::Receive, 0)?,
        _ => {}
    }
    first.post(operation)?;
    // The sides poll in turns until both have their completions.
    let mut of_first = true;
    while of_first || of_second {
        if of_second && second.ask(Part::Poll, 0)? {
            of_second = false;
        }
        if of_first && first.poll_once()? {
            of_first = false;
        } else if of_first && !of_second {
            assert!(!second.ask(Part::Poll, 0)?, "a completion of nothing");
        }
    }
    Ok(())
}

fn meet(other: &mut UnixStream, mine: Address) -> Result<Address> {
    let mut theirs = [0; 64 + 24];
    other.write_all(&mine)?;
    other.read_exact(&mut theirs)?;
    Ok(theirs)
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1).peekable();
    let two = words.next_if(|word| word == "-2").is_some();
    let words: Vec<String> = words.collect();
    let [backend, batches, rounds] = &words[..] else {
        return Err("usage: counted [-2] native|system|session BATCHES ROUNDS".into());
    };
    let (batches, rounds): (u32, u32) = (batches.parse()?, rounds.parse()?);
    let device = || if backend == "system" { Device::system() } else { Device::native() };
    let is_session = backend == "session";
    // SAFETY: only the time limit of this process changes.
    unsafe { libc::alarm(PATIENCE_SECONDS) };
    let (mut first, mut second, child) = if two {
        let (mut mine, mut of_child) = UnixStream::pair()?;
        // SAFETY: this is the process's only thread.
        let child = unsafe { libc::fork() };
        // SAFETY: as above.
        unsafe { libc::alarm(PATIENCE_SECONDS) };
        if child == 0 {
            drop(mine);
            let mut side = Apart::new(&device()?, is_session)?;
            let address = side.address();
            let theirs = meet(&mut of_child, address)?;
            meet(&mut of_child, address)?;
            side.attend()?;
            let side = side.join(theirs)?;
            meet(&mut of_child, address)?;
            return serve(side, of_child);
        }
        drop(of_child);
        let side = Apart::new(&device()?, is_session)?;
        let address = side.address();
        let theirs = meet(&mut mine, address)?;
        // One after the other, so that each run makes the link from the same side.
        let side = side.join(theirs)?;
        meet(&mut mine, address)?;
        meet(&mut mine, address)?;
        (side, Second::There(mine), Some(child))
    } else {
        let device = device()?;
        let (a, b) = (Apart::new(&device, is_session)?, Apart::new(&device, is_session)?);
        let (of_a, of_b) = (a.address(), b.address());
        (a.join(of_b)?, Second::Here(Box::new(b.join(of_a)?)), None)
    };
    for (number, operation) in OPERATIONS.iter().enumerate() {
        for _ in 0..WARM_UP {
            round(&mut first, &mut second, operation, false)?;
        }
        for _ in 0..batches {
            for _ in 0..rounds {
                round(&mut first, &mut second, operation, true)?;
            }
            first.part(Part::Dump, number as u8)?;
            if two {
                second.ask(Part::Dump, number as u8)?;
            }
        }
    }
    drop(second);
    if let Some(child) = child {
        let mut status = 0;
        // SAFETY: the status is this function's.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 || status != 0 {
            return Err("the other process has failed".into());
        }
    }
    Ok(())
}
