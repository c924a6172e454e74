//! What a program may do with its memory, done on purpose: `abuse CASE` checks itself and ends with
//! 0, `abuse list` names the cases. The suite of programs runs it with and without the library.
//!
//! What it never does: know how an arena works. It is right by what the system's manual says, and
//! its cases pass where no library is loaded. What the library documents that it refuses may be
//! refused where it is loaded (`sys::is_paged`).

mod advice;
mod behind;
mod between;
mod calls;
mod heap;
mod inside;
mod maps;
mod meanwhile;
mod memory;
mod processes;
mod protect;
mod random;
mod streams;
mod sys;
mod threads;

/// A case: its name and what it does.
type Case = (&'static str, fn());

const CASES: &[&[Case]] = &[
    advice::CASES,
    behind::CASES,
    between::CASES,
    calls::CASES,
    heap::CASES,
    inside::CASES,
    maps::CASES,
    meanwhile::CASES,
    processes::CASES,
    protect::CASES,
    streams::CASES,
    threads::CASES,
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().expect("a number");
    match words.as_slice() {
        ["list"] => cases().for_each(|(name, _)| println!("{name}")),
        ["random", seed] => random::run(number(seed)),
        ["end", how] => processes::end(how),
        ["churn"] => processes::churn(),
        ["check", path] => processes::check_file(path),
        [name] => {
            let found = cases().find(|(known, _)| known == name);
            let (_, case) = found.unwrap_or_else(|| panic!("there is no case {name}"));
            // What begins with the first large memory is there before threads begin.
            if !name.starts_with("first-") {
                memory::Block::map(memory::MIB).unmap();
            }
            case();
        }
        _ => {
            eprintln!("abuse list|CASE|random SEED|end HOW|churn");
            std::process::exit(64);
        }
    }
}

fn cases() -> impl Iterator<Item = &'static Case> {
    CASES.iter().copied().flatten()
}
