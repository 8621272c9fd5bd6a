use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A process that ends with the test that started it, also when the test is killed.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Standard output and error go to `log`.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let out = File::create(log).expect("a log file");
        let err = out.try_clone().expect("the log file twice");
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        // SAFETY: prctl is async-signal-safe, and nothing else happens between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        Self { child, log: log.into() }
    }

    pub fn log(&self) -> String {
        let mut bytes = Vec::new();
        File::open(&self.log).and_then(|mut file| file.read_to_end(&mut bytes)).expect("the log");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Bytes of memory that it occupies now.
    pub fn resident(&self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB")
    }

    /// Processor time that it has used, all threads together.
    pub fn cpu_time(&self) -> Duration {
        let stat = self.proc("stat");
        // The program's name is in brackets and may hold anything; the 14th and 15th field are user and system time.
        let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number of ticks")).sum();
        // SAFETY: sysconf only reads.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Duration::from_secs_f64(ticks as f64 / per_second as f64)
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.pid())).expect("what the kernel knows of it")
    }

    /// SIGKILL, and gone when this returns.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGSTOP: it holds its connections and answers nothing, once this returns.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        // SAFETY: all zeros are a valid value of what is only written to.
        let mut info = unsafe { std::mem::zeroed() };
        let what = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
        // SAFETY: the process is a child that has not been waited for, and is not by this.
        let waited = unsafe { libc::waitid(libc::P_PID, self.child.id(), &raw mut info, what) };
        assert_eq!(waited, 0, "{} stops", self.log.display());
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    pub fn signal(&self, signal: i32) {
        let pid = libc::pid_t::try_from(self.child.id()).expect("a pid");
        // SAFETY: the process is a child that has not been waited for, so the pid is still its own.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "signal {signal} to {pid}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let start = log.lines().count().saturating_sub(40);
            eprintln!("--- the end of {}:", self.log.display());
            log.lines().skip(start).for_each(|line| eprintln!("{line}"));
        }
    }
}
