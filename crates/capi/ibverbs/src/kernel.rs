//! Conversions from and to the kernel's forms of attributes and path records, which librdmacm uses, and sysfs files.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs::File;
use std::io::Read as _;
use std::mem::zeroed;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;

use libc::size_t;

use ferroce_abi::verbs::*;
use ferroce_entry::call::{Outcome, Refusal, entry, put};

fn ah_attr(from: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.grh.dgid },
            flow_label: from.grh.flow_label,
            sgid_index: from.grh.sgid_index,
            hop_limit: from.grh.hop_limit,
            traffic_class: from.grh.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

entry! {
    fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const ib_uverbs_ah_attr) -> value () = (), {
        // SAFETY: both are the caller's structures.
        if let Some(from) = unsafe { from.as_ref() } {
            // A NULL destination is undocumented; nothing is written then.
            // SAFETY: as above.
            let _ = unsafe { put(to, "dst", ah_attr(from)) };
        }
    }
}

entry! {
    fn ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const ib_uverbs_qp_attr) -> value () = (), {
        // SAFETY: both are the caller's structures.
        let Some(from) = (unsafe { from.as_ref() }) else { return };
        // SAFETY: numbers only.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = from.qp_state as c_int;
        attr.cur_qp_state = from.cur_qp_state as c_int;
        attr.path_mtu = from.path_mtu as c_int;
        attr.path_mig_state = from.path_mig_state as c_int;
        attr.qkey = from.qkey;
        attr.rq_psn = from.rq_psn;
        attr.sq_psn = from.sq_psn;
        attr.dest_qp_num = from.dest_qp_num;
        attr.qp_access_flags = from.qp_access_flags;
        attr.cap = ibv_qp_cap {
            max_send_wr: from.max_send_wr,
            max_recv_wr: from.max_recv_wr,
            max_send_sge: from.max_send_sge,
            max_recv_sge: from.max_recv_sge,
            max_inline_data: from.max_inline_data,
        };
        attr.ah_attr = ah_attr(&from.ah_attr);
        attr.alt_ah_attr = ah_attr(&from.alt_ah_attr);
        attr.pkey_index = from.pkey_index;
        attr.alt_pkey_index = from.alt_pkey_index;
        attr.en_sqd_async_notify = from.en_sqd_async_notify;
        attr.sq_draining = from.sq_draining;
        attr.max_rd_atomic = from.max_rd_atomic;
        attr.max_dest_rd_atomic = from.max_dest_rd_atomic;
        attr.min_rnr_timer = from.min_rnr_timer;
        attr.port_num = from.port_num;
        attr.timeout = from.timeout;
        attr.retry_cnt = from.retry_cnt;
        attr.rnr_retry = from.rnr_retry;
        attr.alt_port_num = from.alt_port_num;
        attr.alt_timeout = from.alt_timeout;
        // SAFETY: the caller's structure. A NULL destination isn't written.
        let _ = unsafe { put(to, "dst", attr) };
    }
}

