//! Work completions.

/// Completion status; discriminants are those of `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(u32)]
#[allow(missing_docs)] // ibv_poll_cq(3)
pub enum WcStatus {
    #[default]
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    LocRddViolErr = 14,
    RemInvRdReqErr = 15,
    RemAbortErr = 16,
    InvEecnErr = 17,
    InvEecStateErr = 18,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
    TmErr = 22,
    TmRndvIncomplete = 23,
}

/// Completion opcode; discriminants are those of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(u32)]
#[allow(missing_docs)] // ibv_poll_cq(3)
pub enum WcOpcode {
    #[default]
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Tso = 7,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
    TmAdd = 130,
    TmDel = 131,
    TmSync = 132,
    TmRecv = 133,
    TmNoTag = 134,
}

/// A work completion: what the transport reports, what a completion queue has, and what a poll copies to the program. It has the layout of
/// `struct ibv_wc`; `solicited` lies in the padding of that.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct Completion {
    /// The work request's number.
    pub wr_id: u64,
    /// How it went.
    pub status: WcStatus,
    /// What it was. (Undefined to programs when `status` isn't success; always set here.)
    pub opcode: WcOpcode,
    /// The [`vendor_err`] of an error's reason (`Env::failed` of the transport); 0 for none.
    pub vendor_err: u32,
    /// Bytes received (receives; with the 40 bytes of GRH on UD), read (READ) or 8 (atomics).
    pub byte_len: u32,
    /// Immediate data in network byte order, or an invalidated key in host byte order: `wc_flags` contains which.
    pub imm_data: u32,
    /// The local QPN.
    pub qp_num: u32,
    /// Source QPN (UD), else the connected QP's.
    pub src_qp: u32,
    /// Bits of enum ibv_wc_flags, which [`Completion::grh`], [`Completion::tags`] and others read.
    pub wc_flags: u32,
    /// The index of the partition key; 0.
    pub pkey_index: u16,
    /// The LID that a UD receive came from; 0: none.
    pub slid: u16,
    /// Of a UD receive: the service level, or the kind of the packet's network header where ports have no LIDs.
    pub sl: u8,
    /// The low bits of the LID that a UD receive came to; 0.
    pub dlid_path_bits: u8,
    /// The sender asked for a solicited event (receives).
    pub solicited: bool,
}

/// Bits of [`Completion::wc_flags`] (enum ibv_wc_flags).
#[allow(missing_docs)] // ibv_poll_cq(3)
pub mod wc_flag {
    pub const GRH: u32 = 1 << 0;
    pub const WITH_IMM: u32 = 1 << 1;
    pub const IP_CSUM_OK: u32 = 1 << 2;
    pub const WITH_INV: u32 = 1 << 3;
    pub const TM_SYNC_REQ: u32 = 1 << 4;
    pub const TM_MATCH: u32 = 1 << 5;
    pub const TM_DATA_VALID: u32 = 1 << 6;
}

