//! The environment variables: which there are, and whether their values mean anything.
//!
//! A spelling mistake in one would otherwise be silence: a run without the faults or the fabric that it is about.

use ferroce_access::copy::{self, CopyMethod};
use ferroce_explain::Check;
use ferroce_host::Trust;
use ferroce_netdev::{DEVICES_VARIABLE, LINK_LAYER_VARIABLE, LinkLayer};
use ferroce_queues::LimitsOf;
use ferroce_udp::{
    tap::capture::{self, Capture},
    tap::fault::{self, FaultInjection},
};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::OnceLock;

/// Tracing to standard error.
pub const LOG: &str = "FERROCE_LOG";
/// `1` under `ferroce run`.
pub const RUN: &str = "FERROCE_RUN";
/// The fabric between processes of one host.
pub const FABRIC: &str = "FERROCE_FABRIC";

/// What the checker looks for, and what becomes of a finding ([`Check`]).
pub const CHECK: &str = "FERROCE_CHECK";
/// The file that findings are added to.
pub const CHECK_REPORT: &str = "FERROCE_CHECK_REPORT";

/// As strict as an adapter may be: `1`, or the name of one whose limits are to be kept.
pub const STRICT: &str = "FERROCE_STRICT";

/// Users and groups whose processes may share memory with this one ([`Trust`]).
pub const TRUST: &str = "FERROCE_TRUST";

/// `off`: this process doesn't let others of its user copy from and to its memory where the kernel asks for leave.
pub const PTRACER: &str = "FERROCE_PTRACER";

/// The file that the Rust API loads as the machine's libibverbs.
const LIBIBVERBS: &str = "FERROCE_LIBIBVERBS";

/// The seed with which a simulation of the Rust API runs.
const SEED: &str = "FERROCE_SEED";

/// All that Ferroce reads.
const KNOWN: [&str; 15] = [
    LOG,
    RUN,
    FABRIC,
    CHECK,
    CHECK_REPORT,
    STRICT,
    TRUST,
    PTRACER,
    copy::VARIABLE,
    fault::VARIABLE,
    capture::VARIABLE,
    DEVICES_VARIABLE,
    LINK_LAYER_VARIABLE,
    LIBIBVERBS,
    SEED,
];
/// Prefixes of the variables of Ferroce's own tests, which aren't checked.
const OF_TESTS: [&str; 5] = [
    "FERROCE_TEST_",
    "FERROCE_SKIP_LOG",
    "FERROCE_REPETITION_LOG",
    "FERROCE_RXE_KERNEL",
    "FERROCE_WRITE_PAGES",
];
const PREFIX: &str = "FERROCE_";

/// The mistakes in this process's environment: a sentence for each variable that is unknown or has an invalid value.
/// (`FERROCE_DEVICES` isn't checked: calls that list devices return the error.)
#[must_use]
pub fn mistakes() -> Vec<String> {
    ferroce_os::settings().filter_map(|(name, value)| mistake(&name, &value)).collect()
}

fn mistake(name: &OsStr, value: &OsStr) -> Option<String> {
    let name = name.to_string_lossy();
    if !name.starts_with(PREFIX) || OF_TESTS.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    if !KNOWN.contains(&&*name) {
        return Some(match ferroce_explain::nearest(&name, KNOWN) {
            Some(meant) => format!("unknown variable {name} (did you mean {meant}?)"),
            None => format!("unknown variable {name}; expected {}", KNOWN.join(", ")),
        });
    }
    if value.is_empty() {
        return None;
    }
    why_wrong(&name, value).map(|why| format!("{name}={}: {why}", value.display()))
}

/// Why a value of a known variable is invalid.
#[must_use]
pub fn why_wrong(name: &str, value: &OsStr) -> Option<String> {
    match name {
        LOG => log_mistake(&value.to_string_lossy()),
        FABRIC => (value != "udp").then(|| "the only value is udp; unset it for the best fabric".to_owned()),
        PTRACER => (value != "off").then(|| "the only value is off; unset it for copies by peers".to_owned()),
        STRICT => strictness(value).err(),
        TRUST => value.to_string_lossy().parse::<Trust>().err(),
        LINK_LAYER_VARIABLE => value.to_string_lossy().parse::<LinkLayer>().err(),
        CHECK => value.to_string_lossy().parse::<Check>().err(),
        copy::VARIABLE => value.to_string_lossy().parse::<CopyMethod>().err().map(|error| error.to_string()),
        fault::VARIABLE => {
            value.to_string_lossy().parse::<FaultInjection>().err().map(|error| error.to_string())
        }
        capture::VARIABLE => Capture::open(Path::new(value)).err().map(|error| error.to_string()),
        _ => None,
    }
}

/// A filter is a list of LEVEL, TARGET=LEVEL, or a target of ours alone.
fn log_mistake(filter: &str) -> Option<String> {
    let is_level = |text: &str| {
        let levels = ["off", "error", "warn", "info", "debug", "trace"];
        levels.iter().any(|level| level.eq_ignore_ascii_case(text))
            || matches!(text, "0" | "1" | "2" | "3" | "4" | "5")
    };
    let means_nothing = |directive: &&str| match directive.rsplit_once('=') {
        Some((target, level)) => target.is_empty() || target.contains('[') || !is_level(level),
        None => !is_level(directive) && !directive.starts_with("ferroce"),
    };
    let wrong =
        filter.split(',').map(str::trim).filter(|directive| !directive.is_empty()).find(means_nothing)?;
    Some(format!(
        "{wrong:?} isn't a level (off, error, warn, info, debug, trace) or TARGET=LEVEL, as in ferroce_nic=debug"
    ))
}

