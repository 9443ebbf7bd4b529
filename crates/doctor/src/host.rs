//! Other RDMA users of this host (kernel adapters, soft-RoCE, Ferroce processes), and packet filters.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ferroce_host::{ForeignHolders, ListedSlots, is_process_of};
use ferroce_os::sys;

use crate::install;

use super::diagnosis::{Diagnosis, user_name};
use super::port::ROCE_PORT;

/// Looks at kernel devices, packet filters and other Ferroce processes.
pub fn check(findings: &mut Vec<Diagnosis>) {
    let modules = fs::read_to_string("/proc/modules").unwrap_or_default();
    if shows_own_devices() {
        findings.push(Diagnosis::ok(
            "kernel-devices",
            "The kernel's RDMA devices are hidden here: this is an environment of `ferroce run`.",
        ));
    } else {
        kernel_devices(&rdma_devices(Path::new("/sys/class/infiniband")), &modules, findings);
    }
    findings.extend(packet_filter(&modules));
    others(&ferroce_host::listings(), sys::user_id(), findings);
    findings.extend(squatted(&ferroce_host::foreign_holders()));
}

/// More slots than a program of another user needs, and fewer than a host needs to be left.
const MANY_SLOTS: usize = 64;

/// Processes of other users that hold more slots than a program needs, and sockets at which no process listens.
fn squatted(foreign_holders: &ForeignHolders) -> Option<Diagnosis> {
    let many = foreign_holders.listening.iter().filter(|(_, slots)| **slots >= MANY_SLOTS);
    let foreign_holders = &ForeignHolders {
        listening: many.map(|(holder, slots)| (*holder, *slots)).collect(),
        silent: foreign_holders.silent.clone(),
    };
    let slots = foreign_holders.slots();
    let listening = foreign_holders.listening.keys().map(|&(uid, pid)| match pid {
        0 => format!("processes of {}", user_name(uid)),
        _ => format!("process {pid} of {}", user_name(uid)),
    });
    let silent = foreign_holders.silent.iter().map(|(&uid, sockets)| {
        let Some(uid) = uid else { return "processes of a user whom this kernel doesn't list".to_owned() };
        // Another user's process may have got the socket too, without having made it.
        let process = sockets.first().copied().flatten().and_then(super::port::process_with);
        match process.filter(|(pid, _)| is_process_of(*pid, uid)) {
            Some((pid, name)) => format!("process {pid} ({name}) of {}", user_name(uid)),
            None => format!("a process of {}", user_name(uid)),
        }
    });
    let who: Vec<_> = listening.chain(silent).collect();
    let says = format!(
        "{slots} of the 4094 names by which Ferroce processes find each other are held by others: {}.",
        who.join(", ")
    );
    match slots {
        0 => None,
        _ if slots + MANY_SLOTS < 4094 => Some(Diagnosis::warning("names-held", says)),
        _ => Some(Diagnosis::error(
            "names-held",
            format!("{says} There is none left: devices can't be opened (ENOSPC)."),
            "end that user's process (as root, `ferroce doctor` sees every process), or use a network namespace of your own",
        )),
    }
}

/// Whether this process was itself started as `ferroce run` starts programs: it sees Ferroce's devices in `/sys`.
fn shows_own_devices() -> bool {
    let preloaded = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    preloaded.to_string_lossy().split([':', ' ']).any(|library| library.ends_with(install::PRELOAD))
}

/// Kernel RDMA devices with the driver of each.
fn rdma_devices(class: &Path) -> Vec<(String, String)> {
    let Ok(entries) = fs::read_dir(class) else { return Vec::new() };
    let mut devices: Vec<_> = entries
        .flatten()
        .map(|entry| {
            let driver = fs::read_link(entry.path().join("device/driver")).ok();
            let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
            (entry.file_name().to_string_lossy().into_owned(), driver.unwrap_or_else(|| "virtual".into()))
        })
        .collect();
    devices.sort();
    devices
}

