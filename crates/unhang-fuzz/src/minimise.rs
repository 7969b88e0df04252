//! Removes from a program what its failure does not need.

use crate::program::{Phase, Program, Statement};

/// The smallest program found that still fails according to `fails`, within that many trials.
pub fn minimise(program: &Program, trials: usize, mut fails: impl FnMut(&Program) -> bool) -> Program {
    let mut best = program.clone();
    let mut left = trials;
    loop {
        let before = best.size();
        let mut number = 0;
        // Large parts first: parts are numbered from the outside in.
        while let Some(smaller) = without(&best, number) {
            if left == 0 {
                return best;
            }
            left -= 1;
            if fails(&smaller) {
                best = smaller;
            } else {
                number += 1;
            }
        }
        if best.size() == before {
            return best;
        }
    }
}

/// The program without one part, by number: a phase, a statement of a function or phase, or the braces around some.
fn without(program: &Program, number: usize) -> Option<Program> {
    let mut smaller = program.clone();
    if number < smaller.phases.len() {
        smaller.phases.remove(number);
        return Some(smaller);
    }
    let mut left = number - smaller.phases.len();
    for phase in &mut smaller.phases {
        if let Phase::Threads { statements, .. } = phase
            && remove(statements, &mut left)
        {
            return Some(smaller);
        }
    }
    for function in &mut smaller.functions {
        if remove(&mut function.statements, &mut left) {
            return Some(smaller);
        }
    }
    None
}

/// Removes the statement with that number, or of a block only what encloses its statements. Counts the number down.
fn remove(statements: &mut Vec<Statement>, left: &mut usize) -> bool {
    for place in 0..statements.len() {
        if *left == 0 {
            statements.remove(place);
            return true;
        }
        *left -= 1;
        let Statement::Blocks(blocks) = &mut statements[place] else { continue };
        if *left == 0 {
            // Loop counters and `break` belong to their loop. Without it they do not compile, which does not count as a
            // failure.
            let inside: Vec<Statement> = blocks.drain(..).flat_map(|(_, body)| body).collect();
            statements.splice(place..=place, inside);
            return true;
        }
        *left -= 1;
        if blocks.iter_mut().any(|(_, body)| remove(body, left)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_matters_is_left() {
        let line = |text: &str| Statement::Line(text.to_owned());
        let block = Statement::Blocks(vec![("if (x)".to_owned(), vec![line("a"), line("bad"), line("c")])]);
        let phase = |statements| Phase::Threads { is_call: false, statements };
        let phases = vec![phase(vec![line("d")]), phase(vec![line("e"), block, line("f")])];
        let program = Program { seed: 1, functions: Vec::new(), phases };
        let least = minimise(&program, 1000, |program| format!("{program:?}").contains("bad"));
        assert_eq!(least.phases, [phase(vec![line("bad")])]);
    }
}
