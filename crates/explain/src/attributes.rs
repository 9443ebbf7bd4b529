//! The attributes of ibv_modify_qp(3): their meaning, the attributes on which both sides must agree, and the failures that wrong values cause.

/// An attribute of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Attribute {
    /// The member of `struct ibv_qp_attr`.
    pub name: &'static str,
    /// The bit of `attr_mask` for it.
    pub mask: &'static str,
    /// Where it is set.
    pub when: &'static str,
    /// Its meaning, and the value with which it must agree.
    pub means: &'static str,
    /// The numbers of the reasons and findings that a wrong value causes.
    pub reasons: &'static [u16],
}

/// Attributes, in the order of the transitions to RTS.
pub const ATTRIBUTES: &[Attribute] = &[
    Attribute {
        name: "qp_state",
        mask: "IBV_QP_STATE",
        when: "each transition",
        means: "RESET, INIT, RTR, RTS in this order; ERR and RESET from any state. The queue pair accepts receives from INIT on, packets from \
                RTR on, and send requests from RTS on. A failed queue pair is in ERR and flushes its requests.",
        reasons: &[1, 12],
    },
    Attribute {
        name: "pkey_index",
        mask: "IBV_QP_PKEY_INDEX",
        when: "INIT",
        means: "The entry of the port's P_Key table. RoCE has one entry, 0.",
        reasons: &[],
    },
    Attribute {
        name: "port_num",
        mask: "IBV_QP_PORT",
        when: "INIT",
        means: "The port of the device, counted from 1.",
        reasons: &[],
    },
    Attribute {
        name: "qp_access_flags",
        mask: "IBV_QP_ACCESS_FLAGS",
        when: "INIT (RC, UC, XRC)",
        means: "The operations that the peer may perform on this queue pair: IBV_ACCESS_REMOTE_READ, _WRITE, _ATOMIC, _FLUSH_*. The \
                region must permit them as well.",
        reasons: &[37, 34],
    },
    Attribute {
        name: "qkey",
        mask: "IBV_QP_QKEY",
        when: "INIT (UD)",
        means: "Datagrams with another Q_Key are dropped silently. The sender sets wr.ud.remote_qkey to the receiver's Q_Key.",
        reasons: &[44],
    },
    Attribute {
        name: "ah_attr",
        mask: "IBV_QP_AV",
        when: "RTR (RC, UC, XRC)",
        means: "The path to the peer. RoCE needs is_global 1, grh.dgid (the peer's GID) and grh.sgid_index (the local GID), both of one \
                address family: an index of an IPv4 GID for an IPv4 peer. `ferroce devices` lists GIDs with their indices. Ports of InfiniBand \
                (`ferroce run --link-layer infiniband`) take dlid with is_global 0 as well.",
        reasons: &[14, 10],
    },
    Attribute {
        name: "sgid_index",
        mask: "IBV_QP_AV",
        when: "RTR, in ah_attr.grh",
        means: "The entry of the local GID table that is used as the source address. Usually 0 is link-local IPv6, and 1 the first IPv4 \
                address. It must be of the address family of dgid. Most programs have an option for it: -g or -x.",
        reasons: &[14, 10],
    },
    Attribute {
        name: "path_mtu",
        mask: "IBV_QP_PATH_MTU",
        when: "RTR (RC, UC, XRC)",
        means: "The longest payload of a packet: IBV_MTU_256 to IBV_MTU_4096, at most the port's active_mtu, and the same at both ends.",
        reasons: &[41, 54, 105, 16],
    },
    Attribute {
        name: "dest_qp_num",
        mask: "IBV_QP_DEST_QPN",
        when: "RTR (RC, UC, XRC)",
        means: "qp_num of the peer's queue pair, in host byte order.",
        reasons: &[11, 17, 10],
    },
    Attribute {
        name: "rq_psn",
        mask: "IBV_QP_RQ_PSN",
        when: "RTR (RC, UC, XRC)",
        means: "The PSN of the first packet that is received: sq_psn of the peer. 24 bits.",
        reasons: &[13, 17],
    },
    Attribute {
        name: "max_dest_rd_atomic",
        mask: "IBV_QP_MAX_DEST_RD_ATOMIC",
        when: "RTR (RC, XRC targets)",
        means: "The number of READs and atomics that the peer may have outstanding: at least the peer's max_rd_atomic, at most the \
                device's max_qp_rd_atom.",
        reasons: &[51],
    },
    Attribute {
        name: "min_rnr_timer",
        mask: "IBV_QP_MIN_RNR_TIMER",
        when: "RTR (RC, XRC targets)",
        means: "How long the peer waits before it repeats a message for which no receive was posted here: a code of 0 to 31. 1 is 0.01 ms, 12 is \
                0.64 ms, 31 is 491.52 ms, and 0 is the longest, 655.36 ms.",
        reasons: &[20, 21, 22],
    },
    Attribute {
        name: "sq_psn",
        mask: "IBV_QP_SQ_PSN",
        when: "RTS",
        means: "The PSN of the first packet that is sent: rq_psn of the peer. 24 bits.",
        reasons: &[13, 17],
    },
    Attribute {
        name: "timeout",
        mask: "IBV_QP_TIMEOUT",
        when: "RTS (RC, XRC)",
        means: "The local ACK timeout: 4.096 µs × 2 to this power (14 is 67 ms), and 0 disables it. Without an answer the request is \
                sent again after this time, and fails after retry_cnt + 1 times. Adapters wait up to four times as long.",
        reasons: &[10, 16],
    },
    Attribute {
        name: "retry_cnt",
        mask: "IBV_QP_RETRY_CNT",
        when: "RTS (RC, XRC)",
        means: "How often a request is repeated if no answer comes: 0 to 7. 7 means seven times; it isn't unlimited.",
        reasons: &[10, 11, 12, 13, 15, 16, 17],
    },
    Attribute {
        name: "rnr_retry",
        mask: "IBV_QP_RNR_RETRY",
        when: "RTS (RC, XRC)",
        means: "How often a message is repeated if the peer has no receive posted: 0 to 6; 7 means no limit.",
        reasons: &[20, 21, 22],
    },
    Attribute {
        name: "max_rd_atomic",
        mask: "IBV_QP_MAX_QP_RD_ATOMIC",
        when: "RTS (RC, XRC)",
        means: "The number of READs and atomics that this side may have outstanding: at most the peer's max_dest_rd_atomic. With 0 it can't post any.",
        reasons: &[50, 51],
    },
];