fn kernel_devices(devices: &[(String, String)], modules: &str, findings: &mut Vec<Diagnosis>) {
    if has_module(modules, "rdma_rxe") {
        findings.push(
            Diagnosis::warning("rdma-rxe", 
                "The kernel's soft-RoCE (rdma_rxe) is loaded: while it has a device, it takes UDP port 4791 of the \
                 host's network namespace for itself.",
            )
            .with_fix("`rdma link delete NAME` for its devices, or `rmmod rdma_rxe` (as root)"),
        );
    }
    if devices.is_empty() {
        findings.push(Diagnosis::ok("kernel-devices", "There is no kernel RDMA device to get in the way."));
        return;
    }
    let list: Vec<_> = devices.iter().map(|(name, driver)| format!("{name} ({driver})")).collect();
    findings.push(
        Diagnosis::warning("kernel-devices", format!(
            "The kernel has RDMA devices: {}. Under `ferroce run` programs don't see them. A RoCE adapter keeps \
             packets for UDP port 4791 from reaching Ferroce on its own interface.",
            list.join(", ")
        ))
        .with_fix("let Ferroce use an interface of another adapter (FERROCE_DEVICES), or switch RoCE off on that one"),
    );
}

fn packet_filter(modules: &str) -> Option<Diagnosis> {
    let filters: Vec<_> = ["nf_tables", "ip_tables", "ip6_tables"]
        .into_iter()
        .filter(|name| has_module(modules, name))
        .collect();
    if filters.is_empty() {
        return None;
    }
    Some(
        Diagnosis::warning("packet-filter", format!(
            "A packet filter may be at work ({}); what it does with packets from other hosts can't be seen without \
             root.",
            filters.join(", ")
        ))
        .with_fix("if other hosts get no answer: `nft add rule inet filter input udp dport 4791 accept` (as root)"),
    )
}

fn has_module(modules: &str, name: &str) -> bool {
    modules.lines().any(|line| line.split_whitespace().next() == Some(name))
}

fn others(listings: &[ListedSlots], own_uid: u32, findings: &mut Vec<Diagnosis>) {
    let users: BTreeSet<u32> =
        listings.iter().map(|listing| listing.uid).filter(|&uid| uid != own_uid).collect();
    for uid in users {
        findings.push(
            Diagnosis::warning("other-users", format!(
                "{} runs programs with Ferroce in this network namespace: your programs and theirs exchange \
                 packets, and share memory only if both set FERROCE_TRUST. UDP port {ROCE_PORT} of an address belongs to the user who opened it first; \
                 that user's processes forward the packets of the other user.",
                user_name(uid)
            ))
            .with_fix("to be independent of each other, have a network namespace each (`unshare -Urn`)"),
        );
    }
    let own = listings.iter().filter(|listing| listing.uid == own_uid);
    let versions: BTreeSet<u32> = own.map(|listing| listing.version).collect();
    if versions.len() > 1 {
        let list: Vec<_> = versions.iter().map(u32::to_string).collect();
        findings.push(
            Diagnosis::warning("other-versions", format!(
                "You run Ferroce builds of different kinds here (process protocols {}): they can share neither the \
                 port nor memory.",
                list.join(" and ")
            ))
            .with_fix("start all programs of a host with the same Ferroce"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_and_other_versions_are_told() {
        let mut findings = Vec::new();
        let listing = |version, uid, slot| ListedSlots { version, uid, slot };
        others(&[listing(1, 77, 18), listing(1, 1000, 17), listing(2, 1000, 19)], 1000, &mut findings);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].message.contains("uid 77"), "{findings:?}");
        assert!(findings[1].message.contains("protocols 1 and 2"), "{findings:?}");
        findings.clear();
        others(&[listing(1, 1000, 3)], 1000, &mut findings);
        assert_eq!(findings, []);
    }

    #[test]
    fn soft_roce_and_kernel_devices_are_told() {
        let mut findings = Vec::new();
        kernel_devices(&[], "tun 61440 2 - Live 0x0\n", &mut findings);
        assert_eq!(
            findings,
            [Diagnosis::ok("kernel-devices", "There is no kernel RDMA device to get in the way.")]
        );
        findings.clear();
        let devices = [("rxe0".to_owned(), "virtual".to_owned())];
        kernel_devices(&devices, "rdma_rxe 163840 0 - Live 0x0\n", &mut findings);
        assert!(findings[0].message.contains("rdma_rxe"), "{findings:?}");
        assert!(findings[1].message.contains("rxe0 (virtual)"), "{findings:?}");
    }

    #[test]
    fn packet_filter_modules_are_told_by_their_exact_names() {
        assert_eq!(packet_filter("nf_tables_helper 1 0 - Live 0x0\n"), None);
        let finding = packet_filter("nf_tables 1 0 - Live 0x0\nip_tables 1 0 - Live 0x0\n").unwrap();
        assert!(finding.message.contains("(nf_tables, ip_tables)"), "{finding:?}");
    }
}
