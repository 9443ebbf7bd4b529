//! The test program that causes each reason or finding.

/// A number, the program's source below `tests/c`, its case, and the option of `ferroce run` that the case needs, or "".
type Program = (u16, &'static str, &'static str, &'static str);

const PROGRAMS: &[Program] = &[
    (1, "misuse/connection", "posted_after", ""),
    (10, "misuse/connection", "psn_behind", ""),
    (11, "misuse/connection", "unknown_qpn", ""),
    (12, "misuse/connection", "peer_in_init", ""),
    (13, "misuse/connection", "psn_ahead", ""),
    (14, "misuse/connection", "no_route", ""),
    (15, "misuse/connection", "peer_ends", ""),
    (16, "misuse/connection", "packets_missing", "--fault reorder=50%,seed=1"),
    (17, "misuse/connection", "psn_behind", ""),
    (18, "misuse/connection", "peer_ends", ""),
    (19, "misuse/connection", "peer_stopped", ""),
    (20, "misuse/receives", "never_posted", ""),
    (21, "misuse/receives", "used_up", ""),
    (22, "misuse/receives", "never_posted", "--capture"),
    (30, "misuse/keys", "unknown_rkey", ""),
    (31, "misuse/keys", "deregistered", ""),
    (32, "misuse/keys", "other_domain", ""),
    (33, "misuse/keys", "unbound_window", ""),
    (34, "misuse/keys", "region_without_right", ""),
    (35, "misuse/keys", "outside", ""),
    (36, "misuse/keys", "swapped_address", ""),
    (37, "misuse/keys", "queue_pair_without_right", ""),
    (38, "misuse/keys", "unmapped", ""),
    (39, "misuse/keys", "invalidation", ""),
    (40, "misuse/receives", "too_small", ""),
    (41, "misuse/connection", "path_mtu", ""),
    (43, "misuse/operations", "no_room_for_grh", ""),
    (44, "misuse/operations", "other_qkey", ""),
    (50, "misuse/operations", "max_rd_atomic", ""),
    (51, "misuse/operations", "max_dest_rd_atomic", ""),
    (52, "misuse/operations", "misaligned", ""),
    (53, "misuse/operations", "short_result", ""),
    (54, "misuse/connection", "path_mtu_of_a_read", ""),
    (55, "misuse/operations", "window_on_a_region_without_right", ""),
    (60, "misuse/keys", "queue_pair_without_right", "--capture"),
    (61, "misuse/keys", "unknown_rkey", "--capture"),
    (62, "misuse/keys", "unmapped", "--capture"),
    (70, "misuse/operations", "overrun", ""),
    (71, "misuse/xrc", "unknown_srq", ""),
    (72, "misuse/xrc", "owner_refuses", ""),
    (100, "misuse/checked", "queue_never_signaled", "--check"),
    (101, "misuse/checked", "region_in_use", "--check"),
    (102, "misuse/checked", "small_queue", "--check"),
    (103, "misuse/checked", "unacknowledged", "--check"),
    (104, "misuse/checked", "armed_late", "--check"),
    (105, "misuse/checked", "path_mtu", "--check"),
    (106, "misuse/leftovers", "exit", "--check"),
    (107, "misuse/checked", "memlock", "--check"),
    (108, "misuse/checked", "sent_buffer", "--check=memory"),
    (109, "misuse/checked", "read_buffer", "--check=memory"),
    (110, "misuse/checked", "never_asked_for", "--check"),
];

/// The sentence about the program for a page.
pub(crate) fn sentence(number: u16) -> String {
    match PROGRAMS.iter().find(|program| program.0 == number) {
        Some((_, source, case, option)) => {
            let option = if option.is_empty() { String::new() } else { format!(" with `{option}`") };
            format!(
                "`tests/c/{source}.c`, case `{case}`{option}; the tests run it, and a correct version of it."
            )
        }
        None => "None: no verbs call produces such a packet.".to_owned(),
    }
}
