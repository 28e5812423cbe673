//! The team: worker processes, each behind its own leg of a proxy to each master.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use crate::clock;
use crate::evidence::{self, Record};
use crate::faults::WorkerProcess;
use crate::interrupt::Interrupt;
use crate::job::{Going, Job, Note, Order, Role, Tally};
use crate::proxy::{Leg, Proxy};
use crate::scenario::{Scenario, nanos};

use super::{RunError, Target};

/// Worker processes. Dropping the team ends them all.
pub(super) struct Team {
    members: Vec<Member>,
    notes: Receiver<(usize, Heard)>,
    hear: Sender<(usize, Heard)>,
    // After the members: they are gone when the proxies end.
    /// One for each master.
    proxies: Vec<Proxy>,
    folder: PathBuf,
    prefix: String,
}

/// A worker process.
pub(super) struct Member {
    pub(super) role: Role,
    /// Its way to each master.
    pub(super) legs: Vec<Leg>,
    process: WorkerProcess,
    evidence: PathBuf,
    tally: Option<Tally>,
    going: Going,
}

/// Where a fault finds a worker.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    /// Which member it is.
    pub(super) member: u32,
    /// Its way to each master.
    pub(super) legs: Vec<Leg>,
    pub(super) process: WorkerProcess,
}

enum Heard {
    Note(Note),
    Silence,
}

impl Team {
    /// A team without members.
    pub(super) fn new(target: &Target, folder: &Path, prefix: String) -> Result<Self, RunError> {
        std::fs::create_dir_all(folder).map_err(system(format!("make the folder {}", folder.display())))?;
        let (hear, notes) = mpsc::channel();
        let upstreams = target.upstreams()?.into_iter();
        let proxies = upstreams.map(Proxy::start).collect::<Result<_, _>>()?;
        Ok(Self {
            members: Vec::new(),
            notes,
            hear,
            proxies,
            folder: folder.to_owned(),
            prefix,
        })
    }

