//! `ExitingAllocator`: the system's allocator, for programs that end with a message when memory runs out.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;

/// The system's allocator. An allocation that fails ends the process with a line on stderr and exit code 1, where Rust prints a
/// backtrace and aborts. Failures inside of [`base::fallible`] are returned.
pub struct ExitingAllocator;

/// Exit code after an allocation that failed.
const EXIT_CODE: i32 = 1;

// SAFETY: all calls are passed to `System`, which is a `GlobalAlloc`; a failure either ends the process or is returned as it is.
unsafe impl GlobalAlloc for ExitingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those of `System::alloc`.
        checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those of `System::alloc_zeroed`.
        checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promises are those of `System::realloc`; `pointer` came from `System`.
        checked(unsafe { System.realloc(pointer, layout, size) }, size)
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are those of `System::dealloc`; `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn checked(pointer: *mut u8, bytes: usize) -> *mut u8 {
    if pointer.is_null() && !base::is_fallible() {
        exit(bytes);
    }
    pointer
}

/// Prints the message without an allocation and ends the process.
#[cold]
fn exit(bytes: usize) -> ! {
    let mut line = [0u8; 128];
    let mut rest = &mut line[..];
    let text = "error: out of memory: an allocation of ";
    // The line has room for the text and the digits of any number.
    let _ = writeln!(
        rest,
        "{text}{bytes} bytes failed; a shorter context (-c) or a smaller model needs less"
    );
    let left = rest.len();
    let _ = std::io::stderr().write_all(&line[..line.len() - left]);
    #[cfg(unix)]
    // SAFETY: `_exit` has no preconditions; it ends the process without handlers, which could allocate.
    unsafe {
        libc::_exit(EXIT_CODE)
    }
    #[cfg(not(unix))]
    std::process::exit(EXIT_CODE)
}
