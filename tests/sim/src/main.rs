//! The long run: `cargo run --release -p sim -- --seeds 100`, or one seed again with `--seed N`; and handovers
//! interrupted at every step: `--interrupt all`.

use partage_core::base::planted::{self, Planted};
use sim::fleet::{self, Figures, Fleet, Loss};
use sim::interrupt::{self, Kill, Scenario};
use sim::message::Place;
use sim::report::{Report, Verdict};
use sim::shape::Shape;
use std::collections::BTreeMap;
use std::time::Instant;

const USAGE: &str =
    "usage: sim [--seed N | --seeds N [--from N]] [--small] [--stuck] [--leaders] [--durable] [--tables] [--touched] [--person | --nobody] [--words N] [--plant INVARIANT]
       sim --interrupt all|first-placement|move|drain|split|merge|failover|table-split|table-merge [--stride N]
       sim --interrupt SCENARIO --step N [--victim NODE] [--words N]
       sim --datasets [--seed N | --seeds N [--from N]] [--plant INVARIANT]
       sim --replication [--seed N | --seeds N [--from N]] [--plant INVARIANT] [--words N]
       sim --shuffles|--floods|--busy [--seed N | --seeds N [--from N]] [--plant INVARIANT] [--words N]
       sim --mutants
       sim --fleet N | --steady";

struct Arguments {
    from: u64,
    seeds: u64,
    shape: Shape,
    words: usize,
    bug: Option<Planted>,
    interrupt: Option<Vec<Scenario>>,
    /// Workers, and routers, that lose their leader.
    fleet: Option<usize>,
    /// Whether it is counted what the store is asked for while nothing changes.
    steady: bool,
    /// Whether every planted bug is looked for.
    mutants: bool,
    /// Whether the cluster is one of dataset nodes without a coordinator.
    datasets: bool,
    /// Whether it is one of replicas of tables.
    replication: bool,
    /// Whether it is one of nodes of a pool for shuffles.
    shuffles: bool,
    /// Whether it is one of them, which one shuffle floods.
    floods: bool,
    /// Whether their nodes are busy.
    busy: bool,
    stride: u64,
    step: Option<u64>,
    victim: Place,
}

fn arguments() -> Result<Arguments, String> {
    let mut found = Arguments {
        from: 1,
        seeds: 100,
        shape: Shape::FULL,
        words: 200,
        bug: None,
        interrupt: None,
        fleet: None,
        steady: false,
        mutants: false,
        datasets: false,
        replication: false,
        shuffles: false,
        floods: false,
        busy: false,
        stride: 1,
        step: None,
        victim: Place::Coordinator(0),
    };
    #[expect(clippy::disallowed_methods, reason = "this is a command of its own, beside cli")]
    let mut given = std::env::args().skip(1);
    while let Some(flag) = given.next() {
        let mut value = || given.next().ok_or(format!("{flag} wants a value\n{USAGE}"));
        match flag.as_str() {
            "--plant" => found.bug = Some(planted(&value()?)?),
            "--interrupt" => found.interrupt = Some(scenarios(&value()?)?),
            "--small" => {
                let Shape { stuck, leaders, person, durable, replicated, touched, .. } = found.shape;
                found.shape = Shape { stuck, leaders, person, durable, replicated, touched, ..Shape::SMALL };
            }
            "--stuck" => found.shape.stuck = true,
            "--person" => found.shape.person = Some(true),
            "--nobody" => found.shape.person = Some(false),
            "--leaders" => found.shape.leaders = true,
            "--durable" => found.shape.durable = true,
            "--tables" => found.shape.replicated = true,
            "--touched" => found.shape.touched = true,
            "--seed" => (found.from, found.seeds) = (number(&flag, &value()?)?, 1),
            "--seeds" => found.seeds = number(&flag, &value()?)?,
            "--from" => found.from = number(&flag, &value()?)?,
            "--fleet" => found.fleet = Some(number(&flag, &value()?)? as usize),
            "--steady" => found.steady = true,
            "--mutants" => found.mutants = true,
            "--datasets" => found.datasets = true,
            "--replication" => found.replication = true,
            "--shuffles" => found.shuffles = true,
            "--floods" => found.floods = true,
            "--busy" => found.busy = true,
            "--words" => found.words = number(&flag, &value()?)? as usize,
            "--stride" => found.stride = number(&flag, &value()?)?.max(1),
            "--step" => found.step = Some(number(&flag, &value()?)?),
            "--victim" => found.victim = Place::Node(number(&flag, &value()?)? as usize),
            _ => return Err(format!("{flag} is no flag of this command\n{USAGE}")),
        }
    }
    Ok(found)
}

