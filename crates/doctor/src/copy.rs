//! May memory be copied by the kernel, within a process and between two of this user's?
//!
//! Each copy is tried: the result depends on Yama, seccomp profiles, user namespaces and capabilities together.

use std::fs;

use super::diagnosis::Diagnosis;

/// What a copy gave: nothing, or its errno.
type Outcome = Result<(), i32>;

/// Tries both copies.
pub fn check(findings: &mut Vec<Diagnosis>) {
    findings.push(own_process(copy_from(std::process::id() as i32, &TARGET)));
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let yama = yama.and_then(|text| text.trim().parse::<u32>().ok());
    match from_a_child() {
        Some((plain, allowed)) => findings.push(between_processes(plain, allowed, yama)),
        None => findings.push(Diagnosis::warning(
            "copies-untried",
            "Copies between processes could not be tried: no process can be made.",
        )),
    }
}

static TARGET: [u8; 32] = *b"ferroce doctor reads these bytes";

fn own_process(outcome: Outcome) -> Diagnosis {
    match outcome {
        Ok(()) => Diagnosis::ok("copies-own", "The kernel copies a process's own memory for it (process_vm_readv)."),
        Err(errno) => Diagnosis::warning("copies-own", format!(
            "The kernel refuses process_vm_readv ({}): the copies that are the kernel's go another way, which \
             is slower.",
            std::io::Error::from_raw_os_error(errno)
        ))
        .with_fix("allow process_vm_readv and process_vm_writev in the container's seccomp profile"),
    }
}

/// `plain`: as it is; `allowed`: after the target has allowed it with PR_SET_PTRACER.
fn between_processes(plain: Outcome, allowed: Outcome, yama: Option<u32>) -> Diagnosis {
    let scope = yama.map_or(String::new(), |scope| format!(" (Yama's ptrace_scope is {scope})"));
    match (plain, allowed) {
        (Ok(()), _) => Diagnosis::ok(
            "copies-between",
            format!("Processes of this user may copy from each other's memory{scope}."),
        ),
        (Err(_), Ok(())) => Diagnosis::ok(
            "copies-between",
            format!(
                "Processes of this user may copy from each other's memory where the owner allows it, as Ferroce does{scope}."
            ),
        ),
        (Err(_), Err(errno)) => {
            let finding = Diagnosis::warning(
                "copies-between",
                format!(
                    "Processes of this user may not copy from each other's memory ({}){scope}: everything works, large \
                 messages within the host are copied twice.",
                    std::io::Error::from_raw_os_error(errno)
                ),
            );
            match yama {
                Some(2..) => finding.with_fix("`sysctl -w kernel.yama.ptrace_scope=1` (as root)"),
                _ => finding.with_fix("allow process_vm_readv in the container's seccomp profile"),
            }
        }
    }
}

/// Reads `target` in the process `pid`, which has it at the same address, and compares.
fn copy_from(pid: i32, target: &'static [u8; 32]) -> Outcome {
    let mut bytes = [0u8; 32];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: target.as_ptr().cast_mut().cast(), iov_len: target.len() };
    // SAFETY: the local side is `bytes`, exclusively ours; the remote side is only read, and checked by the kernel.
    let copied = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    if copied < 0 {
        return Err(errno());
    }
    if copied as usize == bytes.len() && bytes == *target { Ok(()) } else { Err(libc::EFAULT) }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Lets a child read from this process, which is to it as any process of the same user: Yama lets a parent look into
/// its child, but not the other way round.
fn from_a_child() -> Option<(Outcome, Outcome)> {
    let plain = in_child()?;
    // SAFETY: integers only; undone below.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    let allowed = in_child();
    // SAFETY: as above.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, 0, 0, 0, 0) };
    Some((plain, allowed?))
}

fn in_child() -> Option<Outcome> {
    let parent = std::process::id() as i32;
    // SAFETY: the child makes system calls on memory it has, and ends without running anything else.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return None;
    }
    if child == 0 {
        let status = copy_from(parent, &TARGET).err().unwrap_or(0);
        // SAFETY: _exit has no preconditions.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    loop {
        // SAFETY: `status` lives across the call; the child is ours and not yet waited for.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if waited == child {
            break;
        }
        if errno() != libc::EINTR {
            return None;
        }
    }
    if !libc::WIFEXITED(status) {
        // A seccomp profile may kill instead of refusing.
        return Some(Err(libc::EPERM));
    }
    match libc::WEXITSTATUS(status) {
        0 => Some(Ok(())),
        errno => Some(Err(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Severity;

    #[test]
    fn own_memory_can_be_read_here() {
        assert_eq!(copy_from(std::process::id() as i32, &TARGET), Ok(()));
        assert_eq!(copy_from(i32::MAX, &TARGET), Err(libc::ESRCH));
    }

    #[test]
    fn child_comes_back_with_an_outcome() {
        let (plain, allowed) = from_a_child().unwrap();
        // What is allowed by default isn't refused when the owner allows it too.
        assert!(plain.is_err() || allowed.is_ok());
    }

    #[test]
    fn refused_copies_are_notes_with_the_fix_that_fits() {
        assert_eq!(own_process(Err(libc::ENOSYS)).level, Severity::Warning);
        let lifted = between_processes(Err(libc::EPERM), Ok(()), Some(1));
        assert!(lifted.level == Severity::Ok && lifted.message.contains("ptrace_scope is 1"));
        let strict = between_processes(Err(libc::EPERM), Err(libc::EPERM), Some(2));
        assert!(strict.level == Severity::Warning && strict.fix.unwrap().contains("ptrace_scope=1"));
        let seccomp = between_processes(Err(libc::EPERM), Err(libc::EPERM), None);
        assert!(seccomp.fix.unwrap().contains("seccomp"));
    }
}
