//! The arena of this process: it begins when the first large memory is wanted, so that the many
//! small programs that a program starts never have one.
//!
//! What it never does: wait for another thread that has it begin; that one's memory is the C
//! library's meanwhile.
//!
//! *Thread safety*: all of it.

use crate::gate;
use libc::{c_int, c_void};
use nyx_swap::arena::{self, Arena, ArenaFigures, Closed, Forking, Terms, Undisturbed};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering::Acquire, Ordering::Relaxed};
use std::sync::atomic::{Ordering::AcqRel, Ordering::Release};

/// What has become of it.
static STAGE: AtomicU8 = AtomicU8::new(NEW);
const NEW: u8 = 0;
const BEGINS: u8 = 1;
/// It is there, or never will be.
const SETTLED: u8 = 2;

static ARENA: AtomicPtr<Arena> = AtomicPtr::new(std::ptr::null_mut());

/// The arena, once it is there; it stays as long as the process.
pub(crate) fn arena() -> Option<&'static Arena> {
    // SAFETY: it is null, or was leaked by `begin`.
    unsafe { ARENA.load(Acquire).as_ref() }
}

/// The same; it begins where it has not.
pub(crate) fn arena_or_begin() -> Option<&'static Arena> {
    if STAGE.load(Relaxed) == NEW && STAGE.compare_exchange(NEW, BEGINS, AcqRel, Relaxed).is_ok() {
        let _undisturbed = Undisturbed::new();
        if let Some(arena) = begin() {
            ARENA.store(Box::leak(Box::new(arena)), Release);
        }
        STAGE.store(SETTLED, Release);
    }
    arena()
}

/// None is to begin any more, where none has; whether that is so.
pub(crate) fn never() -> bool {
    let _ = STAGE.compare_exchange(NEW, SETTLED, AcqRel, Relaxed);
    // One that begins just now counts as there.
    STAGE.load(Relaxed) == SETTLED && arena().is_none()
}

/// Whether this process has an arena, or may have one later.
pub(crate) fn may_have_arena() -> bool {
    match STAGE.load(Acquire) {
        NEW | BEGINS => std::env::var_os(arena::TERMS).is_some(),
        _ => arena().is_some_and(|arena| !arena.is_plain()),
    }
}

/// Where the program's errors go; what is written at once is a line.
struct Errors;

impl io::Write for Errors {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        arena::complain_from_inside(String::from_utf8_lossy(bytes).trim_end());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the arena's threads have to say is said where the program says it; they have no standard
/// error of their own.
fn say_aloud() {
    let lines = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN);
    // Nobody else sets one: this library has its own.
    let _ = lines.with_writer(|| Errors).try_init();
    std::panic::set_hook(Box::new(|panic| {
        arena::complain_from_inside(&panic.to_string());
    }));
}

fn begin() -> Option<Arena> {
    let terms = match Terms::of_process()? {
        Ok(terms) => terms,
        Err(error) => {
            arena::complain(&format!("{} cannot be read: {error}", arena::TERMS));
            return None;
        }
    };
    say_aloud();
    match Arena::new(&terms) {
        Ok(arena) => {
            // SAFETY: the function is there as long as this library, which is never unloaded.
            unsafe { libc::atexit(at_exit) };
            Some(arena)
        }
        Err(error) => {
            let pid = std::process::id();
            arena::complain(&format!("process {pid} goes on without an arena: {error}"));
            if let Some(dir) = &terms.figures {
                let figures = ArenaFigures {
                    refused: Some(error.to_string()),
                    ..ArenaFigures::default()
                };
                // It was said above.
                let _ = figures.write(dir, pid);
            }
            None
        }
    }
}

extern "C" fn at_exit() {
    if let Some(arena) = arena() {
        arena.tell();
    }
}

// SAFETY: who calls one keeps to what the C library says of it.
type Handler = Option<unsafe extern "C" fn()>;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

/// A function of the C library's, behind ours of the same name. It is looked for when the library
/// is loaded: later that may wait for a thread that loads another, and has called us.
pub(crate) struct Real<T> {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
    kind: PhantomData<T>,
}

impl<T: Copy> Real<T> {
    /// # Safety
    ///
    /// `T` is the type of a pointer to the function of that name.
    pub(crate) const unsafe fn new(name: &'static CStr) -> Real<T> {
        Real {
            name,
            at: AtomicPtr::new(std::ptr::null_mut()),
            kind: PhantomData,
        }
    }