    /// Starts a worker; it connects and waits for its order.
    pub(super) fn add(
        &mut self,
        scenario: &Scenario,
        target: &Target,
        role: Role,
        (index, of): (u32, u32),
    ) -> Result<(), RunError> {
        let member = self.members.len();
        let legs: Vec<Leg> = self.proxies.iter().map(Proxy::leg).collect::<Result<_, _>>()?;
        let job = Job {
            scenario: scenario.clone(),
            role: role.clone(),
            index,
            of,
            member: member as u32,
            urls: legs.iter().map(|leg| target.through(&leg.url())).collect(),
            observe: target.urls().swap_remove(0),
            evidence: self.folder.join(format!("evidence-{member}.bin")),
            prefix: self.prefix.clone(),
        };
        let mut child = start(&job)?;
        let evidence = job.evidence;
        let stdout = child.stdout.take();
        self.members.push(Member {
            role,
            legs,
            process: WorkerProcess::new(child, evidence.clone()),
            evidence,
            tally: None,
            going: Going::default(),
        });
        let hear = self.hear.clone();
        std::thread::spawn(move || {
            let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines());
            for line in lines.map_while(Result::ok) {
                let note = serde_json::from_str(&line).unwrap_or_else(|_| Note::Failed(format!("it said {line:?}")));
                if hear.send((member, Heard::Note(note))).is_err() {
                    return;
                }
            }
            let _ = hear.send((member, Heard::Silence));
        });
        Ok(())
    }

    /// Waits until every member that `concerns` picks has said `note`.
    pub(super) fn wait_for(
        &mut self,
        what: &str,
        concerns: impl Fn(&Role) -> bool,
        is_it: impl Fn(&Note) -> bool,
        interrupt: &Interrupt,
    ) -> Result<(), RunError> {
        let deadline = clock::now_ns() + nanos(PATIENCE);
        let mut missing: Vec<usize> = (0..self.members.len())
            .filter(|&i| concerns(&self.members[i].role))
            .collect();
        while !missing.is_empty() {
            if interrupt.is_set() {
                return Err(RunError::Interrupted);
            }
            if clock::now_ns() > deadline {
                return Err(RunError::Worker(format!(
                    "{} workers were not {what} after {PATIENCE:?}",
                    missing.len()
                )));
            }
            if let Some((member, note)) = self.listen(TICK)?
                && is_it(&note)
            {
                missing.retain(|&one| one != member);
            }
        }
        Ok(())
    }

    /// Listens for a while and keeps what is said; fails when a worker fails.
    fn listen(&mut self, limit: Duration) -> Result<Option<(usize, Note)>, RunError> {
        let (member, heard) = match self.notes.recv_timeout(limit) {
            Ok(heard) => heard,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
        };
        let one = &mut self.members[member];
        match heard {
            // Half of a line, perhaps.
            Heard::Note(_) | Heard::Silence if one.process.struck_dead().is_some() => {
                one.going = Going {
                    answered: one.going.answered,
                    ..Going::default()
                };
                // What it counted is in its evidence.
                one.tally.get_or_insert_default();
                Ok(None)
            }
            Heard::Note(Note::Failed(message)) => Err(RunError::Worker(message)),
            Heard::Silence if one.tally.is_none() => Err(RunError::Worker("its process ended early".to_owned())),
            Heard::Silence => Ok(None),
            Heard::Note(note) => {
                match &note {
                    Note::Done(tally) => one.tally = Some((**tally).clone()),
                    Note::Progress(going) => one.going = *going,
                    Note::Ready | Note::Holding | Note::Failed(_) => {}
                }
                Ok(Some((member, note)))
            }
        }
    }

    /// Gives an order to the members that `concerns` picks.
    pub(super) fn order(&self, concerns: impl Fn(&Role) -> bool, order: Order) {
        for member in self.members.iter().filter(|member| concerns(&member.role)) {
            member.process.tell(order);
        }
    }

    /// Listens until `until_ns` or until all have handed in their tally; says whether all have.
    pub(super) fn listen_until(
        &mut self,
        until_ns: u64,
        interrupt: &Interrupt,
        mut told: impl FnMut(Going),
    ) -> Result<bool, RunError> {
        while self.members.iter().any(|member| member.tally.is_none()) {
            if interrupt.is_set() || clock::now_ns() >= until_ns {
                return Ok(false);
            }
            self.listen(TICK)?;
            told(
                self.members
                    .iter()
                    .fold(Going::default(), |sum, member| sum + member.going),
            );
        }
        Ok(true)
    }

    /// Tells all to finish and takes what they hand in; of one that a fault killed an empty tally.
    ///
    /// A tally that is missing would pass for one that counted nothing, so a worker that hands none in is an error.
    pub(super) fn finish(&mut self) -> Result<Vec<Tally>, RunError> {
        self.order(|_| true, Order::Finish);
        let deadline = clock::now_ns() + nanos(FINISH_LIMIT);
        while self.members.iter().any(|member| member.tally.is_none()) {
            if clock::now_ns() >= deadline {
                return Err(RunError::Worker(format!(
                    "it did not end within {FINISH_LIMIT:?} of being told to"
                )));
            }
            self.listen(TICK)?;
        }
        Ok(self.members.iter().filter_map(|member| member.tally.clone()).collect())
    }

    /// The members, in the order in which they joined.
    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Where a fault finds the members that `concerns` picks.
    pub(super) fn reach(&self, concerns: impl Fn(&Role) -> bool) -> Vec<Reach> {
        let members = self.members.iter().enumerate();
        let concerned = members.filter(|(_, member)| concerns(&member.role));
        concerned
            .map(|(number, member)| Reach {
                member: number as u32,
                legs: member.legs.clone(),
                process: member.process.clone(),
            })
            .collect()
    }

    /// The records of each member, in its order of writing.
    pub(super) fn evidence(&self) -> Result<Vec<Vec<Record>>, RunError> {
        let read = |member: &Member| {
            evidence::read(&member.evidence)
                .map_err(system(format!("read the evidence in {}", member.evidence.display())))
        };
        self.members.iter().map(read).collect()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        for member in &self.members {
            member.process.dismiss();
        }
        for member in &self.members {
            let deadline = clock::now_ns() + nanos(FAREWELL);
            while !member.process.has_ended() {
                if clock::now_ns() > deadline {
                    let _ = member.process.kill();
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// Starts a worker and hands it its job. It is in a process group of its own: Ctrl-C is for the coordinator.
fn start(job: &Job) -> Result<Child, RunError> {
    let start = || {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let line = serde_json::to_string(job)?;
        let stdin = child.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        writeln!(stdin, "{line}")?;
        Ok(child)
    };
    start().map_err(system("start a worker process".to_owned()))
}

fn system(what: String) -> impl FnOnce(std::io::Error) -> RunError {
    move |source| RunError::System { what, source }
}

const TICK: Duration = Duration::from_millis(50);

/// How long a worker may take to connect, or a holder to get its locks.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long workers may take to give their locks back and hand in their tally.
const FINISH_LIMIT: Duration = Duration::from_secs(10);

/// How long a worker may take to end when its stdin has.
const FAREWELL: Duration = Duration::from_secs(1);
