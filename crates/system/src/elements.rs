//! Memory as requests of the library name it.

use ferroce_abi::verbs::ibv_sge;
use ferroce_types::Sge;

pub(crate) const fn element(s: &Sge) -> ibv_sge {
    ibv_sge { addr: s.addr, length: s.length, lkey: s.lkey }
}
