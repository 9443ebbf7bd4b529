//! What keeps the loader from taking our library for a program: read from the program's file.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};

/// What matters of a program's file.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Program {
    /// Built for another processor or word size than this command and the library.
    pub foreign: bool,
    /// Has no dynamic loader.
    pub is_static: bool,
    /// Its loader is musl's, which can't load libraries that are built for glibc.
    pub is_musl: bool,
    /// Directories of `DT_RPATH` that count (without a `DT_RUNPATH`): searched before `LD_LIBRARY_PATH`.
    pub rpath: Vec<PathBuf>,
}

/// Reads an ELF program; `None` for anything else (scripts) and for what can't be read.
pub fn inspect(path: &Path) -> Option<Program> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let mut program = parse(&cache)?;
    let origin = path.canonicalize().ok()?.parent()?.to_owned();
    for directory in &mut program.rpath {
        *directory = expand_origin(directory, &origin);
    }
    Some(program)
}

fn parse<'data, R: ReadRef<'data>>(data: R) -> Option<Program> {
    let identification = data.read_bytes_at(0, 20).ok()?;
    if !identification.starts_with(&elf::ELFMAG) {
        return None;
    }
    let own_machine = if cfg!(target_arch = "x86_64") { elf::EM_X86_64 } else { elf::EM_AARCH64 };
    let Some(header) = FileHeader64::<Endianness>::parse(data).ok().filter(|header| header.is_supported())
    else {
        return Some(Program { foreign: true, ..Program::default() });
    };
    let endian = header.endian().ok()?;
    if header.e_machine(endian) != own_machine {
        return Some(Program { foreign: true, ..Program::default() });
    }
    let segments = header.program_headers(endian, data).ok()?;
    let interpreter = segments.iter().find_map(|segment| segment.interpreter(endian, data).ok().flatten());
    let is_musl = interpreter.is_some_and(|path| path.windows(MUSL.len()).any(|part| part == MUSL));
    let dynamic_type = header.e_type(endian) == elf::ET_DYN;
    let is_static = interpreter.is_none() && !(dynamic_type && is_library(segments, endian, data));
    let mut program = Program { is_static, is_musl, ..Program::default() };
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, data).ok().flatten());
    let value_of = |tag: u32| {
        dynamic
            .unwrap_or_default()
            .iter()
            .find(|entry| entry.tag32(endian) == Some(tag))
            .map(|e| e.d_val(endian))
    };
    if let (Some(rpath), Some(strings), None) =
        (value_of(elf::DT_RPATH), value_of(elf::DT_STRTAB), value_of(elf::DT_RUNPATH))
    {
        let length = value_of(elf::DT_STRSZ)?.checked_sub(rpath)?;
        let at = strings.checked_add(rpath)?;
        let bytes = segments
            .iter()
            .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
            .find_map(|segment| segment.data_range(endian, data, at, length).ok().flatten())?;
        let text = bytes.split(|&byte| byte == 0).next()?;
        let directories = text.split(|&byte| byte == b':').filter(|part| !part.is_empty());
        program.rpath = directories.map(|part| PathBuf::from(OsStr::from_bytes(part))).collect();
    }
    Some(program)
}

/// How the name of musl's loader begins: /lib/ld-musl-x86_64.so.1.
const MUSL: &[u8] = b"/ld-musl-";

/// A library has a name for the loader, a static position-independent program none.
fn is_library<'data, R: ReadRef<'data>>(
    segments: &[ProgramHeader64<Endianness>],
    endian: Endianness,
    data: R,
) -> bool {
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, data).ok().flatten());
    let names = |entry: &object::elf::Dyn64<Endianness>| {
        matches!(entry.tag32(endian), Some(elf::DT_SONAME | elf::DT_NEEDED))
    };
    dynamic.unwrap_or_default().iter().any(names)
}

fn expand_origin(directory: &Path, origin: &Path) -> PathBuf {
    let bytes = directory.as_os_str().as_bytes();
    for token in [&b"$ORIGIN"[..], b"${ORIGIN}"] {
        if let Some(rest) = bytes.strip_prefix(token) {
            let mut expanded = origin.as_os_str().to_owned();
            expanded.push(OsStr::from_bytes(rest));
            return expanded.into();
        }
    }
    directory.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_test_program_is_dynamic_and_of_this_machine() {
        let program = inspect(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(program, Program::default());
    }

    #[test]
    fn scripts_and_damaged_files_are_no_programs() {
        assert_eq!(parse(&b"#!/bin/sh\necho hello, this is long enough\n"[..]), None);
        assert_eq!(parse(&b"\x7fELF"[..]), None);
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for length in [20, 63, 64, 100, 500, 4096] {
            // Whatever comes out: reading a truncated file must not panic.
            let _ = parse(&own[..length]);
        }
    }

    #[test]
    fn program_for_another_machine_is_foreign() {
        let mut own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        own[18] ^= 0x40;
        assert!(parse(&own[..]).unwrap().foreign);
        own[4] = elf::ELFCLASS32;
        assert!(parse(&own[..]).unwrap().foreign);
    }

    #[test]
    fn the_loader_of_musl_is_known_by_its_name() {
        let mut own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let at = own.windows(9).position(|part| part == b"ld-linux-").expect("glibc's loader");
        own[at..at + 9].copy_from_slice(b"ld-musl-x");
        let program = parse(&own[..]).unwrap();
        assert!(program.is_musl && !program.is_static, "{program:?}");
    }

    #[test]
    fn origin_is_the_directory_of_the_program() {
        let origin = Path::new("/opt/x/bin");
        assert_eq!(expand_origin(Path::new("$ORIGIN/../lib"), origin), Path::new("/opt/x/bin/../lib"));
        assert_eq!(expand_origin(Path::new("${ORIGIN}"), origin), origin);
        assert_eq!(expand_origin(Path::new("/usr/lib"), origin), Path::new("/usr/lib"));
    }
}
