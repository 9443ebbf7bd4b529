//! Reads callgrind's files and valgrind's log of the processes of `tests/c/bench/counted.c`.

use super::budget::Costs;
use std::collections::BTreeMap;

/// What a process has written.
pub struct Side {
    /// Valgrind's log.
    pub log: String,
    /// Callgrind's dumps, one a batch.
    pub dumps: Vec<String>,
}

/// What a process did in a batch.
#[derive(Debug, PartialEq)]
struct Batch {
    operation: String,
    instructions: u64,
    allocations: u64,
    system_calls: u64,
}

/// What a round of each operation costs, all processes together: the median of its batches.
///
/// # Errors
/// Something isn't as the program writes it.
pub fn costs(sides: &[Side], rounds: u32) -> Result<BTreeMap<String, Costs>, String> {
    let mut batches: Vec<Batch> = Vec::new();
    for (index, side) in sides.iter().enumerate() {
        let of_side = of_side(side)?;
        if index == 0 {
            batches = of_side;
            continue;
        }
        if of_side.len() != batches.len() {
            return Err("the processes have counted different numbers of batches".into());
        }
        for (sum, batch) in batches.iter_mut().zip(of_side) {
            if sum.operation != batch.operation {
                return Err(format!("{} of one process, {} of the other", sum.operation, batch.operation));
            }
            sum.instructions += batch.instructions;
            sum.allocations += batch.allocations;
            sum.system_calls += batch.system_calls;
        }
    }
    let mut operations: BTreeMap<String, Vec<Batch>> = BTreeMap::new();
    for batch in batches {
        operations.entry(batch.operation.clone()).or_default().push(batch);
    }
    if operations.is_empty() {
        return Err("nothing has been counted".into());
    }
    let median = |batches: &[Batch], figure: fn(&Batch) -> u64| {
        let mut figures: Vec<u64> = batches.iter().map(figure).collect();
        figures.sort_unstable();
        figures[figures.len() / 2] as f64 / f64::from(rounds)
    };
    let costs = operations.into_iter().map(|(operation, batches)| {
        let costs = Costs {
            instructions: median(&batches, |batch| batch.instructions),
            allocations: median(&batches, |batch| batch.allocations),
            system_calls: median(&batches, |batch| batch.system_calls),
            spread: 0.0,
        };
        (operation, costs)
    });
    Ok(costs.collect())
}

/// The operation that a dump is of; `None` for the dump at the program's end.
pub fn operation(dump: &str) -> Option<&str> {
    dump.lines().find_map(|line| line.strip_prefix("desc: Trigger: Client Request: "))
}

fn of_side(side: &Side) -> Result<Vec<Batch>, String> {
    let logged = logged(&side.log);
    if logged.len() != side.dumps.len() {
        return Err(format!("{} dumps, {} batches in the log", side.dumps.len(), logged.len()));
    }
    let batch = |(dump, logged): (&String, Logged)| {
        let instructions = dump.lines().find_map(|line| line.strip_prefix("summary: ")?.trim().parse().ok());
        if operation(dump) != Some(logged.operation) {
            return Err(format!("a dump of {:?} in place of {}", operation(dump), logged.operation));
        }
        Ok(Batch {
            operation: logged.operation.to_owned(),
            instructions: instructions.ok_or("a dump without a summary")?,
            allocations: logged.allocations,
            system_calls: logged.system_calls,
        })
    };
    side.dumps.iter().zip(logged).map(batch).collect()
}

struct Logged<'a> {
    operation: &'a str,
    allocations: u64,
    system_calls: u64,
}

/// The batches of a log. The system calls are those of the first thread between "begin" and "end"; one that blocks has a second
/// line when it returns.
fn logged(log: &str) -> Vec<Logged<'_>> {
    let (mut batches, mut system_calls, mut counts) = (Vec::new(), 0, false);
    for line in log.lines() {
        if let Some((_, said)) = line.strip_prefix("**").and_then(|line| line.split_once("** ")) {
            let words = said.strip_prefix("allocations ").and_then(|words| words.split_once(' '));
            if let Some((allocations, operation)) = words {
                let allocations = allocations.parse().unwrap_or_default();
                batches.push(Logged { operation, allocations, system_calls });
                system_calls = 0;
            }
            counts = said == "begin";
        } else if counts && line.starts_with("SYSCALL[") {
            let first_thread = line.split_once(']').is_some_and(|(thread, _)| thread.ends_with(",1"));
            system_calls += u64::from(first_thread && !line.contains(") ... ["));
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(instructions: [u64; 3]) -> Side {
        let dump = |instructions| {
            format!(
                "version: 1\ndesc: Trigger: Client Request: empty poll\nevents: Ir\nsummary: {instructions}\n\
                 fn=(1) poll\n0 7\ntotals: 7\n"
            )
        };
        let batch = "SYSCALL[7,1](  1) sys_write ( 4, 0x1, 16 ) --> [async] ... \n\
                     **7** begin\n\
                     SYSCALL[7,1](310) sys_process_vm_readv ( 7 )[sync] --> Success(0x8) \n\
                     SYSCALL[7,2](271) sys_ppoll ( 0x52 ) --> [async] ... \n\
                     SYSCALL[7,1](  0) sys_read ( 4 ) --> [async] ... \n\
                     SYSCALL[7,1](  0) ... [async] --> Success(0x1) \n\
                     **7** end\n\
                     SYSCALL[7,1](  1) sys_write ( 4, 0x1, 16 ) --> [async] ... \n\
                     **7** allocations 30 empty poll\n";
        Side {
            log: format!("--7-- WARNING: unhandled\n{}", batch.repeat(3)),
            dumps: instructions.map(dump).into(),
        }
    }

    #[test]
    fn costs_are_the_median_batch_of_both_processes_together() {
        let costs = costs(&[side([1000, 1000, 5000]), side([500, 500, 500])], 10).expect("understood");
        let expected = Costs { instructions: 150.0, allocations: 6.0, system_calls: 0.4, spread: 0.0 };
        assert_eq!(costs.into_iter().collect::<Vec<_>>(), [("empty poll".to_owned(), expected)]);
    }

    #[test]
    fn processes_that_are_out_of_step_are_an_error() {
        let mut short = side([1, 2, 3]);
        short.dumps.pop();
        assert!(costs(&[short], 10).is_err());
        assert!(costs(&[side([1, 2, 3]), Side { log: String::new(), dumps: Vec::new() }], 10).is_err());
        assert!(costs(&[], 10).is_err());
    }
}
