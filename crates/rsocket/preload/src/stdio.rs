//! Streams of the C library on rsockets. Its own reads and writes don't come by here, so a stream gets functions of ours, and `dprintf`
//! is a write.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use libc::{FILE, size_t, ssize_t};

use crate::numbers::rsocket;
use crate::real::{errno, real, set_errno};
use crate::{forking, sockets, transfer};

/// The streams that have our functions, by address, and their numbers.
static STREAMS: Mutex<Vec<(usize, c_int)>> = Mutex::new(Vec::new());

/// `cookie_io_functions_t`.
#[repr(C)]
struct Functions {
    read: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<unsafe extern "C-unwind" fn(*mut c_void) -> c_int>,
}

unsafe extern "C-unwind" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// A cookie is the number.
fn number(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, buffer: *mut c_char, length: size_t) -> ssize_t {
    // SAFETY: the C library's own buffer.
    unsafe { transfer::read(number(cookie), buffer.cast(), length) }
}

/// Writes all; how much was written.
///
/// # Safety
/// The buffer is readable for `length` bytes.
unsafe fn write_all(number: c_int, buffer: *const c_char, length: size_t) -> size_t {
    let mut done = 0;
    while done < length {
        // SAFETY: the rest of the buffer.
        let written = unsafe { transfer::write(number, buffer.add(done).cast(), length - done) };
        match usize::try_from(written) {
            Ok(written) if written > 0 => done += written,
            _ => break,
        }
    }
    done
}

unsafe extern "C-unwind" fn write(cookie: *mut c_void, buffer: *const c_char, length: size_t) -> ssize_t {
    // SAFETY: the C library's own buffer.
    unsafe { write_all(number(cookie), buffer, length) as ssize_t }
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    let number = number(cookie);
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    // Streams of one number are closed in any order: those that are left are of the same number.
    if let Some(at) = streams.iter().position(|(_, other)| *other == number) {
        streams.swap_remove(at);
    }
    drop(streams);
    // SAFETY: the stream's number, which ends with it.
    unsafe { sockets::close(number) }
}

#[unsafe(export_name = "ferroce_s_fdopen")]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if rsocket(fd).is_none() && !forking::may_be_replaced(fd) {
        return real!(c"fdopen", fn(c_int, *const c_char) -> *mut FILE, (fd, mode));
    }
    let functions = Functions { read: Some(read), write: Some(write), seek: None, close: Some(close) };
    // SAFETY: the program's own mode; functions for this cookie.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null() {
        STREAMS.lock().unwrap_or_else(PoisonError::into_inner).push((stream.addr(), fd));
    }
    stream
}

/// The number of a stream of ours, or the result of `really`.
fn number_of(stream: *mut FILE, really: impl FnOnce() -> c_int) -> c_int {
    let before = errno();
    let found = really();
    if found >= 0 {
        return found;
    }
    let streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    match streams.iter().find(|(address, _)| *address == stream.addr()) {
        Some((_, number)) => {
            set_errno(before);
            *number
        }
        None => found,
    }
}

#[unsafe(export_name = "ferroce_s_fileno")]
unsafe extern "C-unwind" fn fileno(stream: *mut FILE) -> c_int {
    number_of(stream, || real!(c"fileno", fn(*mut FILE) -> c_int, (stream)))
}

#[unsafe(export_name = "ferroce_s_fileno_unlocked")]
unsafe extern "C-unwind" fn fileno_unlocked(stream: *mut FILE) -> c_int {
    number_of(stream, || real!(c"fileno_unlocked", fn(*mut FILE) -> c_int, (stream)))
}

/// Formats, and writes to an rsocket.
///
/// # Safety
/// A format and a `va_list` for it.
unsafe fn print(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    let mut text = ptr::null_mut();
    // SAFETY: the caller's promise. The text is ours to free.
    unsafe {
        let length = vasprintf(&raw mut text, format, arguments);
        let Ok(bytes) = usize::try_from(length) else { return -1 };
        let written = write_all(fd, text, bytes);
        libc::free(text.cast());
        if written == bytes { length } else { -1 }
    }
}

// `va_list` is an array or a large structure on the architectures that there are trampolines for: a pointer, as an argument.
#[unsafe(export_name = "ferroce_s_vdprintf")]
unsafe extern "C-unwind" fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    if rsocket(fd).is_none() && !forking::may_be_replaced(fd) {
        return real!(c"vdprintf", fn(c_int, *const c_char, *mut c_void) -> c_int, (fd, format, arguments));
    }
    // SAFETY: the program's own arguments.
    unsafe { print(fd, format, arguments) }
}

