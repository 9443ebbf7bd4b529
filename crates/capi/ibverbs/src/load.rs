//! What the library does when it is loaded: it notes, by one system call, on which processors the process may run.

/// Called by the loader (`.init_array`, see `link/mod.rs`), before the program begins if the program is linked to the
/// library: later, threads of the program may have bound themselves to some of the processors.
#[unsafe(export_name = "ferroce_c_loaded")]
extern "C" fn loaded() {
    ferroce_nic::sys::note_processors();
}