/// Whether the processor copies or the kernel. An invalid value counts as none.
pub fn way_of_copies() -> CopyMethod {
    value(copy::VARIABLE).and_then(|way| way.to_str()?.parse().ok()).unwrap_or(CopyMethod::Guarded)
}

/// The adapter is as strict as one may be that conforms.
#[inline]
#[must_use]
pub fn is_strict() -> bool {
    static STRICT_IS_SET: OnceLock<bool> = OnceLock::new();
    *STRICT_IS_SET.get_or_init(|| value(STRICT).is_some_and(|value| strictness(&value).is_ok()))
}

/// The adapter whose limits are to be kept, if one is named.
pub fn limits_of() -> Option<LimitsOf> {
    strictness(&value(STRICT)?).ok()?
}

/// What a value of [`STRICT`] asks for: the limits of an adapter, if any.
///
/// # Errors
/// The value is invalid: the message contains the valid ones.
pub fn strictness(value: &OsStr) -> Result<Option<LimitsOf>, String> {
    match value.to_string_lossy().as_ref() {
        "1" => Ok(None),
        name => name.parse().map(Some).map_err(|error| format!("{error}; 1 keeps the usual limits")),
    }
}

/// The users and groups whose processes may share memory with this one, besides its own user; none if the list is invalid.
pub fn trust() -> Trust {
    value(TRUST).and_then(|list| list.to_str()?.parse().ok()).unwrap_or_default()
}

/// Other processes of this user may copy from and to this one's memory, also where that takes PR_SET_PTRACER.
#[must_use]
pub fn allows_copies() -> bool {
    value(PTRACER).is_none_or(|value| value != "off")
}

/// The checker compares memory.
#[inline]
#[must_use]
pub fn checks_memory() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    let check = || value(CHECK)?.to_str()?.parse::<Check>().ok();
    *ASKED.get_or_init(|| check().is_some_and(|check| check.memory))
}

/// FERROCE_STRICT is set, or the checker compares memory: both need packets and change how these are placed.
#[inline]
#[must_use]
pub fn is_careful() -> bool {
    static CAREFUL: OnceLock<bool> = OnceLock::new();
    *CAREFUL.get_or_init(|| is_strict() || checks_memory())
}

/// The value of a variable, if it has one.
#[must_use]
pub fn value(name: &str) -> Option<OsString> {
    ferroce_os::setting(name).filter(|value| !value.is_empty())
}

/// FERROCE_FABRIC=udp is set, or a setting that places packets with more care: all packets go over sockets, as between hosts.
#[inline]
pub fn udp_only() -> bool {
    static ONLY: OnceLock<bool> = OnceLock::new();
    let is_udp = || value(FABRIC).is_some_and(|v| v == "udp");
    *ONLY.get_or_init(|| is_udp() || is_careful())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_wrong(name: &str, value: &str) -> bool {
        mistake(OsStr::new(name), OsStr::new(value)).is_some()
    }

    #[test]
    fn values_that_mean_nothing_are_mistakes() {
        for (name, value) in [
            ("FERROCE_FABRIC", "upd"),
            ("FERROCE_FABRIC", "UDP"),
            ("FERROCE_COPIES", "kernels"),
            ("FERROCE_CHECK", "fatel"),
            ("FERROCE_STRICT", "on"),
            ("FERROCE_LINK_LAYER", "ib"),
            ("FERROCE_LINK_LAYER", "InfiniBand"),
            ("FERROCE_FAULT", "duplicate=1%"),
            ("FERROCE_CAPTURE", "/nonexistent/x"),
            ("FERROCE_LOG", "debgu"),
            ("FERROCE_LOG", "ferroce_nic=loud"),
            ("FERROCE_LOG", "warn,=debug"),
            ("FERROCE_LOG", "off,ferroce[span{field=1,other}]=debug"),
            ("FERROCE_FALUT", "drop=1%"),
            ("FERROCE_FABRICS", ""),
        ] {
            assert!(is_wrong(name, value), "{name}={value}");
        }
    }

    #[test]
    fn values_that_mean_something_and_others_variables_are_none() {
        for (name, value) in [
            ("FERROCE_FABRIC", "udp"),
            ("FERROCE_FABRIC", ""),
            ("FERROCE_COPIES", "kernel"),
            ("FERROCE_COPIES", "guarded"),
            ("FERROCE_FAULT", "drop=1%,seed=7"),
            ("FERROCE_CAPTURE", "/dev/null"),
            ("FERROCE_LOG", "debug"),
            ("FERROCE_LOG", "Info, ferroce_nic::udp=TRACE"),
            ("FERROCE_LOG", "ferroce_proto"),
            ("FERROCE_LOG", "off,ferroce=debug,"),
            ("FERROCE_DEVICES", "nonsense"),
            ("FERROCE_RUN", "1"),
            ("FERROCE_STRICT", "1"),
            ("FERROCE_LINK_LAYER", "infiniband"),
            ("FERROCE_LINK_LAYER", "ethernet"),
            ("FERROCE_TEST_DIR", "x"),
            ("FERROCE_SKIP_LOG", "x"),
            ("PATH", "FERROCE_X"),
        ] {
            assert!(!is_wrong(name, value), "{name}={value}");
        }
    }
}
