//! Work completions.

/// Completion status; discriminants are those of `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(u8)]
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
#[repr(u8)]
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

/// A work completion.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Completion {
    /// The work request's number.
    pub wr_id: u64,
    /// How it went.
    pub status: WcStatus,
    /// What it was. (Undefined to programs when `status` isn't success; always set here.)
    pub opcode: WcOpcode,
    /// Bytes received (receives; with the 40 bytes of GRH on UD), read (READ) or 8 (atomics).
    pub byte_len: u32,
    /// Immediate data of a receive.
    pub immediate: Option<[u8; 4]>,
    /// The rkey that a SEND with invalidate invalidated here.
    pub invalidated_rkey: Option<u32>,
    /// Source QPN (UD), else the connected QP's.
    pub src_qp: u32,
    /// A GRH precedes the payload (UD).
    pub grh: bool,
    /// The sender asked for a solicited event (receives).
    pub solicited: bool,
    /// Of a tag-matching SRQ.
    pub tags: TagFlags,
    /// The number of the reason for an error (`Env::failed` of the transport); 0 for none.
    pub reason: u16,
}

impl Completion {
    /// A completion with these fields only: without bytes, peer and reason.
    #[must_use]
    pub fn new(wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Self {
        Self { wr_id, status, opcode, ..Self::default() }
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
