//! Taps: code between the transport and a fabric that records packets or disturbs them.
//!
//! In here: the packet capture ([`capture`], `FERROCE_CAPTURE`) and fault injection ([`fault`], `FERROCE_FAULT`).
//! Out of here: where packets come from and go to. A fabric calls the taps for each packet, and sends or receives what they return.
//! Both cost one load and a branch when they are off, and neither holds a lock, so that `fork` is safe at any time.

pub mod capture;
pub mod fault;

pub use ferroce_pcapng::Direction;

#[cfg(test)]
mod tests {
    use super::capture::{self, Capture, IpUdpHeader};
    use super::fault::{self, FaultInjection};
    use super::{Direction, capture::create};
    use std::process::Command;

    /// In the environment of a process that reports which taps are on.
    const ROLE: &str = "FERROCE_TEST_ROLE";

    /// The output of [`say_what_is_on`] in a process of its own: the variables are read once per process.
    fn in_a_process_with(capture: &str, fault: &str) -> String {
        let output = Command::new("timeout")
            .arg("20")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "tap::tests::the_environment_turns_the_taps_on", "--nocapture"])
            .env(ROLE, "taps")
            .env(capture::VARIABLE, capture)
            .env(fault::VARIABLE, fault)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find_map(|line| line.split("taps: ").nth(1)).unwrap().to_owned()
    }

    fn say_what_is_on() {
        let (capture, fault) = (Capture::global(), FaultInjection::global());
        println!("taps: {} {}", capture.is_some(), fault.is_some());
        if let Some(capture) = capture {
            let ip_udp = IpUdpHeader::plain("10.0.0.1:49152".parse().unwrap(), "10.0.0.2".parse().unwrap());
            capture.packet(Direction::Out, &ip_udp, &[&[0; 16]]);
        }
    }

    #[test]
    fn the_environment_turns_the_taps_on() {
        if std::env::var_os(ROLE).is_some() {
            return say_what_is_on();
        }
        let path = std::env::temp_dir().join(format!("ferroce-taps-{}.pcapng", std::process::id()));
        create(&path).unwrap();
        let before = std::fs::metadata(&path).unwrap().len();
        let seen = in_a_process_with(path.to_str().unwrap(), "drop=1%,seed=7");
        let after = std::fs::metadata(&path).unwrap().len();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((&seen[..], after - before), ("true true", 28 + 44 + 16));

        assert_eq!(in_a_process_with("", ""), "false false");
        assert_eq!(in_a_process_with("/nonexistent/file", "drop=5"), "false false");
    }
}
