//! Which attributes a state transition needs or takes, and which values they may have.
//!
//! The tables are those of the InfiniBand Architecture Specification, 11.2.5.2 (ibv_modify_qp(3) lists the required
//! ones); what the kernel's ib_modify_qp accepts is accepted here.

use super::{AddressVector, MAX_RATE, QpAttr, mask, names};
use ferroce_netdev::LinkLayer;
use ferroce_os::sys;
use ferroce_queues::Limits;
use ferroce_types::{Error, QpState, Result, invalid};
use ferroce_wire::Service;

/// Checks a limit of what a QP sends (ibv_modify_qp_rate_limit(3)): thousands of bits a second, bytes at once.
///
/// # Errors
/// [`Error::Invalid`] for a rate above [`MAX_RATE`], or a burst without a rate.
pub fn check_rate(rate_limit: u32, max_burst: u32) -> Result<()> {
    if rate_limit > MAX_RATE || (rate_limit == 0 && max_burst > 0) {
        return invalid!("rate_limit {rate_limit} kbps with bursts of {max_burst} bytes");
    }
    Ok(())
}

/// Which QPs a table is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttrRules {
    service: Service,
    /// Attributes that these QPs don't have.
    without: u32,
    /// Programs may name those: they are passed over, as the kernel does.
    passes_over: bool,
}

impl From<Service> for AttrRules {
    fn from(service: Service) -> Self {
        Self { service, without: 0, passes_over: false }
    }
}

impl AttrRules {
    /// XRC initiators: RC without a responder.
    pub const INITIATOR: Self = Self {
        service: Service::Rc,
        without: mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER,
        passes_over: true,
    };
    /// XRC targets: RC without a requester.
    pub const TARGET: Self = Self {
        service: Service::Rc,
        without: mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC,
        passes_over: true,
    };

    /// Raw packet QPs: the states of UD and no keys.
    pub const RAW: Self = Self {
        service: Service::Ud,
        without: mask::QKEY | mask::PKEY_INDEX | mask::SQ_PSN | mask::EN_SQD_ASYNC_NOTIFY,
        passes_over: false,
    };

    /// `bits` without what is passed over.
    #[must_use]
    pub fn known(self, bits: u32) -> u32 {
        if self.passes_over { self.own(bits) } else { bits }
    }

    /// The attributes of `bits` that these QPs have.
    fn own(self, bits: u32) -> u32 {
        bits & !self.without
    }

    /// Attributes that a transition needs and those it takes besides; `None`: there is no such transition.
    fn transition(self, from: QpState, to: QpState) -> Option<(u32, u32)> {
        let (required, optional) = transition(self.service, from, to)?;
        Some((self.own(required), self.own(optional)))
    }
}

fn transition(service: Service, from: QpState, to: QpState) -> Option<(u32, u32)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use mask::*;
    let ud = service == Service::Ud;
    let rc = service == Service::Rc;
    let pick = |of_ud: u32, of_uc: u32, of_rc: u32| {
        if ud {
            of_ud
        } else if rc {
            of_rc
        } else {
            of_uc
        }
    };
    let running = pick(
        RATE_LIMIT | CUR_STATE | QKEY,
        RATE_LIMIT | CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE,
        RATE_LIMIT | CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE | MIN_RNR_TIMER,
    );
    Some(match (from, to) {
        (_, Reset | Err) => (0, CUR_STATE),
        (Reset, Init) => (PKEY_INDEX | PORT | if ud { QKEY } else { ACCESS_FLAGS }, CUR_STATE),
        (Init, Init) => (0, PKEY_INDEX | PORT | CUR_STATE | if ud { QKEY } else { ACCESS_FLAGS }),
        (Init, Rtr) => (
            pick(
                0,
                AV | PATH_MTU | DEST_QPN | RQ_PSN,
                AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            ),
            CUR_STATE | PKEY_INDEX | if ud { QKEY } else { ALT_PATH | ACCESS_FLAGS },
        ),
        (Rtr, Rts) => {
            (pick(SQ_PSN, SQ_PSN, SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC), running)
        }
        (Rts, Rts) | (Sqd, Rts) => (0, running),
        (Rts, Sqd) => (0, CUR_STATE | EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (
            0,
            CUR_STATE
                | pick(
                    PKEY_INDEX | QKEY,
                    AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE,
                    PORT | AV
                        | TIMEOUT
                        | RETRY_CNT
                        | RNR_RETRY
                        | MAX_QP_RD_ATOMIC
                        | MAX_DEST_RD_ATOMIC
                        | ALT_PATH
                        | ACCESS_FLAGS
                        | PKEY_INDEX
                        | MIN_RNR_TIMER
                        | PATH_MIG_STATE,
                ),
        ),
        (Sqe, Rts) if !rc => (0, CUR_STATE | if ud { QKEY } else { ACCESS_FLAGS }),
        _ => return None,
    })
}