fn number(flag: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|error| format!("{flag} {value}: {error}\n{USAGE}"))
}

fn planted(invariant: &str) -> Result<Planted, String> {
    let services = || Planted::DATASETS.into_iter().chain(Planted::REPLICATION).chain(Planted::SHUFFLES);
    let known = || Planted::CLUSTER.into_iter().chain(services());
    let found = known().find(|bug| format!("{bug:?}") == invariant);
    let all = || known().collect::<Vec<_>>();
    found.ok_or_else(|| format!("{invariant:?} is none of the planted bugs {:?}\n{USAGE}", all()))
}

fn scenarios(name: &str) -> Result<Vec<Scenario>, String> {
    let named = Scenario::ALL.into_iter().filter(|scenario| name == "all" || scenario.name() == name);
    let found: Vec<_> = named.collect();
    if found.is_empty() { Err(format!("{name:?} is no scenario\n{USAGE}")) } else { Ok(found) }
}

fn main() -> Result<(), String> {
    let arguments = arguments()?;
    if let Some(clients) = arguments.fleet {
        return fleet(clients);
    }
    if arguments.steady {
        steady();
        return Ok(());
    }
    if arguments.mutants {
        return mutants();
    }
    if arguments.datasets {
        return datasets(&arguments);
    }
    if arguments.replication {
        return replication(&arguments);
    }
    if arguments.shuffles || arguments.floods || arguments.busy {
        return shuffles(&arguments);
    }
    match (&arguments.interrupt, arguments.step) {
        (None, _) => seeds(&arguments),
        (Some(scenarios), None) => every_step(scenarios, arguments.stride),
        (Some(scenarios), Some(step)) => {
            let kill = Kill { victim: arguments.victim, step };
            scenarios.iter().try_for_each(|scenario| one_step(*scenario, kill, arguments.words))
        }
    }
}

/// A fleet of that many workers and as many routers loses its leader.
#[expect(clippy::print_stdout, reason = "this is a command of its own, beside cli")]
fn fleet(clients: usize) -> Result<(), String> {
    println!(
        "the leader | all current after, s | peak at one coordinator, 1/s | turned away, 1/s | moves | deaths | lapses"
    );
    let mut worst = 0;
    for loss in [Loss::Leaves, Loss::Killed] {
        let Figures { current_ms, peak_per_s, refused_peak_per_s, moves, deaths, lapses } =
            fleet::run(Fleet::of_three(clients, clients, loss), 1);
        let seconds = current_ms as f64 / 1e3;
        println!(
            "{loss:?} | {seconds:.1} | {peak_per_s} | {refused_peak_per_s} | {moves} | {deaths} | {lapses}"
        );
        worst = worst.max(moves + deaths + u64::from(current_ms > 30_000));
    }
    if worst > 0 { Err("somebody noticed".to_owned()) } else { Ok(()) }
}

/// Plants every bug in turn, and states how many are caught.
#[expect(clippy::print_stdout, reason = "this is a command of its own, beside cli")]
fn mutants() -> Result<(), String> {
    println!("planted bug | caught by seed | what was seen");
    let (mut caught, mut all) = (0, 0);
    for bug in sim::mutants::all() {
        all += 1;
        match sim::mutants::hunt(bug) {
            Ok(found) => {
                caught += 1;
                let seed = found.seed.map_or("scenario".to_owned(), |seed| seed.to_string());
                println!("{bug:?} | {seed} | {}", found.by.lines().next().unwrap_or_default());
            }
            Err(why) => println!("{bug:?} | NOT CAUGHT | {why}"),
        }
    }
    println!(
        "{caught} of {all} planted bugs are caught, {:.1} %",
        f64::from(caught) * 100.0 / f64::from(all)
    );
    if caught < all { Err(format!("{} planted bugs survive", all - caught)) } else { Ok(()) }
}