#[unsafe(export_name = "ferroce_s___vdprintf_chk")]
unsafe extern "C-unwind" fn vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    if rsocket(fd).is_none() && !forking::may_be_replaced(fd) {
        return real!(
            c"__vdprintf_chk",
            fn(c_int, c_int, *const c_char, *mut c_void) -> c_int,
            (fd, flag, format, arguments)
        );
    }
    // SAFETY: the program's own arguments.
    unsafe { print(fd, format, arguments) }
}

// The variadic ones make a `va_list` of their arguments: all registers that may have some, and what is on the stack.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".macro ferroce_variadic name, to, named",
    "    .globl \\name",
    "    .hidden \\name",
    "    .type \\name, @function",
    "\\name:",
    "    .cfi_startproc",
    "    sub rsp, 216",
    "    .cfi_adjust_cfa_offset 216",
    "    mov [rsp + 32], rdi",
    "    mov [rsp + 40], rsi",
    "    mov [rsp + 48], rdx",
    "    mov [rsp + 56], rcx",
    "    mov [rsp + 64], r8",
    "    mov [rsp + 72], r9",
    "    test al, al",
    "    je 2f",
    "    movaps [rsp + 80], xmm0",
    "    movaps [rsp + 96], xmm1",
    "    movaps [rsp + 112], xmm2",
    "    movaps [rsp + 128], xmm3",
    "    movaps [rsp + 144], xmm4",
    "    movaps [rsp + 160], xmm5",
    "    movaps [rsp + 176], xmm6",
    "    movaps [rsp + 192], xmm7",
    "2:  mov dword ptr [rsp], 8 * \\named",
    "    mov dword ptr [rsp + 4], 48",
    "    lea rax, [rsp + 224]",
    "    mov [rsp + 8], rax",
    "    lea rax, [rsp + 32]",
    "    mov [rsp + 16], rax",
    "    .if \\named == 2",
    "    mov rdx, rsp",
    "    .else",
    "    mov rcx, rsp",
    "    .endif",
    "    call \\to",
    "    add rsp, 216",
    "    .cfi_adjust_cfa_offset -216",
    "    ret",
    "    .cfi_endproc",
    "    .size \\name, . - \\name",
    ".endm",
    "ferroce_variadic ferroce_s_dprintf, {plain}, 2",
    "ferroce_variadic ferroce_s___dprintf_chk, {checked}, 3",
    plain = sym vdprintf,
    checked = sym vdprintf_chk,
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".macro ferroce_variadic name, to, named",
    "    .globl \\name",
    "    .hidden \\name",
    "    .type \\name, %function",
    "\\name:",
    "    .cfi_startproc",
    "    stp x29, x30, [sp, -240]!",
    "    .cfi_def_cfa_offset 240",
    "    .cfi_offset 29, -240",
    "    .cfi_offset 30, -232",
    "    stp x0, x1, [sp, 48]",
    "    stp x2, x3, [sp, 64]",
    "    stp x4, x5, [sp, 80]",
    "    stp x6, x7, [sp, 96]",
    "    stp q0, q1, [sp, 112]",
    "    stp q2, q3, [sp, 144]",
    "    stp q4, q5, [sp, 176]",
    "    stp q6, q7, [sp, 208]",
    "    add x9, sp, 240",
    "    str x9, [sp, 16]",
    "    add x9, sp, 112",
    "    str x9, [sp, 24]",
    "    add x9, sp, 240",
    "    str x9, [sp, 32]",
    "    mov w9, 8 * \\named - 64",
    "    str w9, [sp, 40]",
    "    mov w9, -128",
    "    str w9, [sp, 44]",
    "    .if \\named == 2",
    "    add x2, sp, 16",
    "    .else",
    "    add x3, sp, 16",
    "    .endif",
    "    bl \\to",
    "    ldp x29, x30, [sp], 240",
    "    .cfi_restore 29",
    "    .cfi_restore 30",
    "    .cfi_def_cfa_offset 0",
    "    ret",
    "    .cfi_endproc",
    "    .size \\name, . - \\name",
    ".endm",
    "ferroce_variadic ferroce_s_dprintf, {plain}, 2",
    "ferroce_variadic ferroce_s___dprintf_chk, {checked}, 3",
    plain = sym vdprintf,
    checked = sym vdprintf_chk,
);