impl Attribute {
    /// The attribute that `word` names: the member's or the mask bit's name, in letters of any case.
    #[must_use]
    pub fn named(word: &str) -> Option<&'static Self> {
        let lower = word.to_ascii_lowercase();
        let member = lower.rsplit(['.', '>']).next().unwrap_or_default();
        let is_named =
            |attribute: &&Self| attribute.name == member || attribute.mask.eq_ignore_ascii_case(word);
        ATTRIBUTES.iter().find(is_named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_name_reasons_that_exist() {
        for attribute in ATTRIBUTES {
            assert!(attribute.reasons.iter().all(|&number| crate::entry(number).is_some()), "{attribute:?}");
            assert!(attribute.means.ends_with('.') && !attribute.means.contains("  "), "{}", attribute.means);
        }
    }

    #[test]
    fn an_attribute_has_the_names_that_programs_write() {
        for word in ["min_rnr_timer", "attr.min_rnr_timer", "attr->min_rnr_timer", "IBV_QP_MIN_RNR_TIMER"] {
            assert_eq!(Attribute::named(word).map(|found| found.name), Some("min_rnr_timer"), "{word}");
        }
        assert_eq!(Attribute::named("ah_attr.grh.sgid_index").map(|found| found.name), Some("sgid_index"));
        assert!(Attribute::named("IBV_QP_AV").is_some() && Attribute::named("").is_none());
    }
}
