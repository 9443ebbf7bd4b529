//! rdma_event_str(3).

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int};

use ferroce_entry::entry;

use crate::abi::RDMA_CM_EVENT_USER;

/// By number. The event that programs write themselves has no name.
const NAMES: [&CStr; 18] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    c"RDMA_CM_EVENT_ADDRINFO_ERROR",
];

/// The name of an event.
pub(crate) fn name(event: c_int) -> &'static CStr {
    usize::try_from(event).ok().and_then(|event| NAMES.get(event).copied()).unwrap_or(c"UNKNOWN EVENT")
}

/// The name of an event in the header.
pub(crate) fn written(event: c_int) -> Cow<'static, str> {
    if event == RDMA_CM_EVENT_USER { "RDMA_CM_EVENT_USER".into() } else { name(event).to_string_lossy() }
}

entry! {
    fn rdma_event_str(event: c_int) -> pointer c_char, {
        Ok(name(event).as_ptr().cast_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::{name, written};

    #[test]
    fn events_have_the_names_of_the_header() {
        assert_eq!(name(0), c"RDMA_CM_EVENT_ADDR_RESOLVED");
        assert_eq!(name(15), c"RDMA_CM_EVENT_TIMEWAIT_EXIT");
        assert_eq!([name(-1), name(18), name(19)], [c"UNKNOWN EVENT"; 3]);
        assert_eq!(
            (written(18).as_ref(), written(14).as_ref()),
            ("RDMA_CM_EVENT_USER", "RDMA_CM_EVENT_ADDR_CHANGE")
        );
    }
}
