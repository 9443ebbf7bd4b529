//! What the library does when it is loaded: it notes, by one system call, on which processors the process may run, and
//! registers its handlers of forks. And what it does when the process exits.

use ferroce_check as check;

/// Called by the loader (`.init_array`, see `link/mod.rs`), before the program begins if the program is linked to the
/// library: later, threads of the program may have bound themselves to some of the processors, and libraries that use this
/// one may have registered handlers of forks, which are to run before ours.
#[unsafe(export_name = "ferroce_c_loaded")]
extern "C" fn loaded() {
    ferroce_os::sys::note_processors();
    // An allocator that takes its locks for forks (jemalloc) registers its handlers at its first use. They are to run after
    // ours, which wait for threads that allocate.
    drop(std::hint::black_box(Box::new(0_u64)));
    ferroce_os::fork::install();
}

/// Called by the loader (`.fini_array`, see `link/mod.rs`) when the process exits, after the program's own handlers and destructors.
#[unsafe(export_name = "ferroce_c_ended")]
extern "C" fn ended() {
    // If verbs can't be used any more, nothing is reported either.
    let Ok(_inside) = ferroce_os::fork::enter_library() else { return };
    check::tell_left_at_exit();
}