impl Completion {
    /// A completion with these fields only: without bytes, QP, peer and reason.
    #[must_use]
    #[inline(always)]
    pub fn new(wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Self {
        Self { wr_id, status, opcode, ..Self::default() }
    }

    /// The same with a 32-bit value of the message: immediate data of a receive, or the rkey that a SEND with invalidate invalidated here.
    #[must_use]
    #[inline(always)]
    pub fn with_value(self, immediate: Option<[u8; 4]>, invalidated_rkey: Option<u32>) -> Self {
        let (imm_data, flag) = match (immediate, invalidated_rkey) {
            (Some(immediate), _) => (u32::from_ne_bytes(immediate), wc_flag::WITH_IMM),
            (None, Some(rkey)) => (rkey, wc_flag::WITH_INV),
            (None, None) => (0, 0),
        };
        Self { imm_data, wc_flags: self.wc_flags & !(wc_flag::WITH_IMM | wc_flag::WITH_INV) | flag, ..self }
    }

    /// Immediate data of a receive.
    #[must_use]
    #[inline]
    pub fn immediate(&self) -> Option<[u8; 4]> {
        self.has(wc_flag::WITH_IMM).then(|| self.imm_data.to_ne_bytes())
    }

    /// The rkey that a SEND with invalidate invalidated here.
    #[must_use]
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<u32> {
        self.has(wc_flag::WITH_INV).then_some(self.imm_data)
    }

    /// A GRH precedes the payload (UD).
    #[must_use]
    #[inline]
    pub fn grh(&self) -> bool {
        self.has(wc_flag::GRH)
    }

    /// The same with or without [`Completion::grh`].
    #[must_use]
    pub fn with_grh(self, grh: bool) -> Self {
        self.with(wc_flag::GRH, grh)
    }

    /// The same for a received Ethernet frame whose IPv4 header, and TCP or UDP in it, have right checksums, or for another one.
    #[must_use]
    pub fn with_checksums_ok(self, right: bool) -> Self {
        self.with(wc_flag::IP_CSUM_OK, right)
    }

    /// Of a tag-matching SRQ.
    #[must_use]
    pub fn tags(&self) -> TagFlags {
        TagFlags {
            sync_required: self.has(wc_flag::TM_SYNC_REQ),
            matched: self.has(wc_flag::TM_MATCH),
            data_valid: self.has(wc_flag::TM_DATA_VALID),
        }
    }

    /// The same with these [`Completion::tags`].
    #[must_use]
    pub fn with_tags(self, tags: TagFlags) -> Self {
        self.with(wc_flag::TM_SYNC_REQ, tags.sync_required)
            .with(wc_flag::TM_MATCH, tags.matched)
            .with(wc_flag::TM_DATA_VALID, tags.data_valid)
    }

    /// The number of the reason for an error, of which `vendor_err` is made; 0 for none.
    #[must_use]
    pub fn reason(&self) -> u16 {
        reason_of(self.vendor_err)
    }

    #[inline(always)]
    fn has(&self, flag: u32) -> bool {
        self.wc_flags & flag != 0
    }

    fn with(self, flag: u32, set: bool) -> Self {
        Self { wc_flags: self.wc_flags & !flag | if set { flag } else { 0 }, ..self }
    }
}

/// A reason's number as `vendor_err` contains it: 0xfc034 for FC034, so that a program that prints it in hexadecimal prints the
/// ID. 0 for no reason.
#[must_use]
#[inline]
pub const fn vendor_err(number: u16) -> u32 {
    match number {
        1..=999 => {
            let number = number as u32;
            0xfc000 + (number / 100) * 0x100 + (number / 10 % 10) * 0x10 + number % 10
        }
        _ => 0,
    }
}

/// The number of which a [`vendor_err`] is made; 0 for none.
#[must_use]
pub const fn reason_of(vendor_err: u32) -> u16 {
    match vendor_err.checked_sub(0xfc000) {
        Some(digits) => ((digits >> 8) * 100 + (digits >> 4 & 0xf) * 10 + (digits & 0xf)) as u16,
        None => 0,
    }
}

/// What a completion of a tag-matching SRQ contains besides (`IBV_WC_TM_*` of `wc_flags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TagFlags {
    /// The program should report how many unexpected messages it has handled.
    pub sync_required: bool,
    /// The message has taken a tag's buffer.
    pub matched: bool,
    /// The data are in the tag's buffer.
    pub data_valid: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_contains_what_it_was_made_with() {
        let mut completion = Completion::new(7, WcStatus::Success, WcOpcode::Recv);
        assert_eq!((completion.immediate(), completion.invalidated_rkey()), (None, None));
        completion = completion.with_value(Some([1, 2, 3, 4]), None);
        assert_eq!((completion.immediate(), completion.invalidated_rkey()), (Some([1, 2, 3, 4]), None));
        completion = completion.with_value(None, Some(0x0102_0304));
        assert_eq!((completion.immediate(), completion.invalidated_rkey()), (None, Some(0x0102_0304)));
        let tags = TagFlags { matched: true, ..TagFlags::default() };
        completion = completion.with_tags(tags).with_grh(true);
        assert_eq!((completion.tags(), completion.grh()), (tags, true));
        completion = completion.with_tags(TagFlags::default()).with_grh(false);
        assert_eq!(completion.with_value(None, None), Completion::new(7, WcStatus::Success, WcOpcode::Recv));
    }

    #[test]
    fn a_reason_is_read_back_from_the_number_that_programs_see() {
        for number in 0..=999 {
            assert_eq!(reason_of(vendor_err(number)), number);
        }
        assert_eq!(vendor_err(34), 0xf_c034);
        assert_eq!(vendor_err(1000), 0);
    }
}