/// Runs dataset nodes without a coordinator, seed after seed.
#[expect(clippy::print_stdout, reason = "this is a command of its own, beside cli")]
fn datasets(arguments: &Arguments) -> Result<(), String> {
    let Arguments { from, seeds, bug, .. } = *arguments;
    let (mut failed, mut upgrades, mut reads, mut crashes) = (0u64, 0, 0, 0);
    planted::plant(bug);
    for seed in from..from + seeds {
        let outcome = sim::dataset::run(seed);
        upgrades += outcome.upgrades;
        reads += outcome.reads.0;
        crashes += outcome.crashes;
        if let Some(broken) = outcome.broken {
            failed += 1;
            let plant = bug.map_or(String::new(), |bug| format!(" --plant {bug:?}"));
            println!("seed {seed} FAILED {broken}");
            println!("  again: cargo run --release -p sim -- --datasets --seed {seed}{plant}");
        }
    }
    println!("{seeds} seeds: {failed} failed; {upgrades} upgrades, {reads} reads, {crashes} crashes");
    if failed > 0 { Err(format!("{failed} of {seeds} seeds failed")) } else { Ok(()) }
}

/// Runs replicas of tables, seed after seed.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a command of its own, beside cli")]
fn replication(arguments: &Arguments) -> Result<(), String> {
    let Arguments { from, seeds, bug, words, .. } = *arguments;
    let (mut failed, mut all) = (0u64, sim::replication::Outcome::default());
    planted::plant(bug);
    for seed in from..from + seeds {
        let outcome = sim::replication::run(seed);
        all.add(&outcome);
        if let Some(broken) = &outcome.broken {
            failed += 1;
            let plant = bug.map_or(String::new(), |bug| format!(" --plant {bug:?}"));
            println!("seed {seed} FAILED {broken}");
            println!("  again: cargo run --release -p sim -- --replication --seed {seed}{plant}");
        } else if seeds == 1 {
            println!("seed {seed} passed, trace {:016x}", outcome.hash);
        }
        if seeds == 1 && outcome.broken.is_some() {
            let (_, told) = sim::replication::run_with_words(seed, Some(words));
            told.iter().rev().take(words).rev().for_each(|line| eprintln!("{line}"));
        }
    }
    println!("{seeds} seeds: {failed} failed; {all}");
    if failed > 0 { Err(format!("{failed} of {seeds} seeds failed")) } else { Ok(()) }
}

/// Runs shuffles, or with `--floods` one that floods a buffer, seed after seed.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a command of its own, beside cli")]
fn shuffles(arguments: &Arguments) -> Result<(), String> {
    let Arguments { from, seeds, bug, words, .. } = *arguments;
    let (mut failed, mut all) = (0u64, sim::shuffle::Outcome::default());
    planted::plant(bug);
    let flag = match (arguments.floods, arguments.busy) {
        (true, _) => "--floods",
        (false, true) => "--busy",
        (false, false) => "--shuffles",
    };
    for seed in from..from + seeds {
        let kept = (seeds == 1).then_some(words);
        let (outcome, told) = match flag {
            "--floods" => sim::shuffle::run_flood(seed, kept),
            "--busy" => sim::shuffle::run_busy(seed, kept),
            _ => sim::shuffle::run_with_words(seed, kept),
        };
        all.add(&outcome);
        if let Some(broken) = &outcome.broken {
            failed += 1;
            let plant = bug.map_or(String::new(), |bug| format!(" --plant {bug:?}"));
            told.iter().rev().take(words).rev().for_each(|line| eprintln!("{line}"));
            println!("seed {seed} FAILED {broken}");
            println!("  again: cargo run --release -p sim -- {flag} --seed {seed}{plant}");
        } else if seeds == 1 {
            println!("seed {seed} passed, trace {:016x}", outcome.hash);
        }
    }
    println!("{seeds} seeds: {failed} failed; {all}");
    if failed > 0 { Err(format!("{failed} of {seeds} seeds failed")) } else { Ok(()) }
}

/// What reaches the store while nothing changes.
#[expect(clippy::print_stdout, reason = "this is a command of its own, beside cli")]
fn steady() {
    println!("workers | routers | transactions, 1/s | sessions renewed, 1/s");
    for (workers, routers) in [(10, 10), (100, 100), (1_000, 1_000)] {
        let (commits, sessions) = fleet::steady(workers, routers);
        println!("{workers} | {routers} | {commits:.2} | {sessions:.2}");
    }
}