    pub(crate) fn get(&self) -> Option<T> {
        let mut at = self.at.load(Relaxed);
        if at.is_null() {
            // SAFETY: the name is one.
            at = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            // Two may do it; they find the same.
            self.at.store(at, Relaxed);
        }
        // SAFETY: a pointer to a function is as large as one to data; `new` was told its type.
        (!at.is_null()).then(|| unsafe { std::mem::transmute_copy(&at) })
    }
}

// SAFETY: that is its type.
static REGISTER: Real<Register> = unsafe { Real::new(c"__register_atfork") };

/// Registers ours before any other: it is to be the last before a fork, and the first after it,
/// since what others do there may use the arena.
fn register(with: &Register) {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if !IS_DONE.swap(true, Relaxed) {
        // SAFETY: the functions are there as long as this library.
        unsafe {
            with(
                Some(before_fork),
                Some(in_parent),
                Some(in_child),
                std::ptr::null_mut(),
            )
        };
    }
}

/// What `pthread_atfork` calls.
///
/// # Safety
///
/// As `pthread_atfork`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    dso: *mut c_void,
) -> c_int {
    let Some(real) = REGISTER.get() else {
        return libc::ENOMEM;
    };
    register(&real);
    // SAFETY: the caller's word.
    unsafe { real(prepare, parent, child, dso) }
}

// What the standard library registers to be done at a thread's end is not done in this library: it
// takes a lock of the dynamic linker, which a thread has that loads another library, and may wait
// for us. Some bytes are lost with each thread. The name is this library's alone; the program's own
// stays.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".globl __cxa_thread_atexit_impl",
    ".hidden __cxa_thread_atexit_impl",
    ".type __cxa_thread_atexit_impl, @function",
    "__cxa_thread_atexit_impl:",
    "xor eax, eax",
    "ret",
);
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".globl __cxa_thread_atexit_impl",
    ".hidden __cxa_thread_atexit_impl",
    ".type __cxa_thread_atexit_impl, %function",
    "__cxa_thread_atexit_impl:",
    "mov w0, wzr",
    "ret",
);

// SAFETY: the loader calls what stands there, once, with the C library ready.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    if let Some(real) = REGISTER.get() {
        register(&real);
    }
    gate::start();
    crate::memory::look_up();
    crate::transfers::look_up();
}

/// The fork that is under way; it holds the arena's lock, so that there is one at a time.
struct UnderWay(UnsafeCell<Option<(Option<Closed<'static>>, Forking<'static>)>>);

// SAFETY: it is reached by the thread that forks only, between `before_fork` and what follows it;
// the lock in it keeps others out of `before_fork`.
unsafe impl Sync for UnderWay {}

static UNDER_WAY: UnderWay = UnderWay(UnsafeCell::new(None));

// SAFETY: the C library has these; such are their types.
unsafe extern "C" {
    /// The lock of all streams, which a thread may have more than once.
    fn _IO_list_lock();
    fn _IO_list_unlock();
}

unsafe extern "C" fn before_fork() {
    if let Some(arena) = arena() {
        if !arena.is_plain() {
            // `fork` takes it after us, and who has it may wait for a page: before all stands
            // still. A child's is made anew by `fork`, where there is more than one thread.
            // SAFETY: the call takes nothing.
            unsafe { _IO_list_lock() };
        }
        // Who is inside the heap may have to wait for the arena's lock before he leaves.
        let closed = gate::close();
        let forking = arena.before_fork();
        // SAFETY: as above.
        unsafe { *UNDER_WAY.0.get() = Some((closed, forking)) };
    }
}

unsafe extern "C" fn in_parent() {
    // SAFETY: as above.
    if let Some((closed, forking)) = unsafe { (*UNDER_WAY.0.get()).take() } {
        // The heap's locks are given back by now, and the child may take long.
        drop(closed);
        forking.in_parent();
        if arena().is_some_and(|arena| !arena.is_plain()) {
            // SAFETY: `before_fork` has taken it.
            unsafe { _IO_list_unlock() };
        }
    }
}

unsafe extern "C" fn in_child() {
    gate::in_child();
    // SAFETY: as above; the child has one thread.
    if let Some((closed, forking)) = unsafe { (*UNDER_WAY.0.get()).take() } {
        drop(closed);
        forking.in_child();
    }
}
