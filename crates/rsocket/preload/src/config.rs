//! `/etc/rdma/rsocket/preload_config`: the sockets that become rsockets.
//!
//! A line has the beginning of a program's name, the domain, the type and the protocol; `*` stands for any. Without the file, or
//! without a line that can be read, all sockets become rsockets.

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

const FILE: &str = "/etc/rdma/rsocket/preload_config";

/// A line.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ConfigRule {
    /// `None` for any.
    program: Option<String>,
    domain: Option<c_int>,
    kind: Option<c_int>,
    protocol: Option<c_int>,
}

impl ConfigRule {
    fn parse(line: &str) -> Option<Self> {
        let line = line.split('#').next().unwrap_or_default();
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [program, domain, kind, protocol] = fields[..] else { return None };
        let any_of = |word: &str, names: &[(&str, c_int)]| match word {
            "*" => Some(None),
            _ => {
                names.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, value)| Some(*value))
            }
        };
        Some(Self {
            program: (program != "*").then(|| program.to_owned()),
            domain: any_of(domain, &[("INET", libc::AF_INET), ("INET6", libc::AF_INET6), ("IB", AF_IB)])?,
            kind: any_of(kind, &[("STREAM", libc::SOCK_STREAM), ("DGRAM", libc::SOCK_DGRAM)])?,
            protocol: any_of(protocol, &[("TCP", libc::IPPROTO_TCP), ("UDP", libc::IPPROTO_UDP)])?,
        })
    }

    fn fits(&self, program: &str, domain: c_int, kind: c_int, protocol: c_int) -> bool {
        let is = |wanted: Option<c_int>, given: c_int| wanted.is_none_or(|wanted| wanted == given);
        self.program.as_ref().is_none_or(|wanted| program.starts_with(wanted.as_str()))
            && is(self.domain, domain)
            && is(self.kind, kind)
            && is(self.protocol, protocol)
    }
}

const AF_IB: c_int = 27;

fn parse(text: &str) -> Vec<ConfigRule> {
    text.lines().filter_map(ConfigRule::parse).collect()
}

fn is_wanted_by(rules: &[ConfigRule], program: &str, domain: c_int, kind: c_int, protocol: c_int) -> bool {
    let usual = match kind {
        libc::SOCK_STREAM => libc::IPPROTO_TCP,
        libc::SOCK_DGRAM => libc::IPPROTO_UDP,
        _ => return false,
    };
    if !matches!(domain, libc::AF_INET | libc::AF_INET6 | AF_IB) || protocol != 0 && protocol != usual {
        return false;
    }
    rules.is_empty() || rules.iter().any(|rule| rule.fits(program, domain, kind, usual))
}

unsafe extern "C" {
    static program_invocation_short_name: *const c_char;
}

/// Whether a socket of this program becomes an rsocket; `kind` is without flags.
pub(crate) fn is_wanted(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    static CONFIG: OnceLock<(Vec<ConfigRule>, String)> = OnceLock::new();
    let (rules, program) = CONFIG.get_or_init(|| {
        let rules = std::fs::read_to_string(FILE).map(|text| parse(&text)).unwrap_or_default();
        // SAFETY: the C library's, set before the program begins.
        let name = unsafe { program_invocation_short_name };
        let name = if name.is_null() {
            String::new()
        } else {
            // SAFETY: a C string.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        (rules, name)
    });
    is_wanted_by(rules, program, domain, kind, protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: (c_int, c_int, c_int) = (libc::AF_INET, libc::SOCK_STREAM, 0);
    const UDP6: (c_int, c_int, c_int) = (libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDP);

    fn wanted(text: &str, program: &str, (domain, kind, protocol): (c_int, c_int, c_int)) -> bool {
        is_wanted_by(&parse(text), program, domain, kind, protocol)
    }

    #[test]
    fn without_rules_all_are_wanted() {
        for text in ["", "# nothing\n", "iperf3 INET\n", "iperf3 UNIX STREAM *\n"] {
            assert!(wanted(text, "curl", TCP) && wanted(text, "curl", UDP6), "{text:?}");
        }
        assert!(!wanted("", "curl", (libc::AF_UNIX, libc::SOCK_STREAM, 0)));
        assert!(!wanted("", "curl", (libc::AF_INET, libc::SOCK_RAW, 0)));
        assert!(!wanted("", "curl", (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP)));
    }

    #[test]
    fn rules_name_programs_by_their_beginning() {
        let text = "iperf INET STREAM TCP # fast\n*  INET6 dgram *\n";
        assert!(wanted(text, "iperf3", TCP) && !wanted(text, "curl", TCP) && !wanted(text, "ipe", TCP));
        assert!(wanted(text, "curl", UDP6) && wanted(text, "iperf3", UDP6));
    }
}