#[expect(clippy::print_stdout, reason = "this is a command of its own, beside cli")]
fn every_step(scenarios: &[Scenario], stride: u64) -> Result<(), String> {
    let mut failed = 0;
    for scenario in scenarios {
        let (kills, failures) = interrupt::every_step(*scenario, stride);
        println!("{}: {kills} kills, {} failed", scenario.name(), failures.len());
        for failure in &failures {
            println!("  {}\n  again: {}", failure.text, failure.again());
        }
        failed += failures.len();
    }
    if failed > 0 { Err(format!("{failed} kills failed")) } else { Ok(()) }
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a command of its own, beside cli")]
fn one_step(scenario: Scenario, kill: Kill, words: usize) -> Result<(), String> {
    let outcome = scenario.run(Some(kill), Some(words));
    outcome.words.iter().rev().take(words).rev().for_each(|line| eprintln!("{line}"));
    println!("{} ends as {:?}, trace {:016x}", scenario.name(), outcome.layout, outcome.hash);
    let failed = outcome.violation.map(|violation| format!("{}: {}", violation.invariant, violation.text));
    failed.map_or(Ok(()), Err)
}

#[expect(clippy::print_stdout, reason = "this is a command of its own, beside cli")]
fn seeds(arguments: &Arguments) -> Result<(), String> {
    let Arguments { from, seeds, shape, bug, .. } = *arguments;
    #[expect(clippy::disallowed_methods, reason = "measures the simulator, decides nothing in a run")]
    let began = Instant::now();
    let (mut simulated, mut events, mut unknown, mut failed) = (0, 0, 0, 0u64);
    let mut exercised: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in from..from + seeds {
        let report = sim::run(seed, shape, bug, None);
        report.exercised.iter().for_each(|(what, count)| *exercised.entry(what).or_default() += count);
        simulated += report.simulated;
        events += report.events;
        unknown += u64::from(report.verdict == Verdict::Unknown);
        failed += u64::from(matches!(report.verdict, Verdict::Failed(_)));
        tell(&report, arguments);
    }
    #[expect(clippy::disallowed_methods, reason = "measures the simulator, decides nothing in a run")]
    let took = began.elapsed().as_secs_f64();
    let seconds = simulated as f64 / 1e6;
    println!(
        "{seeds} seeds: {failed} failed, {unknown} unknown; {seconds:.0} simulated seconds, {events} events in {took:.1} s: {:.0} x real time",
        seconds / took
    );
    let exercised: Vec<_> = exercised.into_iter().map(|(what, count)| format!("{what} {count}")).collect();
    println!("exercised: {}", exercised.join(", "));
    if failed > 0 { Err(format!("{failed} of {seeds} seeds failed")) } else { Ok(()) }
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a command of its own, beside cli")]
fn tell(report: &Report, arguments: &Arguments) {
    let Arguments { seeds, shape, words, bug, .. } = *arguments;
    let seed = report.seed;
    match &report.verdict {
        Verdict::Passed if seeds > 1 => {}
        Verdict::Passed => println!("seed {seed} passed, trace {:016x}", report.hash),
        Verdict::Unknown => {
            let (begun, done) = report.operations;
            println!("seed {seed} unknown: only {done} of {begun} operations were done");
        }
        Verdict::Failed(violation) => {
            let (invariant, text) = (violation.invariant, &violation.text);
            println!("seed {seed} FAILED {invariant} at {:.3} s: {text}", violation.at as f64 / 1e6);
            if seeds == 1 {
                let again = sim::run(seed, shape, bug, Some(words));
                again.words.iter().rev().take(words).rev().for_each(|line| eprintln!("{line}"));
            }
            let small = if shape.nodes == Shape::SMALL.nodes { " --small" } else { "" };
            let stuck = if shape.stuck { " --stuck" } else { "" };
            let person = match shape.person {
                Some(true) => " --person",
                Some(false) => " --nobody",
                None => "",
            };
            let leaders = if shape.leaders { " --leaders" } else { "" };
            let durable = if shape.durable { " --durable" } else { "" };
            let tables = if shape.replicated { " --tables" } else { "" };
            let touched = if shape.touched { " --touched" } else { "" };
            let plant = bug.map_or(String::new(), |bug| format!(" --plant {bug:?}"));
            println!(
                "  again: cargo run --release -p sim -- --seed {seed}{small}{stuck}{person}{leaders}{durable}{tables}{touched}{plant}"
            );
        }
    }
}