entry! {
    fn ibv_copy_path_rec_from_kern(to: *mut ibv_sa_path_rec, from: *const ib_user_path_rec) -> value () = (), {
        // SAFETY: both are the caller's structures.
        let Some(from) = (unsafe { from.as_ref() }) else { return };
        let record = ibv_sa_path_rec {
            dgid: ibv_gid { raw: from.dgid },
            sgid: ibv_gid { raw: from.sgid },
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: from.raw_traffic as c_int,
            flow_label: from.flow_label,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            reversible: from.reversible as c_int,
            numb_path: from.numb_path,
            pkey: from.pkey,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            mtu: from.mtu as u8,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
        // SAFETY: the caller's structure. A NULL destination isn't written.
        let _ = unsafe { put(to, "dst", record) };
    }
}

entry! {
    fn ibv_copy_path_rec_to_kern(to: *mut ib_user_path_rec, from: *const ibv_sa_path_rec) -> value () = (), {
        // SAFETY: both are the caller's structures.
        let Some(from) = (unsafe { from.as_ref() }) else { return };
        let record = ib_user_path_rec {
            dgid: from.dgid.bytes(),
            sgid: from.sgid.bytes(),
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: from.raw_traffic as u32,
            flow_label: from.flow_label,
            reversible: from.reversible as u32,
            mtu: from.mtu.into(),
            pkey: from.pkey,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            numb_path: from.numb_path,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
        // SAFETY: the caller's structure. A NULL destination isn't written.
        let _ = unsafe { put(to, "dst", record) };
    }
}

entry! {
    /// Where sysfs is mounted: the environment variable `SYSFS_PATH`, or `/sys` if that isn't set.
    fn ibv_get_sysfs_path() -> pointer c_char, {
        static PATH: OnceLock<std::ffi::CString> = OnceLock::new();
        let path = PATH.get_or_init(|| {
            let given = ferroce_os::setting("SYSFS_PATH").map(|path| path.as_bytes().to_vec());
            given.and_then(|path| std::ffi::CString::new(path).ok()).unwrap_or_else(|| c"/sys".into())
        });
        Ok(path.as_ptr().cast_mut())
    }
}

/// Reads at most `buffer.len()` bytes of a file; a newline at their end becomes a terminator.
fn read_file(path: &Path, buffer: &mut [u8]) -> Outcome<usize> {
    let refusal = |error: std::io::Error| {
        // Programs look for files that not every device has.
        tracing::debug!(path = %path.display(), %error, "reading a sysfs file");
        Refusal::new(error.raw_os_error().unwrap_or(libc::EIO), "")
    };
    let mut file = File::open(path).map_err(refusal)?;
    let mut length = file.read(buffer).map_err(refusal)?;
    if length > 0 && buffer[length - 1] == b'\n' {
        length -= 1;
    }
    if let Some(end) = buffer.get_mut(length) {
        *end = 0;
    }
    Ok(length)
}

/// The number of bytes, or −1; a file that isn't there is an answer, not a refusal.
#[unsafe(export_name = "ferroce_c_ibv_read_sysfs_file")]
unsafe extern "C" fn read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: size_t,
) -> c_int {
    let mut missing = 0;
    let length = ferroce_entry::call::minus_one("ibv_read_sysfs_file", || {
        // SAFETY: two strings and `size` bytes of the caller's.
        let (path, buffer) = unsafe {
            if directory.is_null() || file.is_null() || buffer.is_null() {
                return Err(Refusal::invalid("a path or the buffer is NULL"));
            }
            let part = |text: *const c_char| OsStr::from_bytes(CStr::from_ptr(text).to_bytes());
            buffer.cast::<u8>().write_bytes(0, size);
            (
                Path::new(part(directory)).join(part(file)),
                std::slice::from_raw_parts_mut(buffer.cast::<u8>(), size),
            )
        };
        match read_file(&path, buffer) {
            Ok(length) => Ok(length as c_int),
            Err(refusal) => {
                missing = refusal.errno;
                Ok(-1)
            }
        }
    });
    if missing != 0 {
        ferroce_entry::call::set_errno(missing);
    }
    length
}

entry! {
    /// Nothing is pinned and nothing is shared with a child that it could harm, so there is nothing to prepare.
    fn ibv_fork_init() -> errno {
        Ok(())
    }
}

entry! {
    fn ibv_is_fork_initialized() -> value c_int = IBV_FORK_UNNEEDED, {
        IBV_FORK_UNNEEDED
    }
}

entry! {
    fn ibv_dontfork_range(_base: *mut std::ffi::c_void, _size: size_t) -> errno {
        Ok(())
    }
}

entry! {
    fn ibv_dofork_range(_base: *mut std::ffi::c_void, _size: size_t) -> errno {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, content: &str, size: usize) -> (c_int, Vec<u8>) {
        let directory = std::env::temp_dir();
        let file = format!("ferroce-sysfs-{name}-{}", std::process::id());
        std::fs::write(directory.join(&file), content).expect("writing");
        let c = |text: &str| std::ffi::CString::new(text).expect("a string");
        let (dir, name) = (c(directory.to_str().expect("text")), c(&file));
        let mut buffer = vec![0x7fu8; size];
        // SAFETY: valid strings and a buffer of this size.
        let n = unsafe { read_sysfs_file(dir.as_ptr(), name.as_ptr(), buffer.as_mut_ptr().cast(), size) };
        std::fs::remove_file(directory.join(&file)).expect("removing");
        (n, buffer)
    }

    #[test]
    fn a_sysfs_file_is_read_without_its_newline() {
        assert_eq!(read("short", "1: CA\n", 8), (5, b"1: CA\0\0\0".to_vec()));
        assert_eq!(read("full", "abcdef", 4), (4, b"abcd".to_vec()));
    }

    #[test]
    fn a_missing_sysfs_file_gives_minus_one_and_enoent() {
        // SAFETY: valid strings and a buffer of this size.
        let n = unsafe {
            let mut buffer = [0; 4];
            read_sysfs_file(c"/nowhere".as_ptr(), c"nothing".as_ptr(), buffer.as_mut_ptr(), buffer.len())
        };
        assert_eq!((n, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOENT)));
    }

    #[test]
    fn path_records_survive_the_way_to_the_kernel_and_back() {
        // SAFETY: numbers only.
        let mut record: ibv_sa_path_rec = unsafe { zeroed() };
        record.dgid = ibv_gid { raw: [1; 16] };
        record.flow_label = 0x12345;
        record.mtu = 3;
        record.preference = 9;
        // SAFETY: valid structures.
        let back = unsafe {
            let (mut kernel, mut back): (ib_user_path_rec, ibv_sa_path_rec) = (zeroed(), zeroed());
            ibv_copy_path_rec_to_kern(&mut kernel, &record);
            ibv_copy_path_rec_from_kern(&mut back, &kernel);
            back
        };
        assert_eq!(format!("{record:?}"), format!("{back:?}"));
    }
}
