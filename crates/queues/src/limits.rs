//! How large a queue, a request and a depth may be: as the adapter has room for, or as an adapter that the program will meet.

use std::str::FromStr;
use std::sync::OnceLock;

/// Work requests a queue may hold.
pub const MAX_WR: u32 = 32_768;
/// Scatter/gather elements a work request may have.
pub const MAX_SGE: u32 = 32;
/// Entries a completion queue may hold.
pub const MAX_CQE: u32 = 4 << 20;
/// RDMA READs and atomics a queue pair may have under way, each way.
pub const MAX_RD_ATOMIC: u8 = 128;
/// Bytes that a send request may carry itself.
pub const MAX_INLINE: u32 = 1024;

/// What is granted at most, each of it enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Work requests of a send or receive queue.
    pub wr: u32,
    /// Elements of its work requests.
    pub sge: u32,
    /// Entries of a completion queue.
    pub cqe: u32,
    /// Work requests of a shared receive queue.
    pub srq_wr: u32,
    /// Elements of its work requests.
    pub srq_sge: u32,
    /// RDMA READs and atomics under way, each way.
    pub rd_atomic: u8,
    /// Bytes inline.
    pub inline: u32,
}

impl Limits {
    const OURS: Self = Self {
        wr: MAX_WR,
        sge: MAX_SGE,
        cqe: MAX_CQE,
        srq_wr: MAX_WR,
        srq_sge: MAX_SGE,
        rd_atomic: MAX_RD_ATOMIC,
        inline: MAX_INLINE,
    };

    /// Those of this process.
    #[must_use]
    pub fn get() -> &'static Self {
        CHOSEN.get().unwrap_or(&Self::OURS)
    }
}

/// Set before the first queue is made, if at all.
static CHOSEN: OnceLock<Limits> = OnceLock::new();

/// An adapter whose limits a program is held to. Where it grants more than there is room for here, or its limit isn't known, the limit
/// is that of any other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitsOf {
    name: &'static str,
    limits: Limits,
}

impl LimitsOf {
    /// By name; docs/STRICT.md has the sources of the figures.
    pub const ALL: [Self; 4] = [
        Self {
            name: "connectx-6",
            limits: Limits {
                sge: 30,
                cqe: 4_194_303,
                srq_wr: 32_767,
                srq_sge: 31,
                rd_atomic: 16,
                ..Limits::OURS
            },
        },
        Self {
            name: "e810",
            limits: Limits { sge: 13, cqe: 1_048_575, rd_atomic: 127, inline: 101, ..Limits::OURS },
        },
        Self { name: "fastlinq", limits: Limits { wr: 32_767, sge: 4, rd_atomic: 32, ..Limits::OURS } },
        Self { name: "rxe", limits: Limits { cqe: 32_767, srq_sge: 27, inline: 512, ..Limits::OURS } },
    ];

    /// Holds this process to them from now on. Only the first choice counts.
    pub fn choose(self) {
        let _ = CHOSEN.set(self.limits);
    }
}

impl LimitsOf {
    /// Its name, as `--strict` has it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl FromStr for LimitsOf {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|adapter| adapter.name == name).ok_or_else(|| {
            let names = Self::ALL.map(|adapter| adapter.name).join(", ");
            format!("the limits of {name:?} aren't known; there are: {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_adapter_is_granted_more_than_there_is_room_for() {
        for LimitsOf { name, limits } in LimitsOf::ALL {
            let figures = |limits: Limits| {
                let Limits { wr, sge, cqe, srq_wr, srq_sge, rd_atomic, inline } = limits;
                [wr, sge, cqe, srq_wr, srq_sge, rd_atomic.into(), inline]
            };
            let (granted, ours) = (figures(limits), figures(Limits::OURS));
            assert!(
                granted != ours && granted.iter().zip(ours).all(|(granted, ours)| *granted <= ours),
                "{name}"
            );
        }
    }

    #[test]
    fn name_that_nobody_knows_is_told_with_those_that_are() {
        let error = "connectx".parse::<LimitsOf>().unwrap_err();
        assert_eq!(
            error,
            "the limits of \"connectx\" aren't known; there are: connectx-6, e810, fastlinq, rxe"
        );
    }
}
