//! Limits of the system: open files, socket buffers.

use ferroce_netdev::DeviceInfo;

use super::diagnosis::Diagnosis;

/// Sockets of the group that shares port 4791, per address of a device.
const SOCKETS_PER_ADDRESS: u64 = 64;
/// Descriptors beside these: sending sockets, names, event channels, the program's own.
const OTHER_FDS: u64 = 192;
/// What Linux has as default: windows between hosts are made for it.
const USUAL_RMEM: u64 = 212_992;

/// Looks at the limits.
pub fn check(devices: &[DeviceInfo], findings: &mut Vec<Diagnosis>) {
    let mut addresses: Vec<_> = devices
        .iter()
        .flat_map(|device| device.gid_table().iter().map(|(_, e)| (e.ip, e.scope_id)).collect::<Vec<_>>())
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    findings.push(open_files(addresses.len() as u64, soft_limit_of_files()));
    // A network namespace may not show the host's limit.
    if let Ok(text) = std::fs::read_to_string("/proc/sys/net/core/rmem_max") {
        findings.extend(receive_buffer(&text));
    }
}

fn soft_limit_of_files() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives across the call.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

fn open_files(addresses: u64, limit: u64) -> Diagnosis {
    let needed = addresses * SOCKETS_PER_ADDRESS + OTHER_FDS;
    if limit >= needed {
        return Diagnosis::ok(
            "open-files",
            format!("Open files are limited to {limit}; up to {needed} may be needed."),
        );
    }
    Diagnosis::error(
        "open-files",
        format!(
            "Open files are limited to {limit}, but a program that uses all {addresses} addresses of the devices needs \
             {needed} ({SOCKETS_PER_ADDRESS} an address)."
        ),
        format!("`ulimit -n {}`, or fewer devices (FERROCE_DEVICES)", needed.next_power_of_two().max(1024)),
    )
}

fn receive_buffer(rmem_max: &str) -> Option<Diagnosis> {
    let bytes: u64 = rmem_max.trim().parse().ok()?;
    if bytes >= USUAL_RMEM {
        return None;
    }
    Some(
        Diagnosis::warning("receive-buffer", format!(
            "Socket receive buffers are limited to {bytes} bytes: fast senders on other hosts will lose packets and \
             send again."
        ))
        .with_fix(format!("`sysctl -w net.core.rmem_max={}` (as root)", 8 << 20)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Severity;

    #[test]
    fn too_few_open_files_would_stop_a_program() {
        assert_eq!(open_files(3, 1024).level, Severity::Ok);
        let finding = open_files(20, 1024);
        assert_eq!(finding.level, Severity::Error);
        assert!(finding.message.contains("needs 1472") && finding.fix.unwrap().contains("ulimit -n 2048"));
    }

    #[test]
    fn small_receive_buffer_is_a_note() {
        assert_eq!(receive_buffer("212992\n"), None);
        assert_eq!(receive_buffer("nonsense"), None);
        assert!(receive_buffer("65536\n").unwrap().message.contains("65536 bytes"));
    }
}