/// Checks a modify request against the QP's present state and returns the state it leads to.
///
/// # Errors
/// EINVAL, naming the attribute, for a transition that doesn't exist, a required attribute that is missing, one that
/// the transition doesn't take, or a value out of range.
pub fn check(rules: impl Into<AttrRules>, now: QpState, attr: &QpAttr, bits: u32) -> Result<QpState> {
    if bits & mask::CUR_STATE != 0 && attr.cur_state != now {
        return invalid!("cur_qp_state is {:?}, but the QP is in {now:?}", attr.cur_state);
    }
    let to = if bits & mask::STATE != 0 { attr.state } else { now };
    let rules = rules.into();
    let bits = rules.known(bits);
    let Some((required, optional)) = rules.transition(now, to) else {
        return invalid!("there is no transition from {now} to {to}: the order is RESET, INIT, RTR, RTS");
    };
    let missing = required & !bits;
    if missing != 0 {
        return invalid!("{now:?} to {to:?} needs {}", names(missing));
    }
    let extra = bits & !(required | optional | mask::STATE);
    if extra != 0 {
        return invalid!("{now:?} to {to:?} doesn't take {}", names(extra));
    }
    check_values(attr, bits)?;
    Ok(to)
}

fn check_values(attr: &QpAttr, bits: u32) -> Result<()> {
    let has = |bit: u32| bits & bit != 0;
    if has(mask::PORT) && attr.port_num != 1 {
        return invalid!("port {}: the device has port 1", attr.port_num);
    }
    if has(mask::PKEY_INDEX) && attr.pkey_index != 0 {
        return invalid!("pkey_index {}: the table has entry 0", attr.pkey_index);
    }
    if has(mask::QKEY) && attr.qkey & CONTROLLED_QKEY != 0 && !sys::has_capability(sys::CAP_NET_RAW) {
        return Err(Error::Permission(format!(
            "Q_Key {:#x} is a controlled one: CAP_NET_RAW is needed",
            attr.qkey
        )));
    }
    if has(mask::PATH_MTU) && !(1..=5).contains(&attr.path_mtu) {
        return invalid!("path_mtu {} isn't an enum ibv_mtu", attr.path_mtu);
    }
    let most = Limits::get().rd_atomic;
    if has(mask::MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > most {
        return invalid!("max_rd_atomic {}: at most {most}", attr.max_rd_atomic);
    }
    if has(mask::MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > most {
        return invalid!("max_dest_rd_atomic {}: at most {most}", attr.max_dest_rd_atomic);
    }
    if has(mask::RATE_LIMIT) && attr.rate_limit > MAX_RATE {
        return invalid!("rate_limit {} kbps: at most {MAX_RATE}", attr.rate_limit);
    }
    let small = [
        (mask::TIMEOUT, "timeout", attr.timeout, 31),
        (mask::RETRY_CNT, "retry_cnt", attr.retry_cnt, 7),
        (mask::RNR_RETRY, "rnr_retry", attr.rnr_retry, 7),
        (mask::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer, 31),
    ];
    for (bit, name, value, max) in small {
        if has(bit) && value > max {
            return invalid!("{name} {value}: at most {max}");
        }
    }
    if has(mask::AV) {
        check_av(&attr.av)?;
    }
    if has(mask::DEST_QPN) && attr.dest_qpn > MAX_QPN {
        return invalid!("dest_qp_num {:#x}: QP numbers have 24 bits", attr.dest_qpn);
    }
    if has(mask::PATH_MIG_STATE) && attr.path_mig_state != 0 {
        return invalid!("path_mig_state {}: path migration isn't supported", attr.path_mig_state);
    }
    if has(mask::ALT_PATH) {
        return invalid!("IBV_QP_ALT_PATH: path migration isn't supported");
    }
    Ok(())
}

const MAX_QPN: u32 = 0xff_ffff;

/// A Q_Key with this bit is controlled (IBTA 10.2.5): a program without privileges can't make it a QP's.
const CONTROLLED_QKEY: u32 = 1 << 31;

/// What holds for every address vector.
///
/// # Errors
/// EINVAL with another port than 1, and without a GRH unless ports are InfiniBand.
pub fn check_av(av: &AddressVector) -> Result<()> {
    if !av.is_global && !LinkLayer::current().is_infiniband() {
        return invalid!(
            "no GRH in the address: RoCE needs one, with a GID index that isn't empty (`ferroce devices` lists them; ibverbs-utils: \
             -g INDEX; perftest: -x INDEX; qperf: -cm1; a program that knows LIDs only: ferroce run --link-layer infiniband, \
             at both sides)"
        );
    }
    if av.port_num != 1 {
        return invalid!("port {} in the address: the device has port 1", av.port_num);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::NAMES;
    use super::*;

    fn rtr() -> (QpAttr, u32) {
        let attr = QpAttr {
            state: QpState::Rtr,
            path_mtu: 3,
            av: AddressVector { is_global: true, port_num: 1, ..AddressVector::default() },
            ..QpAttr::default()
        };
        let bits = mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        (attr, bits)
    }

    #[test]
    fn every_missing_attribute_is_einval_and_named() {
        let (attr, bits) = rtr();
        assert_eq!(check(Service::Rc, QpState::Init, &attr, bits).unwrap(), QpState::Rtr);
        for (bit, name) in NAMES {
            if bits & bit != 0 && bit != mask::STATE {
                let e = check(Service::Rc, QpState::Init, &attr, bits & !bit).unwrap_err();
                assert_eq!(e.errno(), libc::EINVAL);
                assert!(e.to_string().contains(name), "{e}");
            }
        }
    }

    #[test]
    fn an_attribute_the_transition_does_not_take_is_einval_and_named() {
        let (attr, bits) = rtr();
        for bit in [mask::SQ_PSN, mask::TIMEOUT, mask::QKEY, mask::CAP, 1 << 30] {
            let e = check(Service::Rc, QpState::Init, &attr, bits | bit).unwrap_err();
            assert!(e.to_string().contains(&names(bit)), "{e}");
        }
        // UC needs no READ attributes, and takes none.
        let uc = bits & !(mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER);
        check(Service::Uc, QpState::Init, &attr, uc).unwrap();
        check(Service::Uc, QpState::Init, &attr, bits).unwrap_err();
    }

    #[test]
    fn an_xrc_initiator_has_no_responder_and_a_target_no_requester() {
        let (attr, bits) = rtr();
        let responder = mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER;
        check(AttrRules::TARGET, QpState::Init, &attr, bits).unwrap();
        check(AttrRules::TARGET, QpState::Init, &attr, bits & !responder).unwrap_err();
        check(AttrRules::INITIATOR, QpState::Init, &attr, bits & !responder).unwrap();
        let out_of_range = QpAttr { min_rnr_timer: 99, ..attr };
        check(AttrRules::INITIATOR, QpState::Init, &out_of_range, bits).unwrap();
        let attr = QpAttr { state: QpState::Rts, ..attr };
        let both = mask::STATE | mask::SQ_PSN | mask::TIMEOUT;
        let requester = mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
        check(AttrRules::TARGET, QpState::Rtr, &attr, both).unwrap();
        check(AttrRules::TARGET, QpState::Rtr, &attr, both | requester).unwrap();
        check(AttrRules::INITIATOR, QpState::Rtr, &attr, both | requester).unwrap();
        check(AttrRules::INITIATOR, QpState::Rtr, &attr, both).unwrap_err();
    }

    #[test]
    fn transitions_that_do_not_exist_are_einval() {
        let to = |state| QpAttr { state, ..QpAttr::default() };
        for (service, from, state) in [
            (Service::Rc, QpState::Reset, QpState::Rtr),
            (Service::Rc, QpState::Reset, QpState::Rts),
            (Service::Rc, QpState::Rtr, QpState::Init),
            (Service::Rc, QpState::Err, QpState::Rts),
            (Service::Rc, QpState::Sqe, QpState::Rts),
            (Service::Ud, QpState::Init, QpState::Sqd),
        ] {
            let e = check(service, from, &to(state), mask::STATE).unwrap_err();
            assert!(e.to_string().contains("no transition"), "{e}");
        }
        for from in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err] {
            check(Service::Rc, from, &to(QpState::Reset), mask::STATE).unwrap();
            check(Service::Rc, from, &to(QpState::Err), mask::STATE).unwrap();
        }
    }

    #[test]
    fn values_out_of_range_are_einval() {
        let (attr, bits) = rtr();
        let bad = [
            QpAttr { path_mtu: 0, ..attr },
            QpAttr { path_mtu: 6, ..attr },
            QpAttr { max_dest_rd_atomic: 129, ..attr },
            QpAttr { min_rnr_timer: 32, ..attr },
            QpAttr { av: AddressVector { is_global: false, ..attr.av }, ..attr },
            QpAttr { av: AddressVector { port_num: 2, ..attr.av }, ..attr },
        ];
        for attr in bad {
            check(Service::Rc, QpState::Init, &attr, bits).unwrap_err();
        }
    }

    #[test]
    fn a_wrong_current_state_is_einval() {
        let attr = QpAttr { cur_state: QpState::Rts, ..QpAttr::default() };
        check(Service::Rc, QpState::Init, &attr, mask::CUR_STATE).unwrap_err();
    }
}
