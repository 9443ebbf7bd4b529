//! Where in the program a call was made.

use ferroce_explain::CodeLocation;
use std::backtrace::Backtrace;
use std::ffi::CStr;
use std::mem::MaybeUninit;

/// The calls that led here, without their names: these are looked up for a finding only.
#[derive(Debug)]
pub struct CallTrace(Backtrace);

/// A function on the stack.
#[derive(Debug, Default, PartialEq, Eq)]
struct StackFrame {
    address: usize,
    function: Option<String>,
    source: Option<(String, u32)>,
}

impl StackFrame {
    /// An inline function of verbs' own headers.
    fn is_of_header(&self) -> bool {
        let is_verbs = |name: &String| name.starts_with("ibv_") || name.starts_with("__ibv_");
        let is_header = |(file, _): &(String, u32)| {
            file.ends_with("/infiniband/verbs.h") || file.ends_with("/rdma/rdma_verbs.h")
        };
        self.function.as_ref().is_some_and(is_verbs) || self.source.as_ref().is_some_and(is_header)
    }
}

impl CallTrace {
    /// From here outwards.
    pub fn here() -> Self {
        Self(Backtrace::force_capture())
    }

    /// The innermost function that isn't the library's.
    pub fn place(&self) -> Option<CodeLocation> {
        frames(&format!("{:#}", self.0)).into_iter().filter(|frame| !frame.is_of_header()).find_map(|frame| {
            // A return address may be the first of the next function.
            let (module, offset) = module(frame.address.checked_sub(1)?)?;
            let function = frame.function.unwrap_or_else(|| format!("{module}+{offset:#x}"));
            Some(CodeLocation { function, source: frame.source })
        })
    }
}

/// The frames of a backtrace as the standard library writes it: for each a line `number: address - function`, and perhaps a
/// second `at file:line:column`; then, without number and address, what the function is inlined into.
fn frames(text: &str) -> Vec<StackFrame> {
    let mut frames: Vec<StackFrame> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(source) = line.strip_prefix("at ") {
            let mut parts = source.rsplitn(3, ':');
            let (_column, line, file) = (parts.next(), parts.next(), parts.next());
            if let (Some(frame), Some(line), Some(file)) =
                (frames.last_mut(), line.and_then(|line| line.parse().ok()), file)
            {
                frame.source = Some((file.to_owned(), line));
            }
        } else if let Some((address, function)) =
            line.split_once(": ").and_then(|(_, rest)| rest.trim().split_once(" - "))
            && let Some(address) = address.strip_prefix("0x")
            && let Ok(address) = usize::from_str_radix(address, 16)
        {
            let function = (function != "<unknown>").then(|| function.to_owned());
            frames.push(StackFrame { address, function, source: None });
        } else if let Some(&StackFrame { address, .. }) = frames.last() {
            // The function that the one before is inlined into.
            frames.push(StackFrame { address, function: Some(line.to_owned()), source: None });
        }
    }
    frames
}

/// The file's name of the module that has this code, and the code's offset there; `None` for this library.
fn module(address: usize) -> Option<(String, usize)> {
    let of = |address: usize| {
        let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: any address may be asked for; on success the structure has been filled in.
        unsafe { (libc::dladdr(address as *const _, info.as_mut_ptr()) != 0).then(|| info.assume_init()) }
    };
    let (found, own) = (of(address)?, of(module as *const () as usize)?);
    if found.dli_fbase == own.dli_fbase {
        return None;
    }
    // SAFETY: the loader's name of a module that is loaded.
    let path = unsafe { found.dli_fname.as_ref().map(|name| CStr::from_ptr(name)) }?.to_string_lossy();
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    Some((name, address - found.dli_fbase as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_addresses_names_and_sources() {
        let text = "   0:     0x7f0000001000 - ibv_reg_mr\n   1:     0x401136 - ibv_post_send\n    \
                    at /usr/include/infiniband/verbs.h:3342:9\n            main\n    at /src/a:b.c:12:5\n   \
                    2:     0x401000 - <unknown>\n";
        let main = StackFrame {
            address: 0x40_1136,
            function: Some("main".into()),
            source: Some(("/src/a:b.c".into(), 12)),
        };
        let frames = frames(text);
        assert_eq!(frames[2], main);
        assert!(frames[0].is_of_header() && frames[1].is_of_header() && !frames[2].is_of_header());
        assert_eq!((frames.len(), frames[3].address, &frames[3].function), (4, 0x40_1000, &None));
    }

    #[test]
    fn the_standard_library_writes_frames_so() {
        assert!(frames(&format!("{:#}", Backtrace::force_capture())).len() > 2);
    }
}
