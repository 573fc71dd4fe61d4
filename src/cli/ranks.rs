//! A process that is one of several: ranks, which `mpirun` and `srun` start.

use super::{args::Cli, terminal};
use crate::{Error, Result};
#[cfg(feature = "mpi")]
use compress_runtime::train::ranks::{Team, mpi::Session};
use std::env;

/// What launchers tell each process: how many there are.
const COUNTS: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];

/// What launchers tell each process: which one it is.
const NUMBERS: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];

/// Whether this process is the first of several, or alone, as far as its launcher tells.
pub fn is_first() -> bool {
    !NUMBERS.iter().any(|name| env::var(name).is_ok_and(|number| number != "0"))
}

fn tell(e: &Error) {
    terminal::say(&format!("error: {}: {e}", e.kind()));
}

/// How many ranks this process is one of.
fn count() -> usize {
    let count = |name: &&str| env::var(name).ok()?.parse::<usize>().ok();
    COUNTS.iter().filter_map(count).max().unwrap_or(1)
}

/// Why work is not done by several.
pub fn undivided(count: usize) -> Error {
    let what = "only training jobs are divided among them, and neither --dry-run nor --ablate-data";
    Error::usage(format!("started as one of {count} processes: {what}"))
        .help("start it without mpirun or srun, or give `distill`, or `run` with a recipe for it")
}

/// The ranks that this process is one of, from before its work until after it.
pub struct Membership {
    #[cfg(feature = "mpi")]
    session: Option<Session>,
}

impl Membership {
    /// Joins the others, if there are any.
    ///
    /// # Errors
    /// Usage where the work is not divided among ranks, or this build can't; device when MPI can't be started.
    pub fn join(cli: &Cli) -> Result<Self> {
        let count = count();
        if count > 1 && !cli.is_divided() {
            return Err(undivided(count));
        }
        #[cfg(not(feature = "mpi"))]
        match count {
            ..2 => Ok(Self {}),
            _ => Err(Error::usage(format!("started as one of {count} processes, and this build has no MPI"))
                .help("build with `--features mpi`, or start it without mpirun or srun")),
        }
        #[cfg(feature = "mpi")]
        {
            let session = match count {
                ..2 => None,
                _ => {
                    let (session, team) = Session::join()?;
                    if team.count() != count {
                        let what = format!("started as one of {count} processes, and MPI reaches {}", team.count());
                        return Err(Error::usage(what).help(
                            "start it by the mpirun of the MPI that it was built with, or with `srun --mpi=pmix` (`srun --mpi=list`)",
                        ));
                    }
                    team.of_this_process();
                    Some(session)
                }
            };
            Ok(Self { session })
        }
    }

    /// Tells how the work ended, and gives the exit code. Where other ranks go on, they are ended.
    pub fn end(self, done: Result<()>) -> u8 {
        let code = done.as_ref().map_or_else(Error::exit_code, |()| 0);
        #[cfg(feature = "mpi")]
        if let Some(session) = &self.session {
            let team = Team::get();
            // The others may be ended before they hear of it.
            if let (Err(e), true) = (&done, team.leads()) {
                tell(e);
            }
            if !team.ends_with_others(code) {
                if let (Err(e), false) = (&done, team.leads()) {
                    terminal::say(&format!("rank {}: error: {}: {e}", team.rank(), e.kind()));
                }
                session.abort(code);
            }
            return code;
        }
        if let Err(e) = &done {
            tell(e);
        }
        code
    }
}
